"""Exact attention that observes its calls: to collect queries and keys, and to measure maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from transformers import PreTrainedModel
from typing_extensions import override

from hrf._attention import Denominator
from hrf.features.base import FeatureMap
from hrf.integrations.transformers.attention import attend, drop_maps, fitted_maps, switch, use_maps
from hrf.integrations.transformers.interface import OBSERVED, add, is_ours
from hrf.integrations.transformers.masks import AttentionCall, windowed

__all__ = ["LayerReport", "Meter", "Observer", "Recorder", "converted", "observed", "original", "tried"]


class LayerReport(NamedTuple):
    """Errors of the map of a layer on data it was not fitted to.

    Attributes:
        errors: ‖Ô − O‖_F / ‖O‖_F per head, for the exact outputs O of exact inputs.
        clamped: share of denominators that were far too small (see `hrf.Denominator`).
        exact_share: share of pairs of tokens that are computed exactly.
    """

    errors: list[float]
    clamped: float
    exact_share: float


class Observer:
    """Exact attention, as Transformers calls it; subclasses see each call and its output.

    Calls with a window that is shorter than the sequence are not seen: they stay exact.
    """

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """Attend exactly."""
        options = {"scaling": scaling, "is_causal": is_causal, **others}
        exact = windowed(module, query, key, value, attention_mask, options)
        if exact is not None:
            return exact
        call = AttentionCall.of(module, query, key, value, attention_mask, scaling, is_causal, others)
        output = call.exact()
        self.see(module, call, output)
        return output.transpose(1, 2), None

    def see(self, module: nn.Module, call: AttentionCall, output: Tensor) -> None:
        """Take note of a call and its output, ``(B, H, L, d_v)``."""
        raise NotImplementedError


@contextmanager
def observed(model: PreTrainedModel, observer: Observer) -> Iterator[None]:
    """Put the model in evaluation mode, with the attention of the observer, while the block runs."""
    add(OBSERVED, observer)
    with _evaluated(model):
        switch(model, OBSERVED)
        yield


@contextmanager
def original(model: PreTrainedModel) -> Iterator[None]:
    """Put the model in evaluation mode, with attention of Transformers, while the block runs."""
    with _evaluated(model):
        if is_ours(model.config._attn_implementation):
            model.set_attn_implementation("eager")
        yield


@contextmanager
def converted(model: PreTrainedModel, maps: dict[str, FeatureMap]) -> Iterator[None]:
    """Put the model in evaluation mode with fitted maps while the block runs; it keeps the maps unless that fails."""
    with _evaluated(model):
        use_maps(model, maps)
        yield
    use_maps(model, maps)


@contextmanager
def tried(model: PreTrainedModel, maps: dict[str, FeatureMap]) -> Iterator[None]:
    """Put the model in evaluation mode with fitted maps while the block runs; restore what it had afterwards."""
    before = fitted_maps(model)
    with _evaluated(model):
        use_maps(model, maps)
        try:
            yield
        finally:
            drop_maps(model)
            if before:
                use_maps(model, before)


@contextmanager
def _evaluated(model: PreTrainedModel) -> Iterator[None]:
    """Put the model in evaluation mode while the block runs; restore modes and attention afterwards."""
    before, modes = model.config._attn_implementation, [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.set_attn_implementation(before)
        for module, training in modes:
            module.training = training


def _tokens(vectors: Tensor, ignore: Tensor | None) -> Tensor:
    """Drop padding and join the batch: ``(B, H, N, d) -> (H, M, d)``. Queries of cross-attention have no padding."""
    flat = vectors.movedim(1, 0).flatten(1, 2)
    return flat if ignore is None or ignore.shape[1] != vectors.shape[2] else flat[:, ~ignore.flatten()]


class Recorder(Observer):
    """Recorder of queries and keys of every module, scaled so that exp(qᵀk) is the kernel.

    Args:
        quota: number of queries and of keys to keep per call, chosen at random.
        seed: seed of that choice.

    Attributes:
        samples: lists of queries and of keys, ``(H, N, d)`` each, by module.
    """

    def __init__(self, quota: int, seed: int) -> None:
        self.quota, self.generator = quota, Generator().manual_seed(seed)
        self.samples: dict[nn.Module, tuple[list[Tensor], list[Tensor]]] = {}

    @override
    def see(self, module: nn.Module, call: AttentionCall, output: Tensor) -> None:
        kept = self.samples.setdefault(module, ([], []))
        for sample, vectors in zip(kept, (call.query, call.for_queries(call.key)), strict=True):
            tokens = _tokens(vectors, call.ignore)
            chosen = torch.randperm(tokens.shape[1], generator=self.generator)[: self.quota]
            sample.append((tokens[:, chosen.to(tokens.device)] * call.scale**0.5).cpu())


class Meter(Observer):
    """Meter of the errors of maps on exact inputs.

    Args:
        maps: maps by module.

    Attributes:
        longest: the call with the most keys, and its map; ``None`` before the first.
    """

    longest: tuple[AttentionCall, FeatureMap] | None = None

    def __init__(self, maps: Mapping[nn.Module, FeatureMap]) -> None:
        self.maps = maps
        self._squares: dict[nn.Module, Tensor] = {}  # Σ(Ô − O)² and ΣO² per head: (2, H)
        self._rules = {module: Denominator() for module in maps}
        self._exact: dict[nn.Module, list[float]] = {module: [] for module in maps}

    @override
    def see(self, module: nn.Module, call: AttentionCall, output: Tensor) -> None:
        phi = self.maps.get(module)
        if phi is None:
            return
        estimate = attend(call, phi, self._rules[module])
        both = torch.stack([_tokens(u, call.ignore) for u in (estimate - output, output)])
        squares = both.double().square().sum((-2, -1)).cpu()
        self._squares[module] = self._squares.get(module, 0) + squares
        if self.longest is None or call.key.shape[2] > self.longest[0].key.shape[2]:
            self.longest = call, phi
        root = call.scale**0.5
        self._exact[module].append(phi.exact_share(call.query * root, call.for_queries(call.key) * root))

    def report(self, module: nn.Module) -> LayerReport | None:
        """Summarise the measurements of a module; ``None`` if windows left none."""
        if module not in self._squares:
            return None
        wrong, all_of_it = self._squares[module]
        rule, exact = self._rules[module], self._exact[module]
        return LayerReport(
            (wrong / all_of_it).sqrt().tolist(),
            rule.clamped / rule.rows,
            sum(exact) / len(exact),
        )

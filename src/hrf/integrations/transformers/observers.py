"""Exact attention that looks at what it computes: to collect queries and keys, and to measure maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from hrf._attention import Denominator
from hrf.features.base import FeatureMap
from hrf.features.clustered import ClusteredHybrid
from hrf.integrations.transformers.attention import attend, switch
from hrf.integrations.transformers.masks import Call, mask

__all__ = ["LayerReport", "Meter", "Observer", "Recorder", "observed"]

_NAME = "hrf_observed"


class LayerReport(NamedTuple):
    """How well the map of a layer does on data it was not fitted to.

    Attributes:
        errors: ‖Ô − O‖_F / ‖O‖_F of each head, for the exact outputs O of its exact inputs.
        clamped: the share of denominators that were far too small (see `hrf.Denominator`).
        exact_share: the share of pairs of tokens that are computed exactly.
    """

    errors: list[float]
    clamped: float
    exact_share: float


class Observer:
    """Exact attention, as Transformers calls it; subclasses look at each call and its output."""

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
        call = Call.of(module, query, key, value, attention_mask, scaling, is_causal, others)
        output = _exact(call)
        self.see(module, call, output)
        return output.transpose(1, 2), None

    def see(self, module: nn.Module, call: Call, output: Tensor) -> None:
        """Look at a call and its output, ``(B, H, L, d_v)``."""
        raise NotImplementedError


@contextmanager
def observed(model: PreTrainedModel, observer: Observer) -> Iterator[None]:
    """While the block runs, the model is in evaluation mode and its attention is that of the observer."""
    before, modes = model.config._attn_implementation, [(m, m.training) for m in model.modules()]
    AttentionMaskInterface.register(_NAME, mask)
    AttentionInterface.register(_NAME, observer)
    switch(model, _NAME)
    model.eval()
    try:
        yield
    finally:
        model.set_attn_implementation(before)
        for module, training in modes:
            module.training = training


def _exact(call: Call) -> Tensor:
    length, keys = call.query.shape[2], call.key.shape[2]
    seen = call.query.new_ones(length, keys, dtype=torch.bool)
    if call.is_causal:
        seen = seen.tril(keys - length)
    if call.ignore is not None:
        seen = seen & ~call.ignore[:, None, None]
    key, value = (call.for_queries(tensor) for tensor in (call.key, call.value))
    return F.scaled_dot_product_attention(call.query, key, value, attn_mask=seen, scale=call.scale)


def _tokens(vectors: Tensor, ignore: Tensor | None) -> Tensor:
    """All that are not padding, by head: ``(B, H, N, d) -> (H, M, d)``. Queries of other keys have no padding."""
    flat = vectors.movedim(1, 0).flatten(1, 2)
    return flat if ignore is None or ignore.shape[1] != vectors.shape[2] else flat[:, ~ignore.flatten()]


class Recorder(Observer):
    """Keeps queries and keys of every module, scaled so that exp(qᵀk) is the kernel.

    Args:
        quota: how many of each to keep of a call, at random.
        seed: of that choice.

    Attributes:
        samples: lists of queries and of keys, ``(H, N, d)`` each, by module.
    """

    def __init__(self, quota: int, seed: int) -> None:
        self.quota, self.generator = quota, Generator().manual_seed(seed)
        self.samples: dict[nn.Module, tuple[list[Tensor], list[Tensor]]] = {}

    def see(self, module: nn.Module, call: Call, output: Tensor) -> None:
        """Keep some of both."""
        kept = self.samples.setdefault(module, ([], []))
        for sample, vectors in zip(kept, (call.query, call.for_queries(call.key)), strict=True):
            tokens = _tokens(vectors, call.ignore)
            chosen = torch.randperm(tokens.shape[1], generator=self.generator)[: self.quota]
            sample.append((tokens[:, chosen.to(tokens.device)] * call.scale**0.5).cpu())


class Meter(Observer):
    """Measures maps on exact inputs.

    Args:
        maps: by module.
    """

    def __init__(self, maps: Mapping[nn.Module, FeatureMap]) -> None:
        self.maps = maps
        self._squares: dict[nn.Module, Tensor] = {}  # Σ(Ô − O)² and ΣO² of each head: (2, H)
        self._rules = {module: Denominator() for module in maps}
        self._exact: dict[nn.Module, list[float]] = {module: [] for module in maps}

    def see(self, module: nn.Module, call: Call, output: Tensor) -> None:
        """Compare the output with that of the map."""
        phi = self.maps[module]
        estimate = attend(call, phi, self._rules[module])
        both = torch.stack([_tokens(u, call.ignore) for u in (estimate - output, output)])
        squares = both.double().square().sum((-2, -1)).cpu()
        self._squares[module] = self._squares.get(module, 0) + squares
        if isinstance(phi, ClusteredHybrid):
            root = call.scale**0.5
            self._exact[module].append(phi.exact_share(call.query * root, call.for_queries(call.key) * root))

    def report(self, module: nn.Module) -> LayerReport:
        """What was measured of a module."""
        wrong, all_of_it = self._squares[module]
        rule, exact = self._rules[module], self._exact[module]
        return LayerReport(
            (wrong / all_of_it).sqrt().tolist(),
            rule.clamped / rule.rows,
            sum(exact) / len(exact) if exact else 0.0,
        )

"""Models under observation: exact attention that watches its calls, and `check`, which says what can be replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from transformers import PreTrainedModel
from typing_extensions import override

from hrf._attention import Denominator
from hrf.features.base import FeatureMap
from hrf.integrations.transformers.attention import attend, drop_maps, fitted_maps, switch, use_maps
from hrf.integrations.transformers.interface import (
    OBSERVED,
    AttentionCall,
    add,
    has_window,
    is_ours,
    why_unsupported,
)

__all__ = [
    "LayerReport",
    "Meter",
    "Recorder",
    "Support",
    "check",
    "converted",
    "first_tensor",
    "observed",
    "original",
    "run",
    "tried",
]

# Exact attention that observes its calls: to collect queries and keys, and to measure maps.


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

    def __call__(self, *arguments: Any, **options: Any) -> tuple[Tensor, None]:
        """Attend exactly."""
        call = AttentionCall.of(*arguments, **options)
        output = call.exact()
        if call.pairs is None:
            self.see(call, output)
        return output.transpose(1, 2), None

    def see(self, call: AttentionCall, output: Tensor) -> None:
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
    def see(self, call: AttentionCall, output: Tensor) -> None:
        kept = self.samples.setdefault(call.module, ([], []))
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
    def see(self, call: AttentionCall, output: Tensor) -> None:
        module, phi = call.module, self.maps.get(call.module)
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


_TOLERANCE = 1e-2  # of the outputs of one function computed in two ways, in half precision, too
_TOKENS = 8


class Support(NamedTuple):
    """Answer of `check`.

    Attributes:
        supported: whether linear attention can take the place of the model's own.
        reason: one sentence.
        layers: names of the modules whose attention would be replaced.
        windowed: names of those of them with a sliding window: they keep PyTorch's attention, which is exact, on
            sequences longer than the window.
    """

    supported: bool
    reason: str
    layers: list[str]
    windowed: Sequence[str] = ()

    def __bool__(self) -> bool:
        return self.supported

    def __str__(self) -> str:
        return self.reason


class _Probe(Observer):
    """Exact attention that notes the modules that call it."""

    def __init__(self) -> None:
        self.modules: dict[nn.Module, None] = {}

    @override
    def __call__(self, module: nn.Module, *args: Any, **options: Any) -> tuple[Tensor, None]:
        self.modules[module] = None
        return super().__call__(module, *args, **options)

    @override
    def see(self, call: AttentionCall, output: Tensor) -> None:
        pass


@torch.no_grad()
def check(model: PreTrainedModel, batch: Mapping[str, Any] | Tensor | None = None) -> Support:
    """Find out whether a model takes its attention from Transformers' interface, and all of what it asks can be done.

    Runs the model on one small batch, with its own attention and with exact attention through the interface; the
    outputs must agree. The model is left as it was.

    Args:
        model: model of Transformers.
        batch: arguments of the model, or ``input_ids``; without it, a few tokens, pixels or samples are made up.

    >>> import transformers
    >>> from hrf.integrations.transformers import check
    >>> sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    >>> print(check(transformers.BertModel(transformers.BertConfig(**sizes))))
    BertModel takes the attention of 2 modules from the interface: hrf can replace it
    >>> sizes = {"vocab_size": 64, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 32}
    >>> check(transformers.XLNetModel(transformers.XLNetConfig(**sizes))).supported
    False
    """
    reason = None if model.config.sub_configs else why_unsupported(type(model))
    if reason:
        return Support(False, reason, [])
    name, probe = type(model).__name__, _Probe()
    inputs = made_up_inputs(model) if batch is None else batch
    try:
        with original(model):
            expected = first_tensor(_run_seeded(model, inputs))
    except Exception as error:
        if batch is not None:
            raise
        raise ValueError(f"{name} does not run on made-up inputs ({_line(error)}); pass a batch") from error
    try:
        with observed(model, probe):
            received = first_tensor(_run_seeded(model, inputs))
    except Exception as error:
        return Support(False, f"{name} cannot use linear attention: {_line(error)}", [])
    if not probe.modules:
        return Support(False, f"{name} never calls the attention interface: nothing would be replaced", [])
    layers = [n for n, module in model.named_modules() if module in probe.modules]
    if not _agree(received, expected):
        return Support(False, f"{name} does more in its attention than it asks the interface for", layers)
    local = [n for n in layers if has_window(model.get_submodule(n))]
    count = f"{len(layers)} module{'s' if len(layers) != 1 else ''}"
    sentence = f"{name} takes the attention of {count} from the interface: hrf can replace it"
    return Support(True, sentence + _exception(len(local), len(layers)), layers, local)


def _exception(local: int, all_of_them: int) -> str:
    """Say which modules keep exact attention because of their windows."""
    if not local:
        return ""
    if local == all_of_them:
        return (
            " on sequences no longer than the sliding window, which every module has; on longer sequences all of them "
            "keep PyTorch's attention, and hrf changes nothing"
        )
    which = "the one module" if local == 1 else f"the {local} modules"
    return (
        f" in {all_of_them - local} of them; {which} with a sliding window keep{'s' if local == 1 else ''} PyTorch's "
        "attention on sequences longer than the window"
    )


def _run_seeded(model: PreTrainedModel, inputs: Mapping[str, Any] | Tensor) -> Any:
    """Run a model with the same random numbers every time: some mask inputs at random even in evaluation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return run(model, inputs)


def _agree(received: Tensor, expected: Tensor) -> bool:
    """Compare outputs; ones that are not finite tell nothing."""
    if received.shape != expected.shape:
        return False
    difference, size = (received - expected).double().norm(), expected.double().norm()
    return not bool(difference > _TOLERANCE * size)


def run(model: PreTrainedModel, batch: Mapping[str, Any] | Tensor) -> Any:
    """Call a model with a batch, moved to its device."""
    if isinstance(batch, Tensor):
        return model(batch.to(model.device))
    return model(**{k: v.to(model.device) if isinstance(v, Tensor) else v for k, v in batch.items()})


def first_tensor(output: Any) -> Tensor:
    """Return the main output of a model: the first floating-point tensor that is no loss."""
    values = output.values() if isinstance(output, Mapping) else [output]
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim:
            return value
    raise ValueError(f"the output is of type {type(output).__name__} and holds no tensor")


def made_up_inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """Make up a small batch by the name of the model's main input."""
    config, name = model.config, model.main_input_name
    inputs: dict[str, Tensor] = {}
    text = config.get_text_config()
    tokens = torch.arange(_TOKENS)[None] % max(1, getattr(text, "vocab_size", None) or 1)
    if name == "input_ids":
        inputs[name] = tokens
    elif name == "pixel_values":
        inputs[name] = _image(config)
    elif name == "input_features":
        bins = getattr(config, "num_mel_bins", None) or 80
        length = 2 * (getattr(config, "max_source_positions", None) or 16)
        inputs[name] = torch.linspace(-1, 1, bins * length).reshape(1, bins, length)
    else:
        inputs[name] = torch.linspace(-1, 1, 2000)[None]
    if name == "input_ids" and "vision_config" in config.sub_configs:
        inputs["pixel_values"] = _image(config.vision_config)
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens
    return {key: u.to(model.dtype) if u.is_floating_point() else u for key, u in inputs.items()}


def _image(config: Any) -> Tensor:
    size = getattr(config, "image_size", None) or 32
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    channels = getattr(config, "num_channels", None) or 3
    return torch.linspace(-1, 1, channels * height * width).reshape(1, channels, height, width)


def _line(error: Exception) -> str:
    """Return the first line of an error's message, or its name."""
    return str(error).partition("\n")[0] or type(error).__name__

"""Convert a trained model from exact to linear attention, with maps fitted to its own data.

In this order: progress of `convert`, the maps it tries, their speed, and `convert` itself.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from hrf import pages
from hrf.features.base import FeatureMap
from hrf.features.clustered import ClusteredHybrid
from hrf.features.exponential import Exponential
from hrf.fitting import ResidualFit, fit_residuals, samples
from hrf.integrations.transformers.attention import attend
from hrf.integrations.transformers.interface import SUMMARISED, AttentionCall, has_window, refuse
from hrf.integrations.transformers.support import (
    LayerReport,
    Meter,
    Recorder,
    converted,
    first_tensor,
    observed,
    original,
    run,
    tried,
)
from hrf.nn import NAMES, MapName, feature_map_for

__all__ = [
    "FITS",
    "LADDER",
    "FitName",
    "Report",
    "Speed",
    "convert",
    "extrapolated",
    "fit_clusters",
    "measure_speed",
]

# Progress of `convert` on stderr: a bar on a terminal, else a line per step.


Item = TypeVar("Item")


class Steps(Protocol):
    """Function that passes items on and shows which one is at work."""

    def __call__(self, what: str, items: Sequence[Item], names: Sequence[str] = ()) -> Iterable[Item]:
        """Pass ``items`` on; ``what`` says what happens to them, and ``names`` what each is called."""


@contextmanager
def shown_steps(shown: bool) -> Iterator[Steps]:
    """Show a bar on a terminal, one line per item elsewhere, or nothing."""
    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield _written if shown else _silent
        return
    with Progress(console=console, transient=True) as bar:

        def track(what: str, items: Sequence[Item], names: Sequence[str] = ()) -> Iterable[Item]:
            return bar.track(items, description=what)

        yield track


def _written(what: str, items: Sequence[Item], names: Sequence[str] = ()) -> Iterable[Item]:
    for index, item in enumerate(items):
        name = f": {names[index]}" if names else ""
        print(f"{what} {index + 1} of {len(items)}{name}", file=sys.stderr, flush=True)
        yield item


def _silent(what: str, items: Sequence[Item], names: Sequence[str] = ()) -> Iterable[Item]:
    return items


# Maps from cheapest to most expensive, for `convert` with a quality to reach: more and more pairs of tokens are exact.


_CLUSTERS = (64, 64)
_SHARES = (0.05, 0.1, 0.2, 0.4)


class Vectors(NamedTuple):
    """Queries and keys of one layer, ``(H, N, d)`` each, and their clusters."""

    queries: Tensor
    keys: Tensor
    clusters: ResidualFit


class Rung(NamedTuple):
    """A kind of map.

    Attributes:
        name: what it is called in messages.
        fit: from the vectors of a layer to a map.
    """

    name: str
    fit: Callable[[Vectors], FeatureMap]


def fit_clusters(queries: Tensor, keys: Tensor, *, heads: int) -> Vectors:
    """Cluster the vectors of a layer, once for all rungs."""
    x, y = (samples(u, heads, name) for u, name in ((queries, "queries"), (keys, "keys")))
    n_q, n_k = (min(n, u.shape[1]) for n, u in zip(_CLUSTERS, (x, y), strict=True))
    return Vectors(queries, keys, fit_residuals(x, y, (n_q, n_k), "real-diagonal"))


def _exponential(vectors: Vectors) -> FeatureMap:
    return Exponential.fit(vectors.queries, vectors.keys, heads=len(vectors.queries), n_projections=128)


def _clustered(vectors: Vectors, exact_share: float = 0.0) -> FeatureMap:
    return ClusteredHybrid.fit(
        vectors.queries,
        vectors.keys,
        base="separable",
        recenter=True,
        exact_share=exact_share,
        clusters=vectors.clusters,
        heads=len(vectors.queries),
    )


LADDER: Sequence[Rung] = (
    Rung("exponential features, fitted", _exponential),
    Rung("clusters", _clustered),
    *(Rung(f"clusters, {s:.0%} of pairs exact", partial(_clustered, exact_share=s)) for s in _SHARES),
)


# Time of linear attention against exact attention on this machine, and the length from which it is faster.


_BUDGET = 2.0  # seconds
_CALLS = 3  # least number of calls per measurement


class Speed(NamedTuple):
    """Time of attention alone, in one layer, for one sequence.

    Attributes:
        length: number of tokens of the longest test sequence.
        ratio: time of linear attention over that of exact attention at that length.
        break_even: number of tokens from which linear attention is faster; ``math.inf`` if it never is, and
            ``math.nan`` if that takes too long to measure.
    """

    length: int
    ratio: float
    break_even: float

    def __str__(self) -> str:
        place = f"exact at {self.length:,} tokens on this machine"
        if self.ratio <= 1:
            return f"attention is {1 / self.ratio:.1f} times as fast as {place}"
        sentence = f"attention is slower than {place}: it takes {self.ratio:.1f} times as long; "
        if math.isfinite(self.break_even):
            return f"{sentence}it breaks even at about {float(f'{self.break_even:.2g}'):,.0f} tokens"
        unknown = "where it breaks even would take too long to measure"
        return sentence + (
            unknown if math.isnan(self.break_even) else "it gains nothing with the length, either"
        )


@torch.no_grad()
def measure_speed(call: AttentionCall, feature_map: FeatureMap, budget: float = _BUDGET) -> Speed:
    """Time both at the length of a call, and at 2, 4, … times that until linear attention wins or time is up."""
    begin, length = perf_counter(), call.key.shape[2]
    call = call._replace(query=call.query[:1], key=call.key[:1], value=call.value[:1], ignore=None)
    ratios: list[float] = []
    while not ratios or ratios[-1] > 1:
        longer = _repeated(call, 1 << len(ratios))
        start = perf_counter()
        ratios.append(_ratio(longer, feature_map))
        # Twice the length takes up to four times as long.
        if perf_counter() - begin + 4 * (perf_counter() - start) > budget:
            break
    return Speed(length, ratios[0], extrapolated(length, ratios))


def extrapolated(length: int, ratios: list[float]) -> float:
    """Return where the ratio is 1, given it at ``length``, 2 · ``length``, …, by a power law of the last two."""
    if ratios[0] <= 1:
        return length
    if len(ratios) == 1:
        return math.nan
    before, last = ratios[-2:]
    slope = math.log2(last / before)
    if slope >= 0:
        return math.inf
    return length * 2 ** (len(ratios) - 1 - math.log2(last) / slope)


def _ratio(call: AttentionCall, feature_map: FeatureMap) -> float:
    """Return the time of linear attention over that of exact attention: the shortest of several calls, in turns."""
    key, value = call.for_queries(call.key), call.for_queries(call.value)

    def exact() -> Tensor:
        causal = call.is_causal and key.shape[2] == call.query.shape[2]
        return F.scaled_dot_product_attention(call.query, key, value, is_causal=causal, scale=call.scale)

    calls: list[Callable[[], Tensor]] = [lambda: attend(call, feature_map), exact]
    shortest = [math.inf, math.inf]
    for _ in range(_CALLS):
        for index, function in enumerate(calls):
            start = perf_counter()
            function()
            shortest[index] = min(shortest[index], perf_counter() - start)
    return shortest[0] / shortest[1]


def _repeated(call: AttentionCall, times: int) -> AttentionCall:
    query, key, value = (u.repeat(1, 1, times, 1) for u in (call.query, call.key, call.value))
    return call._replace(query=query, key=key, value=value)


# Conversion itself: fit a map per layer, measure, and keep the cheapest that reaches the quality asked for.


# Called as ``fit(queries, keys, heads=H)`` with vectors ``(H, N, d)``, such that exp(qᵀk) is the kernel.
Fit = Callable[..., FeatureMap]
Batch = Mapping[str, Any] | Tensor

_WITHOUT_MAPS = (
    f'use hrf.SummarisedAttention (model.set_attn_implementation("{SUMMARISED}")), which needs no conversion'
)
# Largest errors of the output of a model, and what they mean.
_VERDICTS = (
    (0.05, "close"),
    (0.3, f"visibly different; compute some pairs exactly (exact_share), fine-tune, or {_WITHOUT_MAPS}"),
    (math.inf, f"of no use without fine-tuning; {_WITHOUT_MAPS}, or keep exact attention"),
)


def _unfitted(queries: Tensor, keys: Tensor, *, heads: int, name: MapName) -> FeatureMap:
    return feature_map_for(name, queries.shape[-1], heads)


FitName = Literal["clustered", "fitted", MapName]
FITS: dict[FitName, Fit] = {
    "clustered": partial(ClusteredHybrid.fit, base="separable", n_clusters=(64, 64), recenter=True),
    "fitted": partial(Exponential.fit, n_projections=128),
    **{name: partial(_unfitted, name=name) for name in NAMES},
}


class Report(NamedTuple):
    """Measurements of `convert` on the test batches.

    Attributes:
        layers: errors by the names of the attention modules.
        output_error: ‖Ŷ − Y‖ / ‖Y‖ of the output of the whole model, without padding.
        cosine: mean over tokens of the cosine between both outputs.
        speed: time of attention against exact attention, on this machine.
        chosen: the kind of map, where ``quality`` chose it.
    """

    layers: dict[str, LayerReport]
    output_error: float = math.nan
    cosine: float = math.nan
    speed: Speed | None = None
    chosen: str | None = None

    @property
    def verdict(self) -> str:
        """Sentences on the error of the whole model and on the time of its attention."""
        words = next((words for limit, words in _VERDICTS if self.output_error <= limit), _VERDICTS[-1][1])
        sentences = [
            f"the output of the model differs by {self.output_error:.1%} from exact attention "
            f"(mean cosine {self.cosine:.3f}): {words}"
        ]
        if self.chosen is not None:
            sentences.insert(0, f"the cheapest maps that reach the quality are {self.chosen}")
        if self.speed is not None:
            sentences.append(str(self.speed))
        return "\n".join(sentences)

    def save_page(self, path: str | PathLike[str]) -> None:
        """Write a page to look at: error and exact share of every head of every layer, worst heads first."""
        errors = [layer.errors for layer in self.layers.values()]
        shares = [[layer.exact_share] * len(layer.errors) for layer in self.layers.values()]
        title, sentences = "A converted model", self.verdict.split("\n")
        pages.save(pages.heads_page(title, sentences, list(self.layers), errors, shares), Path(path))

    def __str__(self) -> str:
        heading = "relative error of attention"
        width = max(map(len, [heading, *self.layers]))
        lines = [f"{heading:{width}}  median  largest of the heads"]
        for name, layer in self.layers.items():
            line = f"{name:{width}}  {median(layer.errors):6.3f}  {max(layer.errors):7.3f}"
            line += f"  {layer.exact_share:.0%} of pairs exact" if layer.exact_share else ""
            line += f"  {layer.clamped:.0%} of denominators clamped" if layer.clamped else ""
            lines.append(line)
        return "\n".join([*lines, self.verdict])


def convert(
    model: PreTrainedModel,
    calibration_batches: Iterable[Batch],
    *,
    feature_map: FitName | Fit = "clustered",
    quality: float | None = None,
    test_batches: Iterable[Batch] | None = None,
    max_tokens: int = 3072,
    seed: int = 0,
    progress: bool = True,
) -> Report:
    """Fit a map to the queries and keys of every attention layer, and let the model use them.

    The model runs on the batches with exact attention. Afterwards its implementation of attention is
    ``"hrf_fitted"``. ``model.set_attn_implementation("sdpa")`` is the way back; `save_maps` writes the maps.

    Args:
        model: model of Transformers, with attention that linear attention can replace (see `register`). A layer
            with a sliding window gets a map only if some batch is no longer than the window.
        calibration_batches: inputs of the model: mappings of arguments, or ``input_ids``.
        feature_map: ``"clustered"`` (64 × 64 clusters, separable), ``"fitted"`` (`hrf.Exponential.fit`, 256
            features), ``"positive"``, ``"angular"`` or ``"trigonometric"``; or a function of ``(queries, keys,
            heads=...)`` that returns a map, such as ``functools.partial(hrf.ClusteredHybrid.fit,
            base="separable", n_clusters=(64, 64), recenter=True, exact_share=0.1)``.
        quality: mean cosine between outputs of the exact and the converted model to reach on the test batches, such as
            0.99: maps are tried from cheapest to most expensive, with up to 40 % of pairs exact, and the first that
            reaches it is taken. If none does, a ValueError says how far they got, and the model stays as it was.
        test_batches: batches to measure errors on; by default the last quarter of ``calibration_batches`` is held out.
        max_tokens: largest number of queries and keys per head to fit to, the same number from each batch.
        seed: seed of ω and of the choice of tokens.
        progress: show a bar on stderr, or one line per layer if stderr is no terminal.
    """
    fit = _fit_of(feature_map)
    _check_quality(quality, feature_map)
    refuse(model)
    batches, tests = _split(_checked(calibration_batches), test_batches)
    with shown_steps(progress) as steps:
        recorder = Recorder(max(1, max_tokens // len(batches)), seed)
        with observed(model, recorder):
            _run(model, steps("reading batch", batches))
        names = {module: name for name, module in model.named_modules() if module in recorder.samples}
        if not names:
            raise ValueError(f"{type(model).__name__} {_nothing_recorded(model)}; see check(model)")
        chosen = None
        if quality is None:
            maps = _each_layer(fit, recorder, names, seed, steps)
        else:
            chosen, maps = _cheapest(model, quality, recorder, names, seed, steps, tests)
        meter = Meter(maps)
        with observed(model, meter):
            expected = _run(model, steps("measuring batch", tests))
        with converted(model, {names[module]: phi for module, phi in maps.items()}):
            received = _run(model, steps("comparing batch", tests))
    layers = {name: own for module, name in names.items() if (own := meter.report(module)) is not None}
    error, cosine = _compared(received, expected, tests)
    speed = None if meter.longest is None else measure_speed(*meter.longest)
    return Report(layers, error, cosine, speed, chosen)


def _nothing_recorded(model: PreTrainedModel) -> str:
    if any(has_window(module) for module in model.modules() if hasattr(module, "layer_idx")):
        return (
            "has a sliding window in every attention layer, and all batches are longer: these layers keep exact "
            "attention, so that nothing is left to convert; expected batches no longer than the window"
        )
    return "never called the attention interface"


def _each_layer(
    fit: Callable[..., Any], recorder: Recorder, names: dict[nn.Module, str], seed: int, steps: Steps
) -> dict[nn.Module, Any]:
    """Call ``fit`` with the recorded queries and keys of each module, which are dropped on the way."""
    found = {}
    for index, module in enumerate(steps("fitting layer", list(names), list(names.values()))):
        queries, keys = (torch.cat(sample, 1) for sample in recorder.samples.pop(module))
        with _seeded(seed + index):
            found[module] = fit(queries, keys, heads=len(queries))
    return found


def _cheapest(
    model: PreTrainedModel,
    quality: float,
    recorder: Recorder,
    names: dict[nn.Module, str],
    seed: int,
    steps: Steps,
    tests: list[Batch],
) -> tuple[str, dict[nn.Module, FeatureMap]]:
    """Return the first rung of the ladder that reaches a quality, and its maps."""
    vectors = _each_layer(fit_clusters, recorder, names, seed, steps)
    with original(model):
        expected = _run(model, tests)
    reached: dict[str, float] = {}
    for rung in steps("trying maps", LADDER, [rung.name for rung in LADDER]):
        with _seeded(seed):
            maps = {module: rung.fit(own) for module, own in vectors.items()}
        with tried(model, {names[module]: phi for module, phi in maps.items()}):
            _, reached[rung.name] = _compared(_run(model, tests), expected, tests)
        if reached[rung.name] >= quality:
            return rung.name, maps
    best = max(reached, key=lambda name: reached[name])
    raise ValueError(
        f"no map reaches a mean cosine of {quality} on the test batches: the best is {reached[best]:.4f}, by {best}; "
        f"the model stays as it was; ask for less, {_WITHOUT_MAPS}, keep exact attention, or fine-tune"
    )


def _check_quality(quality: float | None, feature_map: FitName | Fit) -> None:
    if quality is None:
        return
    if not 0 < quality < 1:
        raise ValueError(f"quality is {quality}; expected a mean cosine between 0 and 1, such as 0.99")
    if feature_map != "clustered":
        raise ValueError(
            f"quality chooses the map, but feature_map is {feature_map!r}; expected only one of both"
        )


def _checked(batches: Iterable[Batch]) -> list[Batch]:
    """Return batches as a list; refuse what no model takes, such as texts."""
    found = list(batches)
    for index, batch in enumerate(found):
        if not isinstance(batch, Mapping) and not (isinstance(batch, Tensor) and batch.ndim > 1):
            what = (
                f"a tensor of shape {tuple(batch.shape)}"
                if isinstance(batch, Tensor)
                else type(batch).__name__
            )
            raise TypeError(
                f"batch {index} is {what}; expected a list of batches, each what a tokenizer returns with "
                'return_tensors="pt", or a tensor of input_ids (batch, length)'
            )
    return found


def _fit_of(feature_map: FitName | Fit) -> Fit:
    """Look up a function that fits maps, unless it is given."""
    if not isinstance(feature_map, str):
        return feature_map
    if feature_map not in FITS:
        raise ValueError(
            f"feature_map is {feature_map!r}; expected one of {', '.join(FITS)}, "
            "or a function of (queries, keys, heads=...) that returns a map"
        )
    return FITS[feature_map]


def _split(batches: list[Batch], tests: Iterable[Batch] | None) -> tuple[list[Batch], list[Batch]]:
    """Return batches to fit to and batches to measure on."""
    if tests is not None:
        return _some(batches, "calibration_batches"), _some(_checked(tests), "test_batches")
    if len(batches) < 2:
        count = "is 1 batch" if batches else "are no batches"
        raise ValueError(f"there {count}; expected one to fit to and one to measure on, or test_batches")
    kept = max(1, len(batches) // 4)
    return batches[:-kept], batches[-kept:]


def _some(batches: list[Batch], name: str) -> list[Batch]:
    if not batches:
        raise ValueError(f"{name} is empty; expected one batch or more")
    return batches


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw with a seed while the block runs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@torch.no_grad()
def _run(model: PreTrainedModel, batches: Iterable[Batch]) -> list[Tensor]:
    return [first_tensor(run(model, batch)) for batch in batches]


def _compared(received: list[Tensor], expected: list[Tensor], batches: list[Batch]) -> tuple[float, float]:
    """Return the relative error over all batches and the mean cosine of tokens; padding does not count."""
    squares, cosines = torch.zeros(2, dtype=torch.float64), []
    for estimate, exact, batch in zip(received, expected, batches, strict=True):
        mask = None if isinstance(batch, Tensor) else batch.get("attention_mask")
        kept = ... if mask is None or mask.shape != exact.shape[:2] else mask.bool().to(exact.device)
        ours, theirs = (tensor[kept].double().cpu() for tensor in (estimate, exact))
        squares += torch.stack([(ours - theirs).square().sum(), theirs.square().sum()])
        cosines.append(F.cosine_similarity(ours, theirs, dim=-1).flatten())
    return float((squares[0] / squares[1]).sqrt()), float(torch.cat(cosines).mean())

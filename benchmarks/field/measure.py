"""Errors and times of methods on the attention of MiniLM-L6."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import minilm
from benchmarks.field.families import OURS
from benchmarks.field.method import Family, Method
from benchmarks.field.sizes import EXACT, exact, size_by_flops, size_by_time
from benchmarks.minilm import Attention
from benchmarks.timing import best_times
from hrf.advice.errors import relative_errors

__all__ = ["Rows", "add_errors", "add_flops", "add_times", "capture"]

TIMED_LAYER = minilm.N_LAYERS // 2
WINDOW = minilm.MAX_TOKENS
SECONDS = 8.0  # for the times that are reported, per length

# By the name of a method, and by the cost that is equal: ``flops`` or ``time``, or ``fixed`` for methods of one size.
# A row has the size, FLOPs per token, speed (time of exact attention over time of the method), error and cosine.
Rows = dict[str, dict[str, dict[str, Any]]]


@torch.inference_mode()
def capture(model: Any, ids: Tensor) -> list[Attention]:
    """Run the model exactly on passages ``(N, L)``; return queries, keys and values of all layers."""
    layers: list[Attention] = []

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        layers.append(Attention(*(u.contiguous() for u in (q, k, v))))
        return exact(q, k, v)

    with minilm.replaced(model, attend):
        minilm.hidden_states(model, ids)
    return layers


@torch.inference_mode()
def add_flops(everything: Sequence[Family], layers: Sequence[Attention], found: Rows) -> None:
    """Find sizes of equal FLOPs, and FLOPs per token of all methods."""
    shape = _shape(layers[0])
    ours = _ours(everything)
    ours.measure_share(layers)
    for family in everything:
        size = size_by_flops(family, shape, ours.flops(*shape))
        if size is not None:
            method = family.make(size)
            method.measure_share(layers)
            row = _row(found, family.name, "flops" if size else "fixed", size)
            row["flops"] = method.flops(*shape)


@torch.inference_mode()
def add_times(everything: Sequence[Family], layers: Sequence[Attention], found: Rows) -> None:
    """Find sizes of equal time, and time all rows against exact attention in one run."""
    inputs, shape = layers[TIMED_LAYER], _shape(layers[0])
    for family in everything:
        size = size_by_time(family, inputs, TIMED_LAYER, _ours(everything))
        if size:
            _row(found, family.name, "time", size)["flops"] = family.make(size).flops(*shape)
    timed = {(f.name, kind): row for f in everything for kind, row in found.get(f.name, {}).items()}
    makers = {family.name: family.make for family in everything}
    calls = {
        key: partial(makers[key[0]](row["size"]).attend, *inputs, layer=TIMED_LAYER)
        for key, row in timed.items()
    }
    for call in calls.values():
        call()  # fits maps, compiles loops
    seconds = best_times({(EXACT, ""): partial(exact, *inputs)} | calls, budget=SECONDS)
    for key, row in timed.items():
        row["speed"] = seconds[EXACT, ""] / seconds[key]


def _row(found: Rows, name: str, kind: str, size: int) -> dict[str, Any]:
    """Return the row; numbers of another size are dropped."""
    rows = found.setdefault(name, {})
    if rows.get(kind, {}).get("size") != size:
        rows[kind] = {"size": size}
    return rows[kind]


def _shape(inputs: Attention) -> tuple[int, int, int]:
    """Return the length, the width of queries and the width of values."""
    return inputs.queries.shape[-2], inputs.queries.shape[-1], inputs.values.shape[-1]


def _ours(everything: Sequence[Family]) -> Method:
    """Return the method that sets the budget."""
    return next(family for family in everything if family.name == OURS).make(0)


@torch.inference_mode()
def head_error(method: Method, layers: Sequence[Attention]) -> float:
    """Return the median over all heads of ‖Ô − O‖/‖O‖."""
    errors: list[float] = []
    for layer, inputs in enumerate(layers):
        errors += relative_errors(method.attend(*inputs, layer=layer), exact(*inputs)).flatten().tolist()
    return median(errors)


@torch.inference_mode()
def cosines(model: Any, method: Method, batches: Sequence[Tensor], known: Sequence[Tensor]) -> float:
    """Return the mean cosine of `window_means` with the known ones, with the method in all layers."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return method.attend(q, k, v, layer=layer)

    with minilm.replaced(model, attend):
        mine = torch.cat([window_means(model, ids) for ids in batches])
    return float(F.cosine_similarity(mine.double(), torch.cat(list(known)).double(), dim=-1).mean())


def window_means(model: Any, ids: Tensor) -> Tensor:
    """Return the mean of every 512 hidden states: one embedding per passage of 512 tokens, ``(windows, width)``."""
    return minilm.hidden_states(model, ids).unflatten(1, (-1, WINDOW)).mean(2).flatten(0, 1)


def add_errors(
    model: Any,
    everything: Sequence[Family],
    layers: Sequence[Attention],
    batches: Sequence[Tensor],
    found: Rows,
) -> None:
    """Add errors and cosines to all rows."""
    with torch.inference_mode():
        known = [window_means(model, ids) for ids in batches]
    for family in everything:
        for row in found.get(family.name, {}).values():
            method = family.make(row["size"])
            row["error"] = head_error(method, layers)
            row["cosine"] = cosines(model, method, batches, known)

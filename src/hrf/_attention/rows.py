"""Bidirectional attention by rows: an engine gets a few rows at a time, and gets them again in the backward pass.

A row is one head of one sequence. What an engine computes for its rows (codes, clusters, states) never exists for all
of them at once: the backward pass runs it again, this time with a graph, which is pulled back and dropped before the
next rows. Engines treat parts of a long row the same way (``recompute.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from hrf import tuning
from hrf._attention.call import Call, Path
from hrf._attention.denominator import Denominator, per_row, total_moments
from hrf._attention.inputs import Inputs
from hrf._attention.label_blocks import parts
from hrf._attention.quotients import Quotients
from hrf.features.base import FeatureMap
from hrf.numerics import Features

__all__ = ["Stream", "by_rows", "prepare"]

# From queries, keys, values, the map, keys to keep, √scale and whether to add a column of ones, to the sums
# Σ K̂(x, y) v(y): (rows, L, c) for a few rows at a time, or (1, tokens, c) for parts of a long one.
Stream = Callable[..., Iterator[Features]]


def by_rows(stream: Stream) -> Path:
    """Return the path of an engine that streams sums."""
    return Path(prepare, partial(_forward, stream), partial(_backward, stream))


def prepare(inputs: Inputs, feature_map: FeatureMap, rule: Denominator) -> tuple[Call, tuple[Tensor, ...]]:
    """Describe a bidirectional call: every row sees all keys."""
    moments = per_row(inputs, total_moments(inputs, feature_map))
    return Call.of(inputs, moments, feature_map, rule), inputs[:3]


def _forward(
    stream: Stream,
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    saved: list[Tensor | None] | None = None,
) -> tuple[Tensor, ...]:
    out = query.new_empty(*query.shape[:-1], value.shape[-1], dtype=call.dtype)
    small = torch.empty_like(out[..., :1], dtype=torch.bool)
    clipped = torch.empty_like(small)
    for part in parts(query, key, tuning.ROWS_INFERENCE if saved is None else tuning.ROWS_FORWARD):
        own = call.part(part)
        quotients = Quotients(own, query[part], value[part], out[part])
        for sums in stream(*_arguments(own, query[part], key[part], value[part]), ones=True):
            quotients.add(sums)
        small[part], clipped[part] = quotients.small, quotients.clipped
    call.rule.count(small, call.moments[..., :1], clipped)
    if saved is not None:
        saved += [query, key, value, call.moments]
    return (out,)


def _backward(
    stream: Stream, call: Call, saved: Sequence[Tensor], grads: Sequence[Tensor], needed: Sequence[bool]
) -> Sequence[Tensor]:
    query, key, value, moments = saved
    inputs, call = (query, key, value), replace(call, moments=moments)
    found = [torch.zeros_like(t) for t in (*inputs, *call.learned)]
    for part in parts(query, key, tuning.ROWS_BACKWARD):
        some = [t[part].detach().requires_grad_(n) for t, n in zip(inputs, needed, strict=False)]
        with torch.enable_grad():
            own = call.part(part)
            quotients = Quotients(own, some[0], some[2])
            for sums in stream(*_arguments(own, *some), ones=True):
                quotients.add(sums)
            out = quotients.values()
        places = (*(g[part] for g in found[:3]), *found[3:])
        pairs = [p for p in zip((*some, *call.learned), places, strict=True) if p[0].requires_grad]
        wanted = [t for t, _ in pairs]
        pulled = torch.autograd.grad(out, wanted, grads[0][part], materialize_grads=True)
        for (_, place), g in zip(pairs, pulled, strict=True):
            place += g
    return found


def _arguments(
    call: Call, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor, FeatureMap, Tensor | None, float]:
    """Return what a stream takes: checked vectors in the dtype of the computation, zeros where keys are ignored."""
    x, y, v = (tensor.to(call.dtype) for tensor in (query, key, value))
    keep: Tensor | None = None
    if call.ignore is not None:
        keep = ~call.ignore[:, None]
        y, v = (u.masked_fill(~keep.unsqueeze(-1), 0) for u in (y, v))  # NaN there must not count
    call.feature_map.check_values(x, "query")
    call.feature_map.check_values(y, "key")
    return x, y, v, call.feature_map, keep, call.root

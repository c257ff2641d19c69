"""Attention with an angular hybrid by sign codes, exactly: K̂ = λ̂ K̂₁ + (1 − λ̂) K̂₂ (paper, Sec. 2.4).

λ̂ is the share of the n sign bits that differ. The features of the composition lemma are n + 1 times as wide
as the bases'. Instead, the bits are cut into groups, with a state for every code c of a group,

    S_c = Σ_{y of code c} φ(y) v(y)ᵀ,

φ the features of both bases side by side. A query of code c reads Σ_{c'} h(c, c') S_{c'} for the first base,
h the number of bits that differ, and the same with those that agree for the second: one product a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, reduce
from itertools import repeat
from typing import TypeVar

from torch import Tensor

from hrf._attention import loops as numba_loops
from hrf._attention.angular.compiled import Loops
from hrf._attention.angular.engine import Engine, State
from hrf._attention.label_blocks import joined, nothing, with_ones
from hrf._attention.recompute import again
from hrf.features.base import Features
from hrf.features.coefficients import Angular
from hrf.features.exponential import Exponential
from hrf.features.hybrid import Hybrid

__all__ = ["serves", "stream", "sums"]

_TOKENS = 1 << 15, 1 << 14  # at a time, without and with a graph

Result = TypeVar("Result")


def serves(feature_map: object) -> bool:
    """Whether `sums` is for this map: two isotropic exponential bases and an angular coefficient."""
    return (
        isinstance(feature_map, Hybrid)
        and len(feature_map.bases) == 2
        and all(isinstance(base, Exponential) and base.isotropic for base in feature_map.bases)
        and isinstance(feature_map.coefficients[0], Angular)
    )


def stream(
    x: Tensor,
    y: Tensor,
    values: Tensor,
    feature_map: Hybrid,
    keep: Tensor | None = None,
    root: float = 1,
    *,
    ones: bool = False,
) -> Iterator[Features]:
    """Σ_y K̂(x, y) v(y), over the keys to keep, for some queries after others.

    ``(rows, L, c)`` for some of all rows, or ``(1, tokens, c)`` for some queries of a long one.

    Args:
        x: queries ``(..., H, L, d)``, checked.
        y: keys ``(..., H, S, d)``.
        values: ``(..., H, S, c)``.
        feature_map: one that this engine `serves`.
        keep: booleans that broadcast to ``(..., H, S)``; ``None`` keeps all.
        root: what multiplies queries and keys.
        ones: add a column of ones to the values.
    """
    if not (x.numel() and y.numel()):
        yield nothing(x, y, with_ones(values) if ones else values)
        return
    if keep is not None:
        keep = keep.expand(y.shape[:-1]).flatten(0, -2)
    watched = any(feature_map.needs_graph(u) for u in (x, y, values))
    tokens = _TOKENS[watched]
    engine = Engine(
        feature_map, x, min(y.shape[-2], tokens), values.shape[-1] + ones, root, in_place=not watched
    )
    fast = not watched and numba_loops.serves(x, y, values)
    loops = Loops(engine.bases, engine.omega, engine.n, y.shape[-2], root, ones=ones) if fast else None
    x, y, values = (u.flatten(0, -3) for u in (x, y, values))
    length = max(x.shape[1], y.shape[1])
    learned = [engine.omega] if engine.omega.requires_grad else []
    run = partial(again, learned=learned) if watched and length > tokens else _run
    step = max(1, tokens // length)
    for start in range(0, len(x), step):
        rows = slice(start, start + step)
        some = x[rows], y[rows], values[rows], None if keep is None else keep[rows]
        if loops and (found := loops.sums(rows, *some)):
            yield found
            continue
        loops = None  # other rows will be like these
        queries, keys, seen = (t.split(tokens, 1) for t in some[:3])
        masks = repeat(None) if some[3] is None else some[3].split(tokens, 1)
        write = partial(engine.write, rows)
        states = (State(*run(write, *part)) for part in zip(keys, seen, masks, strict=False))
        state = reduce(partial(State.plus, widths=engine.widths), states)
        read = partial(engine.read, rows, state)
        for part in queries:
            yield Features(*run(read, part, state.sums))


def sums(x: Tensor, y: Tensor, values: Tensor, feature_map: Hybrid, keep: Tensor | None = None) -> Features:
    """What `stream` gives, for all queries at once: ``(..., H, L, c)``."""
    return joined(stream(x, y, values, feature_map, keep), x)


def _run(function: Callable[..., Result], *tensors: Tensor | None) -> Result:
    """What `again` gives, at once."""
    return function(*tensors)

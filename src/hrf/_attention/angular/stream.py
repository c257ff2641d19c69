"""Attention with an angular hybrid by sign codes, exactly: K̂ = λ̂ K̂₁ + (1 − λ̂) K̂₂ (paper, Sec. 2.4).

λ̂ is the share of the n sign bits that differ. The features of the composition lemma are n + 1 times as wide
as the bases'. Instead, the bits are cut into groups, with a state for every code c of a group,

    S_c = Σ_{y of code c} φ(y) v(y)ᵀ,

φ the features of both bases side by side. A query of code c reads Σ_{c'} h(c, c') S_{c'} for the first base,
h the number of bits that differ, and the same with those that agree for the second: one product per group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from typing import TypeVar

from torch import Tensor

from hrf import tuning
from hrf._attention import loops
from hrf._attention.angular.compiled import CompiledCodes
from hrf._attention.angular.engine import CodeEngine, CodeState
from hrf._attention.label_blocks import joined, nothing, with_ones
from hrf._attention.recompute import recompute
from hrf.features.coefficients import Angular
from hrf.features.exponential import Exponential
from hrf.features.hybrid import Hybrid
from hrf.numerics import Features

__all__ = ["serves", "stream", "sums"]

Result = TypeVar("Result")


def serves(feature_map: object) -> bool:
    """Return whether the map has two isotropic exponential bases and an angular coefficient."""
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
    """Yield Σ_y K̂(x, y) v(y) over the keys to keep, block by block of queries.

    A block is ``(rows, L, c)``, several rows, or ``(1, tokens, c)``, part of a long row.

    Args:
        x: queries ``(..., H, L, d)``, checked.
        y: keys ``(..., H, S, d)``.
        values: ``(..., H, S, c)``.
        feature_map: one that this engine `serves`.
        keep: booleans that broadcast to ``(..., H, S)``; ``None`` keeps all.
        root: √scale, which multiplies queries and keys.
        ones: add a column of ones to the values.
    """
    if not (x.numel() and y.numel()):
        yield nothing(x, y, with_ones(values) if ones else values)
        return
    if keep is not None:
        keep = keep.expand(y.shape[:-1]).flatten(0, -2)
    traced = any(feature_map.needs_graph(u) for u in (x, y, values))
    tokens = tuning.ANGULAR_GRAPH_TOKENS if traced else tuning.ANGULAR_TOKENS
    length, columns = min(y.shape[-2], tokens), values.shape[-1] + ones
    engine = CodeEngine(feature_map, x, length, columns, root, in_place=not traced)
    compiled: CompiledCodes | None = None
    if not traced and loops.serves(x, y, values):
        compiled = CompiledCodes(engine.bases, engine.omega, engine.n, y.shape[-2], root, ones=ones)
    x, y, values = (u.flatten(0, -3) for u in (x, y, values))
    length = max(x.shape[1], y.shape[1])
    learned = [engine.omega] if engine.omega.requires_grad else []
    run = partial(recompute, learned=learned) if traced and length > tokens else _run
    step = max(1, tokens // length)
    for start in range(0, len(x), step):
        rows = slice(start, start + step)
        some = x[rows], y[rows], values[rows], None if keep is None else keep[rows]
        if compiled and (found := compiled.sums(rows, *some)):
            yield found
            continue
        compiled = None  # other rows will be like these
        queries, keys, seen = (t.split(tokens, 1) for t in some[:3])
        masks = repeat(None) if some[3] is None else some[3].split(tokens, 1)
        state: CodeState | None = None
        for part in zip(keys, seen, masks, strict=False):
            new = CodeState(*run(partial(engine.write, rows), *part))
            state = new if state is None else state.plus(new, engine.widths)
        assert state is not None
        for q in queries:
            yield Features(*run(partial(engine.read, rows, state), q, state.sums))


def sums(x: Tensor, y: Tensor, values: Tensor, feature_map: Hybrid, keep: Tensor | None = None) -> Features:
    """Return what `stream` yields, for all queries at once: ``(..., H, L, c)``."""
    return joined(stream(x, y, values, feature_map, keep), x)


def _run(function: Callable[..., Result], *tensors: Tensor | None) -> Result:
    """Call a function at once; the twin of `recompute`."""
    return function(*tensors)

"""Outputs moved into the box of the values that they see, row by row; the twin is ``visible.bounded``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrf._attention.loops.jit import jit

__all__ = ["clip_rows"]

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]


@jit
def _see(value: Floats, total: Floats, low: Floats, high: Floats) -> None:
    """Add a value, whose last number is 1, to the sums and the box."""
    total[-1] += value[-1]
    for j in range(len(low)):
        total[j] += value[j]
        low[j] = min(low[j], value[j])
        high[j] = max(high[j], value[j])


@jit
def _average(row: Floats, total: Floats) -> None:
    """Write the mean of the values seen."""
    count = max(total[-1], 1)
    for j in range(len(row)):
        row[j] = total[j] / count


@jit
def _clip(row: Floats, low: Floats, high: Floats, rounding: float) -> int:
    """Move a row into the box; return how many numbers moved by more than rounding."""
    moved = 0
    for j in range(len(row)):
        inside = min(max(row[j], low[j]), high[j])
        moved += abs(row[j] - inside) > rounding * max(-low[j], high[j])
        row[j] = inside
    return moved


@jit
def _clip_and_mark(row: Floats, low: Floats, high: Floats, rounding: float, moved: Bools) -> None:
    """Move a row into the box and mark the numbers that moved by more than rounding."""
    for j in range(len(row)):
        inside = min(max(row[j], low[j]), high[j])
        moved[j] = abs(row[j] - inside) > rounding * max(-low[j], high[j])
        row[j] = inside


@jit
def clip_rows(
    out: Floats,
    small: Bools,
    total: Floats,
    low: Floats,
    high: Floats,
    values: Floats,
    groups: int,
    rounding: float,
    clipped: Bools,
    moved: Bools,
) -> None:
    """Replace rows whose denominator is too small by the mean, and move all others into the box, in place.

    Args:
        out: quotients, ``(rows, d_v)``.
        small: rows whose denominator is too small.
        total: sums of the values seen before, and their number; written to where there are ``values``.
        low: coordinate-wise minimum, likewise.
        high: coordinate-wise maximum, likewise.
        values: of the keys that rows see one after the other, ``(keys, d_v + 1)``, last 1, or 0 to ignore a key; none
            if all rows see the same.
        groups: rows per key.
        rounding: moves of at most this share of the largest magnitude in the box are not marked.
        clipped: rows with a number that moved; written.
        moved: which numbers moved, ``(rows, d_v)``; written unless it has no rows.
    """
    for i in range(len(out)):
        if len(values) and i % groups == 0 and values[i // groups, -1] != 0:
            _see(values[i // groups], total, low, high)
        if small[i]:
            _average(out[i], total)
        elif len(moved):
            _clip_and_mark(out[i], low, high, rounding, moved[i])
            clipped[i] = moved[i].any()
        else:
            clipped[i] = _clip(out[i], low, high, rounding) > 0

"""What loops do to a row of numbers: in functions of their own, compilers turn them into vectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrf.compiled.jit import jit

__all__ = ["add", "clear", "copy", "scale"]

Row = NDArray[np.floating]


@jit
def clear(row: Row) -> None:
    """Zeros."""
    for j in range(len(row)):
        row[j] = 0


@jit
def copy(row: Row, to: Row) -> None:
    """Copy the beginning of a row, or all of it."""
    for j in range(min(len(row), len(to))):
        to[j] = row[j]


@jit
def scale(row: Row, factor: float) -> None:
    """Multiply by a number."""
    for j in range(len(row)):
        row[j] *= factor


@jit
def add(one: Row, other: Row, out: Row) -> None:
    """The sum of two rows."""
    for j in range(len(out)):
        out[j] = one[j] + other[j]

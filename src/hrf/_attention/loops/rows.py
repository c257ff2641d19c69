"""Operations on a row of numbers: in functions of their own, the compiler vectorises them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrf._attention.loops.jit import jit

__all__ = [
    "add",
    "add_scaled",
    "clear",
    "copy",
    "decrease",
    "dot",
    "dot_difference",
    "fill",
    "increase",
    "scale",
    "scaled",
]

Row = NDArray[np.floating]


@jit
def clear(row: Row) -> None:
    """Set to zero."""
    for j in range(len(row)):
        row[j] = 0


@jit
def fill(row: Row, number: float) -> None:
    """Set all numbers to one."""
    for j in range(len(row)):
        row[j] = number


@jit
def copy(row: Row, to: Row) -> None:
    """Copy as many numbers as both rows hold."""
    for j in range(min(len(row), len(to))):
        to[j] = row[j]


@jit
def scale(row: Row, factor: float) -> None:
    """Multiply by a number."""
    for j in range(len(row)):
        row[j] *= factor


@jit
def add(one: Row, other: Row, out: Row) -> None:
    """Write the sum of two rows to ``out``."""
    for j in range(len(out)):
        out[j] = one[j] + other[j]


@jit
def scaled(row: Row, factor: float, out: Row) -> None:
    """Write a row times a number to ``out``."""
    for j in range(len(row)):
        out[j] = row[j] * factor


@jit
def increase(total: Row, row: Row) -> None:
    """Add a row in place."""
    for j in range(len(total)):
        total[j] += row[j]


@jit
def decrease(total: Row, row: Row) -> None:
    """Subtract a row in place."""
    for j in range(len(total)):
        total[j] -= row[j]


@jit
def add_scaled(total: Row, row: Row, factor: float) -> None:
    """Add a row times a number in place."""
    for j in range(len(total)):
        total[j] += factor * row[j]


@jit
def dot(row: Row, other: Row) -> float:
    """Return the dot product of two rows."""
    total = row[0] * other[0]
    for j in range(1, len(row)):
        total += row[j] * other[j]
    return total


@jit
def dot_difference(row: Row, one: Row, other: Row) -> float:
    """Return the dot product of a row with the difference of two others."""
    total = row[0] * (one[0] - other[0])
    for j in range(1, len(row)):
        total += row[j] * (one[j] - other[j])
    return total

"""Balanced trees in compiled loops: vectors in equal parts, near each other, as in ``summarised/plan.py``.

Directions come from a sample of each part, and a part is cut at its median up to the width of a histogram's bin: parts
are as even as the exact ones, and in which of two neighbours a vector near a border goes makes no difference.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrf._attention.loops.jit import jit
from hrf._attention.loops.products import add_product_transposed, add_row_product
from hrf._attention.loops.rows import clear, copy, decrease, dot, increase, scale

__all__ = ["balanced"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]

_SAMPLE = 64  # vectors that a direction is found from
_ITERATIONS = 6  # of the power method, an even number
_BINS = 256
_SPREADS = np.float32(3)  # standard deviations on both sides that bins cover
_TINY = np.float32(1e-30)


@jit
def balanced(u: Array, spare: Array, levels: int, order: Integers, bounds: Integers) -> None:
    """Cut the rows of u into 2^levels parts: part p is ``order[bounds[p] : bounds[p + 1]]``.

    Args:
        u: vectors ``(n, d)``; overwritten.
        spare: a buffer of the same shape; overwritten.
        levels: of the tree.
        order: rows, ``(n,)``; written.
        bounds: ``(2^levels + 1,)``; written.
    """
    n, dim = u.shape
    own, spare_order, bins = order, np.empty_like(order), np.empty(n, np.int32)
    sample, direction, mean = (
        np.empty((_SAMPLE, dim), u.dtype),
        np.empty(dim, u.dtype),
        np.empty(dim, u.dtype),
    )
    matrix, image, counts = np.empty((dim, dim), u.dtype), np.empty(dim, u.dtype), np.empty(_BINS, np.int64)
    for j in range(n):
        own[j] = j
    for level in range(levels):
        for part in range(1 << level):
            first, last = (part * n) >> level, ((part + 1) * n) >> level
            middle = ((2 * part + 1) * n) >> (level + 1)
            base, spread = _direction(u[first:last], sample, matrix, direction, image, mean)
            _find_bins(u[first:last], direction, base, _BINS / (2 * _SPREADS) / spread, bins)
            _cut(u, own, first, middle, last, bins, counts, spare, spare_order)
        u, spare, own, spare_order = spare, u, spare_order, own
    if levels % 2:
        order[:] = own
    for part in range((1 << levels) + 1):
        bounds[part] = (part * n) >> levels


@jit
def _direction(
    u: Array, sample: Array, matrix: Array, direction: Array, image: Array, mean: Array
) -> tuple[float, float]:
    """Write the top principal direction of some rows; return mean and standard deviation along it."""
    n = min(len(u), _SAMPLE)
    if n == 0:
        return np.float32(0), np.float32(1)
    clear(mean)
    for i in range(n):
        copy(u[i * len(u) // n], sample[i])
        increase(mean, sample[i])
    scale(mean, np.float32(1) / n)
    for i in range(n):
        decrease(sample[i], mean)
    clear(matrix.reshape(-1))
    add_product_transposed(matrix, sample[:n], sample[:n])
    longest, trace = 0, _TINY
    for k in range(len(matrix)):
        trace += matrix[k, k]
        if matrix[k, k] > matrix[longest, longest]:
            longest = k
    # With a trace of 1, powers neither overflow nor, with the largest eigenvalue at 1/d or more, underflow.
    scale(matrix.reshape(-1), 1 / trace)
    copy(matrix[longest], direction)
    scale(direction, 1 / max(np.sqrt(dot(direction, direction)), _TINY))
    for _ in range(_ITERATIONS // 2):
        clear(image)
        add_row_product(image.reshape(1, -1), direction.reshape(1, -1), matrix)
        clear(direction)
        add_row_product(direction.reshape(1, -1), image.reshape(1, -1), matrix)
    scale(direction, 1 / max(np.sqrt(dot(direction, direction)), _TINY))
    clear(image)
    add_row_product(image.reshape(1, -1), direction.reshape(1, -1), matrix)
    variance = dot(image, direction) * trace / n
    return dot(direction, mean), max(np.sqrt(variance), _TINY)


@jit
def _find_bins(u: Array, direction: Array, base: float, factor: float, bins: NDArray[np.int32]) -> None:
    for j in range(len(u)):
        place = (dot(u[j], direction) - base) * factor + np.float32(_BINS // 2)
        # In this order, so that NaN is bin 0: no vector may have a bin that does not exist.
        inside = place if place > 0 else np.float32(0)
        bins[j] = np.int32(inside if inside < _BINS - 1 else np.float32(_BINS - 1))


@jit
def _cut(
    u: Array,
    order: Integers,
    first: int,
    middle: int,
    last: int,
    bins: NDArray[np.int32],
    counts: Integers,
    to_rows: Array,
    to_order: Integers,
) -> None:
    """Write rows with the lower bins from ``first`` on, up to ``middle``, and the others from there on."""
    counts[:] = 0
    for j in range(last - first):
        counts[bins[j]] += 1
    of_border, border = middle - first, 0
    while of_border > counts[border]:
        of_border -= counts[border]
        border += 1
    left, right = first, middle
    for j in range(last - first):
        goes_left = bins[j] < border
        if bins[j] == border and of_border > 0:
            of_border -= 1
            goes_left = True
        to = left if goes_left else right
        left, right = left + goes_left, right + (not goes_left)
        to_order[to] = order[first + j]
        copy(u[first + j], to_rows[to])

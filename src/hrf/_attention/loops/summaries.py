"""Summaries of all clusters for some groups of queries, and the keys that each group meets exactly, in compiled loops.

The formulas are those of ``summarised/plan.py`` and ``summarised/read.py``, with powers of 2. Tiles have a row per key
and a column per group.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hrf._attention.loops.functions import exp2
from hrf._attention.loops.jit import jit
from hrf._attention.loops.products import ROWS, add_product, add_product_transposed
from hrf._attention.loops.rows import clear, copy, decrease, dot, scale
from hrf._attention.loops.tiles import LARGEST, exponentials, lowest_bit, maxima, tilt

__all__ = ["GROUPS", "LOG2E", "LOWEST", "summarise", "weigh"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]
Places = NDArray[np.int32]

GROUPS = 64  # groups at a time
LOG2E = np.float32(math.log2(math.e))
LOWEST = np.float32(-1e30)  # finite, so that differences of scales are never NaN

_LARGEST = np.float32(LARGEST)
_HALF = np.float32(math.log2(math.e) / 2)
_TINY = np.float32(1e-30)


@jit
def weigh(rows: Array, bounds: Integers, means: Array, tile: Array, tops: Array, totals: Array) -> None:
    """Write the weights 2^(s − top) of all keys for the means of some groups.

    Args:
        rows: keys and values by cluster, ``(n + ROWS or more, d + d_v)``.
        bounds: of the clusters.
        means: rᵢ log₂ e, transposed, ``(d, GROUPS)``.
        tile: weights, ``(n + ROWS or more, GROUPS)``; written.
        tops: largest s of each cluster, ``(C, GROUPS)``; written.
        totals: Z = log₂ of the sum of 2^s over all keys, ``(GROUPS,)``; written.
    """
    sums = np.zeros(tops.shape, tops.dtype)
    tops[:] = LOWEST
    for c in range(len(tops)):
        first, n = bounds[c], bounds[c + 1] - bounds[c]
        some = tile[first : first + n + -n % ROWS]
        clear(some.reshape(-1))
        add_product(some, rows[first : first + len(some)], means)
        maxima(some, n, tops[c])
        exponentials(some, n, tops[c], sums[c])
    for i in range(len(totals)):
        top, total = tops[:, i].max(), np.float32(0)
        for c in range(len(tops)):
            total += sums[c, i] * exp2(max(tops[c, i] - top, LOWEST))
        totals[i] = top + np.float32(math.log2(max(total, _TINY)))


@jit
def summarise(
    rows: Array,
    bounds: Integers,
    centres: Array,
    spreads: Array,
    metric: Array,
    widths: Array,
    bound: float,
    tile: Array,
    tops: Array,
    totals: Array,
    summaries: Array,
    log_masses: Array,
    lists: Places,
    sizes: Integers,
    missed: Array,
) -> None:
    """Choose the keys that each group meets exactly, and sum up the others by cluster.

    Args:
        rows: keys and values by cluster.
        bounds: of the clusters.
        centres: ȳ of each cluster, ``(C, d)``.
        spreads: d² of each key.
        metric: Σ_δ.
        widths: γ of the groups, ``(GROUPS,)``.
        bound: log₂ of the largest share of the mass times relative error that a summary may have per key.
        tile: of `weigh`.
        tops: of `weigh`.
        totals: of `weigh`.
        summaries: μ and V, ``(C, GROUPS, d + d_v)``; written, as is all that follows.
        log_masses: log₂ A, ``(C, GROUPS)``.
        lists: rows of the exact keys, ``(GROUPS, n or more)``.
        sizes: number of exact keys, ``(GROUPS,)``.
        missed: sum of (share of the mass)² expm1(γd²) over the other keys, ``(GROUPS,)``.
    """
    dim, n_groups = metric.shape[0], len(widths)
    largest = 0
    for c in range(len(tops)):
        largest = max(largest, bounds[c + 1] - bounds[c])
    tilted = np.zeros((largest + ROWS, n_groups), tile.dtype)
    limits = np.empty(n_groups, tile.dtype)
    masses, errors = np.empty(n_groups, tile.dtype), np.empty(n_groups, tile.dtype)
    offset, image = np.empty((n_groups, dim), tile.dtype), np.empty((n_groups, dim), tile.dtype)
    sizes[:], missed[:] = 0, 0
    for c in range(len(tops)):
        first, n = bounds[c], bounds[c + 1] - bounds[c]
        for i in range(n_groups):
            limits[i] = exp2(min(max(2 * (bound + totals[i] - tops[c, i]), np.float32(-126)), np.float32(126)))
        clear(masses)
        clear(errors)
        for j in range(n):
            row = first + j
            spread = spreads[row] * _HALF
            _tilt(tile[row], spread, widths, limits, tilted[j], masses, errors, row, lists, sizes)
        some = tilted[: n + -n % ROWS]
        clear(some[n:].reshape(-1))
        found = summaries[c]
        clear(found.reshape(-1))
        add_product_transposed(found, some, rows[first : first + len(some)])
        clear(image.reshape(-1))
        for i in range(n_groups):
            scale(found[i], np.float32(1) / max(masses[i], _TINY))
            copy(found[i], offset[i])
            decrease(offset[i], centres[c])
        add_product(image, offset, metric)
        for i in range(n_groups):
            shift = min(_HALF * widths[i] * dot(image[i], offset[i]), _LARGEST)
            log_masses[c, i] = LOWEST
            if masses[i] > 0:
                log_masses[c, i] = np.float32(math.log2(masses[i])) + tops[c, i] - shift
            missed[i] += errors[i] * exp2(max(2 * (tops[c, i] - totals[i]), np.float32(-126)))


@jit
def _tilt(
    weights: Array,
    spread: float,
    widths: Array,
    limits: Array,
    out: Array,
    masses: Array,
    errors: Array,
    row: int,
    lists: Places,
    sizes: Integers,
) -> None:
    """Write W̃ of a key, add up, and list the key for the groups that have to meet it exactly."""
    for start in range(0, len(out), 32):
        bits = tilt(weights, spread, widths, limits, out, masses, errors, start)
        while bits != 0:
            i = start + lowest_bit(bits)
            lists[i, sizes[i]] = row
            sizes[i] += 1
            bits &= bits - np.uint32(1)

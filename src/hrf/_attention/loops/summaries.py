"""Summaries of all clusters for some groups of queries, and the keys that each group meets exactly, in compiled loops.

The formulas are those of ``summarised/plan.py`` and ``summarised/read.py``, with powers of 2. Tiles have a row per key
and a column per group.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hrf._attention.loops import tiles
from hrf._attention.loops.functions import exp2
from hrf._attention.loops.jit import jit
from hrf._attention.loops.products import ROWS, add_product, add_product_transposed
from hrf._attention.loops.rows import add_scaled, clear, copy, dot, dot_difference, fill, scaled
from hrf._attention.loops.tiles import exponentials, lowest_bit, maxima, tilt, total_exponentials

__all__ = ["GROUPS", "LOG2E", "LOWEST", "score", "summarise"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]
Places = NDArray[np.int32]

GROUPS = 32  # groups at a time, whose scores and summaries stay in the cache
LOG2E = np.float32(math.log2(math.e))
LOWEST = np.float32(tiles.LOWEST)

_LARGEST = np.float32(tiles.LARGEST)
_NONE = np.float32(0.1 * tiles.LOWEST)  # largest of no keys
_HALF = np.float32(math.log2(math.e) / 2)
_TINY = np.float32(1e-30)


@jit
def score(rows: Array, bounds: Integers, means: Array, tile: Array, totals: Array) -> None:
    """Write the scores of all keys for the means of some groups.

    Args:
        rows: keys first in each row, by cluster, ``(n + ROWS or more, d or more)``.
        bounds: of the clusters.
        means: rᵢ log₂ e, transposed, ``(d, GROUPS)``.
        tile: scores s, ``(n + ROWS or more, GROUPS)``; written.
        totals: Z = log₂ of the sum of 2^s over all keys, ``(GROUPS,)``; written.
    """
    top, own_top, sums = np.full(GROUPS, LOWEST), np.empty(GROUPS, tile.dtype), np.zeros(GROUPS, tile.dtype)
    for c in range(len(bounds) - 1):
        first, n = bounds[c], bounds[c + 1] - bounds[c]
        some = tile[first : first + n + -n % ROWS]
        clear(some.reshape(-1))
        add_product(some, rows[first : first + len(some)], means)
        copy(top, own_top)
        maxima(some, n, top)
        for i in range(GROUPS):
            sums[i] *= exp2(max(own_top[i] - top[i], np.float32(-127)))
        total_exponentials(some, n, top, sums)
    for i in range(GROUPS):
        totals[i] = top[i] + np.float32(math.log2(max(sums[i], _TINY)))


@jit
def summarise(
    rows: Array,
    images: Array,
    bounds: Integers,
    centres: Array,
    spreads: Array,
    metric: Array,
    means: Array,
    widths: Array,
    limits: Array,
    tile: Array,
    summaries: Array,
    biases: Array,
    lists: Places,
    firsts: Integers,
    sizes: Integers,
) -> None:
    """Choose the keys that each group meets exactly, and sum up the others by cluster.

    Args:
        rows: keys and values by cluster, ``(n + ROWS or more, d + d_v)``.
        images: Σ_δ(y − ȳ) of each row, or no rows; with fewer keys per cluster than d, their sums cost less.
        bounds: of the clusters.
        centres: ȳ of each cluster, ``(C, d)``.
        spreads: d² log₂ e / 2 and log₂ √d² of each key, ``(n or more, 2)``.
        metric: Σ_δ.
        means: rᵢ log₂ e, ``(GROUPS, d)``.
        widths: γ of the groups, ``(GROUPS,)``.
        limits: log₂ of the largest mass times relative error that a summary may have per key, ``(GROUPS,)``.
        tile: of `score`.
        summaries: μ and V, ``(GROUPS, C, d + d_v)``; written, as is all that follows.
        biases: log₂ A − rᵀμ log₂ e, ``(GROUPS, C)``; about `LOWEST` where all keys are exact.
        lists: rows of the exact keys, ``(GROUPS, n + ROWS or more)``, and some row at `ROWS` further places.
        firsts: the place in the list from which on exact keys belong to each cluster, ``(GROUPS, C + 1)``.
        sizes: number of exact keys, ``(GROUPS,)``.
    """
    dim, largest = centres.shape[1], 0
    for c in range(len(centres)):
        largest = max(largest, bounds[c + 1] - bounds[c])
    tilted, log_widths = np.zeros((largest + ROWS, GROUPS), tile.dtype), np.empty(GROUPS, tile.dtype)
    masses, tops = np.empty(GROUPS, tile.dtype), np.empty(GROUPS, tile.dtype)
    found, image = np.empty((GROUPS, rows.shape[1]), tile.dtype), np.empty((GROUPS, dim), tile.dtype)
    for i in range(GROUPS):
        log_widths[i] = np.float32(0.5 * math.log2(widths[i]))
    sizes[:] = 0
    for c in range(len(centres)):
        first, n = bounds[c], bounds[c + 1] - bounds[c]
        firsts[:, c] = sizes
        fill(tops, _NONE)
        for j in range(n):
            _tilt(
                tile[first + j],
                spreads[first + j],
                widths,
                log_widths,
                limits,
                tilted[j],
                tops,
                first + j,
                lists,
                sizes,
            )
        clear(masses)
        exponentials(tilted, n, tops, masses)
        some = tilted[: n + -n % ROWS]
        clear(some[n:].reshape(-1))
        clear(found.reshape(-1))
        add_product_transposed(found, some, rows[first : first + len(some)])
        for i in range(GROUPS):
            scaled(found[i], np.float32(1) / max(masses[i], _TINY), summaries[i, c])
        clear(image.reshape(-1))
        if len(images):
            add_product_transposed(image, some, images[first : first + len(some)])
        else:
            for i in range(GROUPS):
                add_scaled(found[i, :dim], centres[c], -masses[i])
            add_product(image, found, metric)
        for i in range(GROUPS):
            biases[i, c] = LOWEST
            if tops[i] > _NONE:
                # (μ − ȳ)ᵀ Σ_δ (μ − ȳ)
                spread = dot_difference(image[i], summaries[i, c], centres[c]) / max(masses[i], _TINY)
                shift = min(_HALF * widths[i] * spread, _LARGEST)
                log_mass = np.float32(math.log2(masses[i])) + tops[i] - shift
                biases[i, c] = log_mass - dot(means[i], summaries[i, c])
    firsts[:, len(centres)] = sizes
    for i in range(GROUPS):
        lists[i, sizes[i] : sizes[i] + ROWS] = 0


@jit
def _tilt(
    scores: Array,
    spread: Array,
    widths: Array,
    log_widths: Array,
    limits: Array,
    out: Array,
    tops: Array,
    row: int,
    lists: Places,
    sizes: Integers,
) -> None:
    """Write log₂ W̃ of a key, and list the key for the groups that meet it exactly."""
    for start in range(0, GROUPS, 32):
        bits = tilt(scores, spread[0], spread[1], widths, log_widths, limits, out, tops, start)
        while bits != 0:
            i = start + lowest_bit(bits)
            lists[i, sizes[i]] = row
            sizes[i] += 1
            bits &= bits - np.uint32(1)

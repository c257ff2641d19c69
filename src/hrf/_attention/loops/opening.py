"""Clusters that a single query opens in compiled loops: it meets their keys one by one, instead of a summary.

The rule is that of ``summarised/read.py``. Tiles have a row per cluster and a column per query of a group.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hrf._attention.loops.functions import exp2
from hrf._attention.loops.jit import jit
from hrf._attention.loops.rows import add_scaled, clear, dot, increase, scale
from hrf._attention.loops.summaries import LOG2E

__all__ = ["ROOM", "OpenableClusters", "QuerySums", "find_opened", "open_clusters"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]
Places = NDArray[np.int32]

ROOM = np.float32(24)  # weights up to 2^24 are not rescaled
_LARGEST = np.float32(20)  # of γd², as in summarised/read.py
_TINY = np.float32(1e-30)


class OpenableClusters(NamedTuple):
    """Clusters of a head, and the keys that one group meets exactly.

    Attributes:
        keys: keys and values by cluster, ``(·, d + d_v)``.
        bounds: first row of each cluster, ``(C + 1,)``.
        spreads: mean of d² over each cluster, ``(C,)``.
        exact: rows of the exact keys, ascending.
        firsts: the place in ``exact`` from which on keys belong to each cluster, ``(C + 1,)``.
    """

    keys: Array
    bounds: Integers
    spreads: Array
    exact: Places
    firsts: Integers


class QuerySums(NamedTuple):
    """Sums of the queries of a group.

    Attributes:
        totals: Σ w v of single keys, ``(columns, d_v)``.
        masses: Σ w of single keys, ``(columns,)``.
        read: Σ w of summaries, ``(columns,)``.
        tops: the scale of all of them, log₂.
    """

    totals: Array
    masses: Array
    read: Array
    tops: Array


@jit
def find_opened(
    weights: Array, sums: QuerySums, widths: Array, spreads: Array, limit: float, least: Array, hits: Places
) -> int:
    """List the clusters that queries open, where weight · √expm1(γd²) is ``limit`` times the query's mass or more.

    Args:
        weights: of the summaries, ``(C, columns)``.
        sums: of the queries.
        widths: γ of each query, ``(queries,)``.
        spreads: mean of d² over each cluster, ``(C,)``.
        limit: of the head.
        least: scratch, ``(columns,)``.
        hits: cluster and query of each hit; written.

    Returns:
        The number of hits.
    """
    widest, count = spreads.max(), 0
    least[:] = np.inf
    for i in range(len(widths)):
        mass = limit * (sums.masses[i] + sums.read[i])
        least[i] = max(mass / _deviation(widths[i] * widest), _TINY)
    for c in range(len(weights)):
        if not _any(weights[c], least):
            continue
        for i in range(len(widths)):
            if weights[c, i] < least[i]:
                continue
            mass = limit * (sums.masses[i] + sums.read[i])
            if weights[c, i] * _deviation(widths[i] * spreads[c]) >= mass:
                hits[count, 0], hits[count, 1] = c, i
                count += 1
    return count


@jit
def _any(row: Array, least: Array) -> bool:
    found = False
    for i in range(len(row)):
        found |= row[i] >= least[i]
    return found


@jit
def _deviation(variance: float) -> float:
    """Return √expm1(γd²), the relative standard deviation of a log-normal weight."""
    return np.float32(math.sqrt(math.expm1(min(variance, _LARGEST))))


@jit
def open_clusters(x: Array, clusters: OpenableClusters, weights: Array, sums: QuerySums, hits: Places) -> int:
    """Replace summaries by their keys, for all ``hits``; return how many keys the queries meet."""
    if len(hits) == 0:
        return 0
    for hit in range(len(hits)):
        weights[hits[hit, 0], hits[hit, 1]] = 0
    # Summed anew: a difference could lose all digits.
    clear(sums.read)
    for c in range(len(weights)):
        increase(sums.read, weights[c])
    met, keys = 0, clusters.keys
    for hit in range(len(hits)):
        c, i = hits[hit, 0], hits[hit, 1]
        place, last = clusters.firsts[c], clusters.firsts[c + 1]
        for row in range(clusters.bounds[c], clusters.bounds[c + 1]):
            if place < last and clusters.exact[place] == row:
                place += 1
                continue
            t = LOG2E * dot(x[i], keys[row]) - sums.tops[i]
            if t > ROOM:
                _raise_scale(weights, sums, i, t)
                t = np.float32(0)
            weight = exp2(t)
            sums.masses[i] += weight
            add_scaled(sums.totals[i], keys[row, x.shape[1] :], weight)
            met += 1
    return met


@jit
def _raise_scale(weights: Array, sums: QuerySums, i: int, step: float) -> None:
    """Raise the scale of query i by log₂ ``step``."""
    factor = exp2(-min(step, np.float32(127)))
    sums.tops[i] += step
    sums.masses[i] *= factor
    sums.read[i] *= factor
    scale(sums.totals[i], factor)
    for c in range(len(weights)):
        weights[c, i] *= factor

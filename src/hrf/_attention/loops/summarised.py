"""Outputs of summarised attention in compiled loops: each group reads its exact keys and the summaries of all clusters.

Both are rows of one softmax, whose weights are 2^(bias + xᵀk): an exact key has the bias 0, a summary log₂ A − rᵀμ.
Then single queries open the clusters whose summaries would be too wrong for them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hrf import tuning
from hrf._attention.loops.functions import exp2
from hrf._attention.loops.jit import jit
from hrf._attention.loops.opening import ROOM, OpenableClusters, QuerySums, find_opened, open_clusters
from hrf._attention.loops.products import ROWS, add_product, add_product_transposed
from hrf._attention.loops.rows import clear, copy, fill, scale, scaled
from hrf._attention.loops.summaries import GROUPS, LOG2E, LOWEST, score, summarise
from hrf._attention.loops.tiles import exponentials, maxima

__all__ = ["attend"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]
Places = NDArray[np.int32]

_SOME = tuning.LOOP_KEYS


@jit
def attend(
    jobs: Integers,
    queries: Array,
    order: Integers,
    bounds: Integers,
    means: Array,
    widths: Array,
    query_widths: Array,
    metrics: Array,
    keys: Array,
    images: Array,
    key_bounds: Integers,
    centres: Array,
    spreads: Array,
    mean_spreads: Array,
    limits: Array,
    opening_limits: Array,
    out: Array,
    sizes: Integers,
    met: Integers,
    keep: bool,
) -> tuple[Places, Places]:
    """Compute the outputs of some blocks of groups.

    Args:
        jobs: head and first group of each block, ``(·, 2)``.
        queries: by group, ``(N, ·, d)``.
        order: query in each row, ``(N, ·)``.
        bounds: of the groups, ``(N, G + 1)``.
        means: rᵢ, ``(N, G, d)``.
        widths: γᵢ, ``(N, G)``.
        query_widths: γ of the query in each row, ``(N, ·)``.
        metrics: Σ_δ, ``(N, d, d)``.
        keys: keys and values by cluster, ``(N, ·, d + d_v)``.
        images: Σ_δ(y − ȳ) of the keys, ``(N, ·, d)``, or without rows.
        key_bounds: of the clusters, ``(N, C + 1)``.
        centres: ȳ of each cluster, ``(N, C, d)``.
        spreads: d² log₂ e / 2 and log₂ √d² of each key, ``(N, ·, 2)``.
        mean_spreads: mean of d² over each cluster, ``(N, C)``.
        limits: log₂ of the share of the mass times relative error that a summary may have per key, ``(N,)``.
        opening_limits: share of the mass times relative error that the summary of a cluster may have, ``(N,)``.
        out: outputs in the order of the tokens, ``(N, L, d_v)``; written, as is all that follows.
        sizes: number of exact keys, ``(N, G)``.
        met: number of pairs in clusters that queries opened, ``(N, G)``.
        keep: whether to return the exact keys and the opened clusters.

    Returns:
        Rows of the exact keys of all groups, one after the other; and head, row of the query and cluster of everything
        that was opened, ``(·, 3)``; both empty unless ``keep``.
    """
    n_groups, dim, n_clusters, width = means.shape[1], means.shape[2], centres.shape[1], keys.shape[2]
    tile, own_sizes = np.empty((keys.shape[1], GROUPS), out.dtype), np.empty(GROUPS, np.int64)
    totals, own_widths = np.empty(GROUPS, out.dtype), np.empty(GROUPS, out.dtype)
    # Products have at least ROWS rows.
    summaries = np.zeros((GROUPS, max(n_clusters, ROWS), width), out.dtype)
    biases = np.empty((GROUPS, n_clusters), out.dtype)
    kept, n_kept, lists = np.empty(0, np.int32), 0, np.empty((GROUPS, keys.shape[1]), np.int32)
    opened, n_opened, firsts = np.empty(0, np.int32), 0, np.empty((GROUPS, n_clusters + 1), np.int64)
    columns, own_means = np.empty((dim, GROUPS), out.dtype), np.empty((GROUPS, dim), out.dtype)
    scratch = _scratch(bounds, dim, width - dim, n_clusters, out)
    for job in range(len(jobs)):
        head, start = jobs[job]
        some = min(GROUPS, n_groups - start)
        for i in range(GROUPS):
            group = start + min(i, some - 1)
            own_widths[i] = widths[head, group]
            scaled(means[head, group], LOG2E, own_means[i])
            for k in range(dim):
                columns[k, i] = own_means[i, k]
        score(keys[head], key_bounds[head], columns, tile, totals)
        for i in range(GROUPS):
            totals[i] += limits[head]
        summarise(
            keys[head],
            images[head],
            key_bounds[head],
            centres[head],
            spreads[head],
            metrics[head],
            own_means,
            own_widths,
            totals,
            tile,
            summaries,
            biases,
            lists,
            firsts,
            own_sizes,
        )
        for i in range(some):
            group = start + i
            rows = slice(bounds[head, group], bounds[head, group + 1])
            sizes[head, group] = own_sizes[i]
            clusters = OpenableClusters(keys[head], key_bounds[head], mean_spreads[head], lists[i], firsts[i])
            n_hits, met[head, group] = _read(
                queries[head, rows],
                order[head, rows],
                query_widths[head, rows],
                clusters,
                summaries[i],
                biases[i],
                opening_limits[head],
                scratch,
                out[head],
            )
            if keep:
                kept = _with(kept, n_kept, lists[i, : own_sizes[i]])
                opened = _with(opened, n_opened, _openings(head, bounds[head, group], scratch.hits[:n_hits]))
                n_kept, n_opened = n_kept + own_sizes[i], n_opened + 3 * n_hits
    return kept[:n_kept], opened[:n_opened].reshape(-1, 3)


@jit
def _with(places: Places, n: int, more: Places) -> Places:
    """Return an array that begins with the first n places and goes on with more."""
    length = n + len(more)
    if length > len(places):
        longer = np.empty(2 * length, np.int32)
        longer[:n] = places[:n]
        places = longer
    places[n:length] = more
    return places


@jit
def _openings(head: int, first: int, hits: Places) -> Places:
    """Return head, row of the query and cluster of each hit, one after the other; the group begins at a row."""
    out = np.empty((len(hits), 3), np.int32)
    for hit in range(len(hits)):
        out[hit, 0], out[hit, 1], out[hit, 2] = head, first + hits[hit, 1], hits[hit, 0]
    return out.reshape(-1)


class _Scratch(NamedTuple):
    """Buffers for the largest group, with a column per query.

    Attributes:
        x: queries times log₂ e, transposed, ``(d, columns)``.
        weights: logarithms of weights, then weights, of some keys or all clusters, ``(·, columns)``.
        sums: of single keys and of summaries.
        raised: the next scale, log₂.
        hits: cluster and query of everything that is opened.
    """

    x: Array
    weights: Array
    sums: QuerySums
    raised: Array
    hits: Places


@jit
def _scratch(bounds: Integers, dim: int, width: int, n_clusters: int, like: Array) -> _Scratch:
    """Allocate buffers for groups with these bounds."""
    most = 0
    for head in range(len(bounds)):
        for group in range(bounds.shape[1] - 1):
            most = max(most, bounds[head, group + 1] - bounds[head, group])
    n, kind = most + -most % ROWS, like.dtype
    rows = max(_SOME, n_clusters + -n_clusters % ROWS)
    sums = QuerySums(np.empty((n, width), kind), np.empty(n, kind), np.empty(n, kind), np.empty(n, kind))
    hits = np.empty((n_clusters * most, 2), np.int32)
    return _Scratch(np.zeros((dim, n), kind), np.empty((rows, n), kind), sums, np.empty(n, kind), hits)


@jit
def _read(
    x: Array,
    order: Integers,
    widths: Array,
    clusters: OpenableClusters,
    summaries: Array,
    biases: Array,
    limit: float,
    scratch: _Scratch,
    out: Array,
) -> tuple[int, int]:
    """Write the outputs of one group; return how many clusters its queries open, and how many keys they meet there."""
    n, dim = x.shape
    own, sums = scratch.x, scratch.sums
    for k in range(dim):
        for i in range(n):
            own[k, i] = x[i, k] * LOG2E
        for i in range(n, own.shape[1]):
            own[k, i] = 0
    clear(sums.totals.reshape(-1))
    clear(sums.masses)
    clear(sums.read)
    fill(sums.tops, LOWEST)
    n_exact = clusters.firsts[-1]
    for start in range(0, n_exact, _SOME):
        some = min(_SOME, n_exact - start)
        weights = scratch.weights[: some + -some % ROWS]
        index = clusters.exact[start : start + len(weights)]
        clear(weights.reshape(-1))
        add_product(weights, clusters.keys, own, index)
        _weigh(weights[:some], scratch, sums.masses)
        add_product_transposed(sums.totals, weights, clusters.keys, index[:some])
    n_clusters = len(biases)
    weights = scratch.weights[: n_clusters + -n_clusters % ROWS]
    for c in range(n_clusters):
        fill(weights[c], biases[c])
    add_product(weights, summaries, own)
    _weigh(weights[:n_clusters], scratch, sums.read)
    n_hits = find_opened(
        weights[:n_clusters], sums, widths, clusters.spreads, limit, scratch.raised, scratch.hits
    )
    met = open_clusters(x, clusters, weights[:n_clusters], sums, scratch.hits[:n_hits])
    add_product_transposed(sums.totals, weights, summaries[:n_clusters])
    for i in range(n):
        row = sums.totals[i, : out.shape[1]]
        scaled(row, np.float32(1) / (sums.masses[i] + sums.read[i]), out[order[i]])
    return n_hits, met


@jit
def _weigh(weights: Array, scratch: _Scratch, masses: Array) -> None:
    """Turn logarithms of weights into weights at the scale of the sums, which is raised where needed; add them up."""
    sums, raised = scratch.sums, scratch.raised
    copy(sums.tops, raised)
    maxima(weights, len(weights), raised)
    high = False
    for i in range(len(raised)):
        high |= raised[i] > sums.tops[i] + ROOM
    if high:
        for i in range(len(raised)):
            step = exp2(max(sums.tops[i] - raised[i], np.float32(-127)))
            sums.tops[i] = raised[i]
            sums.masses[i] *= step
            scale(sums.totals[i], step)
    exponentials(weights, len(weights), sums.tops, masses)

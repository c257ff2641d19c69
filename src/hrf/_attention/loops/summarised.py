"""Outputs of summarised attention in compiled loops: each group reads its exact keys and the summaries of all clusters.

Both are rows of one softmax, whose weights are 2^(bias + xᵀk): an exact key has the bias 0, a summary log₂ A − rᵀμ.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hrf import tuning
from hrf._attention.loops.functions import exp2
from hrf._attention.loops.jit import jit
from hrf._attention.loops.products import ROWS, add_product, add_product_transposed
from hrf._attention.loops.rows import clear, copy, fill, scale, scaled
from hrf._attention.loops.summaries import GROUPS, LOG2E, LOWEST, score, summarise
from hrf._attention.loops.tiles import exponentials, maxima

__all__ = ["attend"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]
Places = NDArray[np.int32]

_SOME = tuning.LOOP_KEYS
_ROOM = np.float32(24)  # weights up to 2^24 are not rescaled


@jit
def attend(
    jobs: Integers,
    queries: Array,
    order: Integers,
    bounds: Integers,
    means: Array,
    widths: Array,
    metrics: Array,
    keys: Array,
    key_bounds: Integers,
    centres: Array,
    spreads: Array,
    limits: Array,
    out: Array,
    sizes: Integers,
    keep: bool,
) -> Places:
    """Compute the outputs of some blocks of groups.

    Args:
        jobs: head and first group of each block, ``(·, 2)``.
        queries: by group, ``(N, ·, d)``.
        order: query in each row, ``(N, ·)``.
        bounds: of the groups, ``(N, G + 1)``.
        means: rᵢ, ``(N, G, d)``.
        widths: γᵢ, ``(N, G)``.
        metrics: Σ_δ, ``(N, d, d)``.
        keys: keys and values by cluster, ``(N, ·, d + d_v)``.
        key_bounds: of the clusters, ``(N, C + 1)``.
        centres: ȳ of each cluster, ``(N, C, d)``.
        spreads: d² log₂ e / 2 and log₂ √d² of each key, ``(N, ·, 2)``.
        limits: log₂ of the share of the mass times relative error that a summary may have per key, ``(N,)``.
        out: outputs in the order of the tokens, ``(N, L, d_v)``; written, as is all that follows.
        sizes: number of exact keys, ``(N, G)``.
        keep: whether to return the exact keys.

    Returns:
        Rows of the exact keys of all groups, one after the other; empty unless ``keep``.
    """
    n_groups, dim, n_clusters, width = means.shape[1], means.shape[2], centres.shape[1], keys.shape[2]
    tile, own_sizes = np.empty((keys.shape[1], GROUPS), out.dtype), np.empty(GROUPS, np.int64)
    totals = np.empty(GROUPS, out.dtype)
    # Products have at least ROWS rows.
    summaries = np.zeros((GROUPS, max(n_clusters, ROWS), width), out.dtype)
    biases = np.empty((GROUPS, n_clusters), out.dtype)
    kept, n_kept, lists = np.empty(0, np.int32), 0, np.empty((GROUPS, keys.shape[1]), np.int32)
    columns, own_means = np.empty((dim, GROUPS), out.dtype), np.empty((GROUPS, dim), out.dtype)
    own_widths = np.empty(GROUPS, out.dtype)
    scratch = _scratch(bounds, dim, width - dim, out)
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
            own_sizes,
        )
        for i in range(some):
            group = start + i
            rows = slice(bounds[head, group], bounds[head, group + 1])
            sizes[head, group] = own_sizes[i]
            if keep:
                kept = _longer(kept, n_kept + own_sizes[i])
                kept[n_kept : n_kept + own_sizes[i]] = lists[i, : own_sizes[i]]
                n_kept += own_sizes[i]
            _read(
                queries[head, rows],
                order[head, rows],
                keys[head],
                lists[i],
                own_sizes[i],
                summaries[i],
                biases[i],
                scratch,
                out[head],
            )
    return kept[:n_kept]


@jit
def _longer(places: Places, length: int) -> Places:
    """Return an array of at least this length that begins with the same places."""
    if length <= len(places):
        return places
    out = np.empty(2 * length, np.int32)
    out[: len(places)] = places
    return out


class _Scratch(NamedTuple):
    """Buffers for the largest group, with a column per query.

    Attributes:
        x: queries times log₂ e, transposed, ``(d, columns)``.
        weights: logarithms of weights, then weights, of some keys, ``(_SOME, columns)``.
        totals: Σ w v, ``(columns, d_v)``.
        masses: Σ w, ``(columns,)``.
        tops: the scale of both, log₂.
        raised: the next scale.
    """

    x: Array
    weights: Array
    totals: Array
    masses: Array
    tops: Array
    raised: Array


@jit
def _scratch(bounds: Integers, dim: int, width: int, like: Array) -> _Scratch:
    """Allocate buffers for groups with these bounds."""
    most = 0
    for head in range(len(bounds)):
        for group in range(bounds.shape[1] - 1):
            most = max(most, bounds[head, group + 1] - bounds[head, group])
    n, kind = most + -most % ROWS, like.dtype
    rows = np.empty((_SOME, n), kind), np.empty((n, width), kind)
    columns = np.empty(n, kind), np.empty(n, kind), np.empty(n, kind)
    return _Scratch(np.zeros((dim, n), kind), *rows, *columns)


@jit
def _read(
    x: Array,
    order: Integers,
    keys: Array,
    exact: Places,
    n_exact: int,
    summaries: Array,
    biases: Array,
    scratch: _Scratch,
    out: Array,
) -> None:
    """Write the outputs of one group."""
    n, dim = x.shape
    own = scratch.x
    for k in range(dim):
        for i in range(n):
            own[k, i] = x[i, k] * LOG2E
        for i in range(n, own.shape[1]):
            own[k, i] = 0
    clear(scratch.totals.reshape(-1))
    clear(scratch.masses)
    fill(scratch.tops, LOWEST)
    for start in range(0, n_exact, _SOME):
        some = min(_SOME, n_exact - start)
        weights = scratch.weights[: some + -some % ROWS]
        index = exact[start : start + len(weights)]
        clear(weights.reshape(-1))
        add_product(weights, keys, own, index)
        _weigh(weights[:some], scratch)
        add_product_transposed(scratch.totals, weights, keys, index[:some])
    for start in range(0, len(biases), _SOME):
        some = min(_SOME, len(biases) - start)
        weights = scratch.weights[: some + -some % ROWS]
        for j in range(some):
            fill(weights[j], biases[start + j])
        add_product(weights, summaries[start:], own)
        _weigh(weights[:some], scratch)
        add_product_transposed(scratch.totals, weights, summaries[start : start + some])
    for i in range(n):
        row = scratch.totals[i, : out.shape[1]]
        scaled(row, np.float32(1) / scratch.masses[i], out[order[i]])


@jit
def _weigh(weights: Array, scratch: _Scratch) -> None:
    """Turn logarithms of weights into weights at the scale of the sums, which is raised where needed."""
    tops, raised = scratch.tops, scratch.raised
    copy(tops, raised)
    maxima(weights, len(weights), raised)
    high = False
    for i in range(len(tops)):
        high |= raised[i] > tops[i] + _ROOM
    if high:
        for i in range(len(tops)):
            step = exp2(max(tops[i] - raised[i], np.float32(-127)))
            tops[i] = raised[i]
            scratch.masses[i] *= step
            scale(scratch.totals[i], step)
    exponentials(weights, len(weights), tops, scratch.masses)

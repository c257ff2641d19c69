"""Outputs of summarised attention in compiled loops: each group reads its exact keys and the summaries of all clusters.

Both are rows of one softmax, whose weights are 2^(bias + xᵀk): an exact key has the bias 0, a summary log₂ A − rᵀμ.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrf import tuning
from hrf._attention.loops.functions import exp2
from hrf._attention.loops.jit import jit
from hrf._attention.loops.products import ROWS, add_product, add_product_transposed
from hrf._attention.loops.rows import clear, copy, dot, fill, scale, scaled
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
        spreads: d² of each key, ``(N, ·)``.
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
    summaries = np.empty((n_clusters, GROUPS, width), out.dtype)
    log_masses, kept, n_kept = np.empty((n_clusters, GROUPS), out.dtype), np.empty(0, np.int32), 0
    lists = np.empty((GROUPS, keys.shape[1]), np.int32)
    columns, own_widths = np.empty((dim, GROUPS), out.dtype), np.empty(GROUPS, out.dtype)
    for job in range(len(jobs)):
        head, start = jobs[job]
        some = min(GROUPS, n_groups - start)
        for i in range(GROUPS):
            group = start + min(i, some - 1)
            own_widths[i] = widths[head, group]
            for k in range(dim):
                columns[k, i] = means[head, group, k] * LOG2E
        score(keys[head], key_bounds[head], columns, tile, totals)
        for i in range(GROUPS):
            totals[i] += limits[head]
        summarise(
            keys[head],
            key_bounds[head],
            centres[head],
            spreads[head],
            metrics[head],
            own_widths,
            totals,
            tile,
            summaries,
            log_masses,
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
                means[head, group],
                keys[head],
                lists[i, : own_sizes[i]],
                summaries,
                log_masses,
                i,
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


@jit
def _read(
    x: Array,
    order: Integers,
    mean: Array,
    keys: Array,
    exact: Places,
    summaries: Array,
    log_masses: Array,
    group: int,
    out: Array,
) -> None:
    """Write the outputs of one group, whose summaries are at ``group`` of the second axis."""
    n, dim = x.shape
    if n == 0:
        return
    n_columns, width, n_exact = n + -n % ROWS, keys.shape[1] - dim, len(exact)
    own = np.zeros((dim, n_columns), x.dtype)
    for i in range(n):
        for k in range(dim):
            own[k, i] = x[i, k] * LOG2E
    k_rows, v_rows = np.zeros((_SOME, dim), x.dtype), np.zeros((_SOME, width), x.dtype)
    products, totals = np.empty((_SOME, n_columns), x.dtype), np.zeros((n_columns, width), x.dtype)
    tops, masses, found = (
        np.full(n_columns, LOWEST),
        np.zeros(n_columns, x.dtype),
        np.empty(n_columns, x.dtype),
    )
    biases = np.empty(_SOME, x.dtype)
    n_entries = n_exact + len(log_masses)
    for start in range(0, n_entries, _SOME):
        stop = min(start + _SOME, n_entries)
        for j in range(start, min(stop, n_exact)):
            row = keys[exact[j]]
            copy(row, k_rows[j - start])
            copy(row[dim:], v_rows[j - start])
        biases[:] = 0
        for j in range(max(start, n_exact), stop):
            row = summaries[j - n_exact, group]
            copy(row, k_rows[j - start])
            copy(row[dim:], v_rows[j - start])
            biases[j - start] = log_masses[j - n_exact, group] - LOG2E * dot(k_rows[j - start], mean)
        for j in range(stop - start):
            fill(products[j], biases[j])
        _add(products, stop - start, k_rows, v_rows, own, tops, masses, totals, found)
    for i in range(n):
        scaled(totals[i, : out.shape[1]], np.float32(1) / masses[i], out[order[i]])


@jit
def _add(
    products: Array,
    filled: int,
    k_rows: Array,
    v_rows: Array,
    own: Array,
    tops: Array,
    masses: Array,
    totals: Array,
    found: Array,
) -> None:
    """Add some keys to the sums of all queries of a group; ``products`` holds their biases."""
    for j in range(filled, filled + -filled % ROWS):
        clear(k_rows[j])
        clear(products[j])
    some = products[: filled + -filled % ROWS]
    add_product(some, k_rows[: len(some)], own)
    found[:] = tops
    maxima(some, filled, found)
    raised = False
    for i in range(len(tops)):
        raised |= found[i] > tops[i] + _ROOM
    if raised:
        for i in range(len(tops)):
            step = exp2(max(tops[i] - found[i], np.float32(-127)))
            tops[i] = found[i]
            masses[i] *= step
            scale(totals[i], step)
    exponentials(some, filled, tops, masses)
    add_product_transposed(totals, products[:filled], v_rows[:filled])

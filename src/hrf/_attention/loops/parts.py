"""Groups of queries and clusters of keys of one head, in compiled loops: ``summarised/statistics.py`` on trees of its own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrf._attention.loops.jit import jit
from hrf._attention.loops.products import ROWS, add_product, add_product_transposed
from hrf._attention.loops.rows import clear, copy, decrease, dot, increase, scale
from hrf._attention.loops.trees import balanced, covariance, root

__all__ = ["cluster_keys", "group_queries"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]

_TINY = np.float32(1e-30)


@jit
def group_queries(
    x: Array,
    y: Array,
    real: Integers,
    real_keys: Integers,
    levels: int,
    rows: Array,
    order: Integers,
    bounds: Integers,
    means: Array,
    widths: Array,
    metric: Array,
) -> None:
    """Put the queries of a head into 2^levels groups.

    Args:
        x: queries, ``(L, d)``.
        y: keys, ``(S, d)``.
        real: queries that are no padding, ``(n,)``.
        real_keys: keys that are no padding.
        levels: of the tree.
        rows: queries by group, ``(n or more, d)``; written, as is all that follows.
        order: query in each row, ``(n or more,)``.
        bounds: first row of each group, and n, ``(2^levels + 1,)``.
        means: rᵢ, ``(2^levels, d)``.
        widths: γᵢ, ``(2^levels,)``.
        metric: Σ_δ, ``(d, d)``.
    """
    dim, n = x.shape[1], len(real)
    of_keys, factor, mean = np.empty((dim, dim), x.dtype), np.empty((dim, dim), x.dtype), np.empty(dim, x.dtype)
    covariance(_taken(y, real_keys), mean, of_keys)
    root(of_keys, factor)
    taken = _taken(x, real)
    balanced(_times(taken, factor), levels, order[:n], bounds)
    clear(metric.reshape(-1))
    own, total = factor, np.float32(0)
    for group in range(len(widths)):
        first, size = bounds[group], bounds[group + 1] - bounds[group]
        for j in range(first, first + size):
            copy(taken[order[j]], rows[j])
            order[j] = real[order[j]]
        covariance(rows[first : first + size], means[group], own)
        scale(own.reshape(-1), np.float32(size))
        increase(metric.reshape(-1), own.reshape(-1))
        length = dot(own.reshape(-1), of_keys.reshape(-1))
        widths[group] = length / max(size, 1)
        total += length
    scale(widths, n / max(total, _TINY))
    scale(metric.reshape(-1), np.float32(1) / max(n, 1))


@jit
def cluster_keys(
    y: Array,
    v: Array,
    real: Integers,
    levels: int,
    metric: Array,
    rows: Array,
    order: Integers,
    bounds: Integers,
    means: Array,
    spreads: Array,
) -> None:
    """Put the keys of a head into 2^levels clusters.

    Args:
        y: keys, ``(S, d)``.
        v: values, ``(S, d_v)``.
        real: keys that are no padding, ``(n,)``.
        levels: of the tree.
        metric: Σ_δ, ``(d, d)``.
        rows: keys and values by cluster, ``(n + ROWS or more, d + d_v)``; written, as is all that follows.
        order: key in each row, ``(n or more,)``.
        bounds: first row of each cluster, and n, ``(2^levels + 1,)``.
        means: ȳ of each cluster, ``(2^levels, d)``.
        spreads: d² of each row, ``(n or more,)``.
    """
    dim, n = y.shape[1], len(real)
    factor = np.empty((dim, dim), y.dtype)
    root(metric, factor)
    taken = _taken(y, real)
    balanced(_times(taken, factor), levels, order[:n], bounds)
    centred, image = np.zeros((ROWS, dim), y.dtype), np.zeros((ROWS, dim), y.dtype)
    for cluster in range(len(means)):
        first, last, mean = bounds[cluster], bounds[cluster + 1], means[cluster]
        clear(mean)
        for j in range(first, last):
            increase(mean, taken[order[j]])
        scale(mean, np.float32(1) / max(last - first, 1))
        for start in range(first, last, ROWS):
            some = min(ROWS, last - start)
            clear(image.reshape(-1))
            for j in range(some):
                copy(taken[order[start + j]], centred[j])
                decrease(centred[j], mean)
            add_product(image, centred, metric)
            for j in range(some):
                spreads[start + j] = max(dot(image[j], centred[j]), np.float32(0))
    for j in range(n):
        copy(taken[order[j]], rows[j])
        order[j] = real[order[j]]
        copy(v[order[j]], rows[j, dim:])
    for j in range(n, len(rows)):
        clear(rows[j])


@jit
def _taken(u: Array, index: Integers) -> Array:
    """Return some rows of u."""
    out = np.empty((len(index), u.shape[1]), u.dtype)
    for j in range(len(index)):
        copy(u[index[j]], out[j])
    return out


@jit
def _times(rows: Array, matrix: Array) -> Array:
    """Return ``rows (n, d) @ matrix (d, d)``."""
    n, whole = len(rows), len(rows) // ROWS * ROWS
    out = np.zeros((n + -n % ROWS, rows.shape[1]), rows.dtype)
    add_product(out[:whole], rows[:whole], matrix)
    last = np.zeros((ROWS, rows.shape[1]), rows.dtype)
    for j in range(whole, n):
        copy(rows[j], last[j - whole])
    add_product(out[whole:], last[: len(out) - whole], matrix)
    return out[:n]

"""Groups of queries and clusters of keys of one head, in compiled loops: trees, and their statistics."""

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
_BLOCK = 256  # rows of a product


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
    of_keys, factor, mean = (
        np.empty((dim, dim), x.dtype),
        np.empty((dim, dim), x.dtype),
        np.empty(dim, x.dtype),
    )
    covariance(_taken(y, real_keys), mean, of_keys)
    root(of_keys, factor)
    taken = _taken(x, real)
    balanced(_times(taken, factor), levels, order[:n], bounds)
    _sort(taken, real, order, rows)
    residuals = taken
    _centre(rows[:n], bounds, means, residuals)
    clear(metric.reshape(-1))
    for start in range(0, n, _BLOCK):
        some = residuals[start : start + _BLOCK]
        add_product_transposed(metric, some, some)
    scale(metric.reshape(-1), np.float32(1) / max(n, 1))
    images, total = _times(residuals, of_keys), np.float32(0)
    for group in range(len(widths)):
        length = np.float32(0)
        for j in range(bounds[group], bounds[group + 1]):
            length += dot(images[j], residuals[j])
        widths[group] = length / max(bounds[group + 1] - bounds[group], 1)
        total += length
    scale(widths, n / max(total, _TINY))


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
    _sort(taken, real, order, rows)
    for j in range(n):
        copy(v[order[j]], rows[j, dim:])
    for j in range(n, len(rows)):
        clear(rows[j])
    residuals = taken
    _centre(rows[:n], bounds, means, residuals)
    images = _times(residuals, metric)
    for j in range(n):
        spreads[j] = max(dot(images[j], residuals[j]), np.float32(0))


@jit
def _sort(taken: Array, real: Integers, order: Integers, rows: Array) -> None:
    """Copy vectors to rows by ``order``, and let it name tokens, of which only ``real`` were taken."""
    for j in range(len(taken)):
        copy(taken[order[j]], rows[j])
        order[j] = real[order[j]]


@jit
def _centre(rows: Array, bounds: Integers, means: Array, out: Array) -> None:
    """Write the mean of each part, and the difference of each row from it."""
    for part in range(len(means)):
        mean = means[part]
        clear(mean)
        for j in range(bounds[part], bounds[part + 1]):
            increase(mean, rows[j])
        scale(mean, np.float32(1) / max(bounds[part + 1] - bounds[part], 1))
        for j in range(bounds[part], bounds[part + 1]):
            copy(rows[j], out[j])
            decrease(out[j], mean)


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

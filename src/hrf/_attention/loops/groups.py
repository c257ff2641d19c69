"""Groups of queries and clusters of keys of one head, in compiled loops: trees, and their statistics."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hrf._attention.loops.jit import jit
from hrf._attention.loops.products import ROWS, add_product, add_product_transposed
from hrf._attention.loops.rows import clear, copy, decrease, dot, increase, scale
from hrf._attention.loops.subspace import covariance, leading
from hrf._attention.loops.trees import balanced

__all__ = ["cluster_keys", "group_queries"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]

_TINY = np.float32(1e-30)
_HALF = np.float32(math.log2(math.e) / 2)
_BLOCK = 256  # rows of a product


@jit
def group_queries(
    x: Array,
    y: Array,
    tokens: Integers,
    levels: int,
    spare: Array,
    more: Array,
    rows: Array,
    order: Integers,
    bounds: Integers,
    means: Array,
    widths: Array,
    query_widths: Array,
    metric: Array,
) -> None:
    """Put the queries of a head into 2^levels groups.

    Args:
        x: queries without padding, ``(n, d)``; overwritten.
        y: keys without padding, ``(·, d)``.
        tokens: which token each query is, ``(n,)``.
        levels: of the tree.
        spare: a buffer, ``(n + ROWS or more, d)``; overwritten.
        more: another one.
        rows: queries by group, ``(n or more, d)``; written, as is all that follows.
        order: token in each row, ``(n or more,)``.
        bounds: first row of each group, and n, ``(2^levels + 1,)``.
        means: rᵢ, ``(2^levels, d)``.
        widths: γᵢ, ``(2^levels,)``.
        query_widths: γ of the query in each row, ``(n or more,)``.
        metric: Σ_δ, ``(d, d)``.
    """
    n, dim = x.shape
    of_keys, mean = np.empty((dim, dim), x.dtype), np.empty(dim, x.dtype)
    covariance(y, mean, of_keys)
    _cut(x, of_keys, spare, more, levels, order[:n], bounds)
    _sort(x, tokens, order, rows)
    residuals = x
    _centre(rows[:n], bounds, means, residuals)
    clear(metric.reshape(-1))
    for start in range(0, n, _BLOCK):
        some = residuals[start : start + _BLOCK]
        add_product_transposed(metric, some, some)
    scale(metric.reshape(-1), np.float32(1) / max(n, 1))
    images, total = _times(residuals, of_keys, spare), np.float32(0)
    for group in range(len(widths)):
        length = np.float32(0)
        for j in range(bounds[group], bounds[group + 1]):
            query_widths[j] = dot(images[j], residuals[j])
            length += query_widths[j]
        widths[group] = length / max(bounds[group + 1] - bounds[group], 1)
        total += length
    scale(widths, n / max(total, _TINY))
    scale(query_widths[:n], n / max(total, _TINY))


@jit
def cluster_keys(
    y: Array,
    v: Array,
    tokens: Integers,
    levels: int,
    spare: Array,
    more: Array,
    metric: Array,
    rows: Array,
    images: Array,
    order: Integers,
    bounds: Integers,
    means: Array,
    spreads: Array,
    mean_spreads: Array,
) -> None:
    """Put the keys of a head into 2^levels clusters.

    Args:
        y: keys without padding, ``(n, d)``; overwritten.
        v: values of all tokens, ``(S, d_v)``.
        tokens: which token each key is, ``(n,)``.
        levels: of the tree.
        spare: a buffer, ``(n + ROWS or more, d)``; overwritten.
        more: another one.
        metric: Σ_δ, ``(d, d)``.
        rows: keys and values by cluster, ``(n + ROWS or more, d + d_v)``; written, as is all that follows.
        images: Σ_δ(y − ȳ) of each row, ``(n + ROWS or more, d)``, or no rows if they are not needed.
        order: token in each row, ``(n or more,)``.
        bounds: first row of each cluster, and n, ``(2^levels + 1,)``.
        means: ȳ of each cluster, ``(2^levels, d)``.
        spreads: d² log₂ e / 2 and log₂ √d² of each row, ``(n or more, 2)``.
        mean_spreads: mean of d² over each cluster, ``(2^levels,)``.
    """
    n, dim = y.shape
    _cut(y, metric, spare, more, levels, order[:n], bounds)
    _sort(y, tokens, order, rows)
    for j in range(n):
        copy(v[order[j]], rows[j, dim:])
    for j in range(n, len(rows)):
        clear(rows[j])
    residuals = y
    _centre(rows[:n], bounds, means, residuals)
    own = _times(residuals, metric, spare)
    for c in range(len(means)):
        total = np.float32(0)
        for j in range(bounds[c], bounds[c + 1]):
            spread = max(dot(own[j], residuals[j]), np.float32(0))
            spreads[j, 0], spreads[j, 1] = _HALF * spread, np.float32(0.5 * math.log2(spread))
            total += spread
        mean_spreads[c] = total / max(bounds[c + 1] - bounds[c], 1)
    if len(images):
        copy(own.reshape(-1), images[:n].reshape(-1))
        clear(images[n:].reshape(-1))


@jit
def _cut(
    u: Array, metric: Array, spare: Array, more: Array, levels: int, order: Integers, bounds: Integers
) -> None:
    """Cut vectors into 2^levels parts that are near each other in a metric; write ``order`` and ``bounds``."""
    factor = leading(u, metric)
    width = factor.shape[1]
    rows = spare.reshape(-1)[: len(spare) * width].reshape(-1, width)
    others = more.reshape(-1)[: len(u) * width].reshape(-1, width)
    balanced(_times(u, factor, rows), others, levels, order, bounds)


@jit
def _sort(u: Array, tokens: Integers, order: Integers, rows: Array) -> None:
    """Copy vectors to rows by ``order``, and let it name tokens."""
    for j in range(len(u)):
        copy(u[order[j]], rows[j])
        order[j] = tokens[order[j]]


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
def _times(rows: Array, matrix: Array, out: Array) -> Array:
    """Write ``rows (n, d) @ matrix (d, ·)`` to the first n rows of ``out``, and return them."""
    n, whole = len(rows), len(rows) // ROWS * ROWS
    clear(out[: n + -n % ROWS].reshape(-1))
    add_product(out[:whole], rows[:whole], matrix)
    last = np.zeros((ROWS, rows.shape[1]), rows.dtype)
    for j in range(whole, n):
        copy(rows[j], last[j - whole])
    add_product(out[whole : n + -n % ROWS], last[: -n % ROWS + n - whole], matrix)
    return out[:n]

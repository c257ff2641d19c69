"""Softmax numerators of blocks of queries, each of which meets a list of keys.

Keys come in batches, on the scale of the largest product so far, as in online softmax. Products have a row per key and
a column per query, so that each operation serves many queries at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrf import tuning
from hrf._attention.loops.functions import exp2
from hrf._attention.loops.jit import jit
from hrf._attention.loops.products import COLUMNS, ROWS, add_product, add_product_transposed
from hrf._attention.loops.rows import clear, copy, scale

__all__ = ["met"]

Array = NDArray[np.floating]
Integers = NDArray[np.int64]

_SOME = tuning.LOOP_KEYS
_LOWEST = -1e30  # finite, so that differences of scales are never NaN


@jit
def met(
    members: Integers,
    filled: NDArray[np.bool_],
    first: Integers,
    lengths: Integers,
    sums: Array,
    scales: Array,
    tokens: Integers,
    x: Array,
    y: Array,
    values: Array,
) -> None:
    """Sum 2^(xᵀy) v(y), over 2^scale, for all places of some blocks that hold a query.

    Args:
        members: query at each place, ``(N, size)``.
        filled: which places hold a query; they come first, ``(N, size)``.
        first: where the list of each block begins, ``(N,)``.
        lengths: number of keys from there that all queries of a block meet, ``(N, 1)``, or each query, ``(N, size)``.
        sums: ``(N, size, c)``; not written where a query meets no key.
        scales: ``(N, size, 1)``, likewise. Empty places, which repeat the first query, get its scale.
        tokens: all lists of keys.
        x: queries, ``(·, d)``.
        y: keys, ``(·, d)``.
        values: ``(·, c)``.
    """
    size, dim, width = members.shape[1], x.shape[1], values.shape[1]
    most, wide = size + -size % ROWS, width + -width % COLUMNS
    queries, keys = np.zeros(dim * most, x.dtype), np.zeros((_SOME, dim), x.dtype)
    seen, products = np.zeros((_SOME, wide), x.dtype), np.empty(_SOME * most, x.dtype)
    totals, top, step = np.empty((most, wide), x.dtype), np.empty(most, x.dtype), np.empty(most, x.dtype)
    for block in range(len(members)):
        n, longest = filled[block].sum(), lengths[block].max()
        n_columns = n + -n % ROWS
        own = queries[: dim * n_columns].reshape(dim, n_columns)
        for i in range(n):
            for k in range(dim):
                own[k, i] = x[members[block, i], k]
        totals[:], top[:] = 0, _LOWEST
        for start in range(0, longest, _SOME):
            some = tokens[first[block] + start : first[block] + min(start + _SOME, longest)]
            for i in range(len(some)):
                copy(y[some[i]], keys[i])
                copy(values[some[i]], seen[i])
            n_rows = len(some) + -len(some) % ROWS
            weights = products[: n_rows * n_columns].reshape(n_rows, n_columns)
            clear(weights.reshape(-1))
            add_product(weights, keys[:n_rows], own)
            weights = weights[: len(some)]
            if lengths.shape[1] > 1:
                _hide(weights, lengths[block, :n] - start)
            _weigh(weights, top[:n_columns], step[:n_columns])
            for i in range(n):
                scale(totals[i], step[i])
            add_product_transposed(totals[:n_columns], weights, seen[: len(some)])
        for i in range(n):
            if top[i] > _LOWEST:
                scales[block, i, 0] = top[i]
                copy(totals[i], sums[block, i])
        scales[block, n:] = scales[block, 0, 0]


@jit
def _hide(products: Array, lengths: Integers) -> None:
    """Hide all keys of each query beyond its first ``lengths``."""
    for i in range(len(lengths)):
        for row in range(max(0, lengths[i]), len(products)):
            products[row, i] = -np.inf


@jit
def _weigh(products: Array, top: Array, step: Array) -> None:
    """Turn products into weights on the scale of the largest so far; ``step`` rescales earlier sums."""
    for i in range(len(top)):
        step[i] = top[i]
    for row in range(len(products)):
        for i in range(len(top)):
            top[i] = max(top[i], products[row, i])
    for i in range(len(top)):
        step[i] = exp2(step[i] - top[i])
    for row in range(len(products)):
        for i in range(len(top)):
            products[row, i] = exp2(products[row, i] - top[i])

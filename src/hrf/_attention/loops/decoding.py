"""One step of decoding with features exp(±p), where p is affine in a vector (`Affine`).

Rows are batch elements and heads in one axis, N of them, and each has a state. One or several consecutive rows share a
key, and one or several consecutive queries a row. States are ``(N, c, D)`` here, with the features last: a line of a
state is one column of the values, and c is padded to a multiple of `LINES`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hrf._attention.loops.functions import exp
from hrf._attention.loops.jit import jit
from hrf._attention.loops.rows import add_scaled, clear, copy, dot

__all__ = ["LINES", "advance", "map_tokens"]

LINES = 4  # lines of a state at a time

Array = NDArray[np.floating]
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]
Side = tuple[Array, Array, Array, Array, Array]


@jit
def map_tokens(
    start: int,
    stop: int,
    heads: int,
    square: Array,
    products: Array,
    query: Side,
    key: Side,
    finite: Flags,
) -> None:
    """Map the queries and the keys of some rows.

    Args:
        start: first row.
        stop: row after the last.
        heads: number of rows per batch element.
        square: factor of −‖x‖²/2 in the log weight, ``(1,)``; without effect where the matrix gives u as well.
        products: scratch buffer, ``(N, n)``.
        query: the vectors x ``(·, d)``, matrix ``(heads or 1, d, n)`` and offset ``(heads or 1, n + 1)``; and what
            receives exp(±p) over its largest entry, ``(·, D)``, with N rows or one per vector, and the logarithm of
            that entry with the log weight, ``(·,)``.
        key: likewise.
        finite: receives False if a log weight is not finite, ``(1,)``.
    """
    for row in range(start, stop):
        for tokens, matrix, offset, features, logs in (key, query):
            head, n = row % heads % len(matrix), len(features) // len(products)
            for place in range(row * n, (row + 1) * n):
                x = tokens[place * len(tokens) // len(features)]
                logs[place] = _map(x, matrix[head], offset[head], square, products[row], features[place])
                if not math.isfinite(logs[place]):
                    finite[0] = False


@jit
def _map(x: Array, matrix: Array, offset: Array, square: Array, p: Array, features: Array) -> float:
    """Write the features of one vector and return the logarithm of their scale."""
    m, whole = len(features) // 2, len(x) // 4 * 4
    copy(offset, p)
    for i in range(0, whole, 4):
        _add_four(p, matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3], x[i : i + 4])
    for i in range(whole, len(x)):
        add_scaled(p, matrix[i], x[i])
    largest = abs(p[0])
    for j in range(1, m):
        largest = max(largest, abs(p[j]))
    _exponentials(p[:m], largest, features[:m], features[m:])
    log = offset[-1] + largest
    if len(p) == m:
        return log - square[0] * dot(x, x) / 2
    u = p[m:-1]
    return log + p[-1] - dot(u, u) / 2


@jit
def _add_four(total: Array, a: Array, b: Array, c: Array, d: Array, factors: Array) -> None:
    """Add four rows times a number each: each number of the total is read and written once."""
    e, f, g, h = factors[0], factors[1], factors[2], factors[3]
    for j in range(len(total)):
        total[j] += (e * a[j] + f * b[j]) + (g * c[j] + h * d[j])


@jit
def _exponentials(p: Array, largest: float, plus: Array, minus: Array) -> None:
    for j in range(len(p)):
        plus[j] = exp(p[j] - largest)
        minus[j] = exp(-p[j] - largest)


@jit
def advance(
    start: int,
    stop: int,
    queries: Array,
    keys: Array,
    logs: Array,
    value: Array,
    ignore: Flags,
    floor: float,
    state: Array,
    scale: Array,
    total: Array,
    factors: Array,
    sums: Array,
    out: Array,
    counts: Integers,
) -> None:
    """Add a key to the states of some rows, and attend.

    Args:
        start: first row.
        stop: row after the last.
        queries: features of the queries, ``(·, D)``.
        keys: features of the keys, ``(N, D)``.
        logs: log scales of the keys, ``(N,)``.
        value: ``(·, d_v)``.
        ignore: batch elements whose key is ignored, ``(B,)``, or nothing.
        floor: denominators up to this are too small.
        state: ``(N, c, D)``, updated.
        scale: its log scale, ``(N,)``, updated.
        total: sum of the values and their number, ``(N, d_v + 1)``, updated.
        factors: scratch buffer, ``(N, c + 2)``.
        sums: scratch buffer, ``(·, c)``, a row per query.
        out: receives the outputs, ``(·, d_v)``.
        counts: receives the number of queries that see a key, and of too small denominators among these, ``(2,)``.
    """
    counts[0] = counts[1] = 0
    n, width = len(queries) // len(state), value.shape[1]
    for row in range(start, stop):
        v, line, decay = value[row * len(value) // len(state)], factors[row, 2:], factors[row, :1]
        clear(line)
        decay[0] = 1
        if not (len(ignore) and ignore[row * len(ignore) // len(state)]):
            _weigh(v, factors[row], scale[row : row + 1], logs[row], total[row])
        for first in range(0, len(line), LINES):
            last = first + LINES
            lines, terms, products = (
                state[row, first:last].reshape(-1),
                line[first:last],
                sums[row * n, first:last],
            )
            _add_key(lines, state.shape[2], decay[0], keys[row], terms, queries[row * n], products)
            for place in range(row * n + 1, (row + 1) * n):
                for j in range(first, last):
                    sums[place, j] = dot(state[row, j], queries[place])
        for place in range(row * n, (row + 1) * n):
            good = _divide(sums[place], sums[place, width], floor, total[row], out[place])
            if total[row, width] > 0:
                counts[0] += 1
                counts[1] += 0 if good else 1


@jit
def _weigh(v: Array, factors: Array, scale: Array, log: float, total: Array) -> None:
    """Raise the scale of a row; write the decay of its state, then, from the third place on, what multiplies a key."""
    top = max(scale[0], log)
    factors[0], factors[1] = scale[0] - top, log - top
    factors[0], factors[1] = exp(factors[0]), exp(factors[1])
    scale[0] = top
    for j in range(len(v)):
        factors[2 + j] = v[j] * factors[1]
        total[j] += v[j]
    factors[2 + len(v)] = factors[1]
    total[len(v)] += 1


@jit
def _add_key(lines: Array, width: int, decay: float, key: Array, v: Array, query: Array, sums: Array) -> None:
    """Let `LINES` lines of a state decay, add a key to them, and multiply with a query.

    The ``width`` D is an argument: with ``len(key)`` in its place the compiler does not vectorise the loop.
    """
    e, f, g, h = v[0], v[1], v[2], v[3]
    a = b = c = d = key.dtype.type(0)
    for j in range(width):
        k, q = key[j], query[j]
        first, second = lines[j] * decay + k * e, lines[width + j] * decay + k * f
        third, fourth = lines[2 * width + j] * decay + k * g, lines[3 * width + j] * decay + k * h
        lines[j], lines[width + j], lines[2 * width + j], lines[3 * width + j] = first, second, third, fourth
        a, b, c, d = a + first * q, b + second * q, c + third * q, d + fourth * q
    sums[0], sums[1], sums[2], sums[3] = a, b, c, d


@jit
def _divide(sums: Array, denominator: float, floor: float, total: Array, out: Array) -> bool:
    """Write the quotients, or the mean of the values where the denominator is too small; return whether it is not."""
    good = floor < denominator < np.inf
    for j in range(len(out)):
        out[j] = sums[j] / denominator if good else total[j] / max(total[len(out)], 1)
    return good

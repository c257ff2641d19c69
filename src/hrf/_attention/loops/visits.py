"""Visits of rows, `WIDTH` at a time: logits of keys and nodes, which nodes to open, and sums of values.

Logits have the base 2: a weight is 2^logit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrf._attention.loops.functions import exp2
from hrf._attention.loops.jit import jit
from hrf._attention.loops.rows import scale

__all__ = ["LOG2E", "LOWEST", "NOTHING", "WIDTH", "add", "find_lows", "judge", "meet_own", "scores"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]

WIDTH = 8  # keys per cluster and children per node, as in causal/sizes.py
LOG2E = np.float32(1.4426950408889634)
LOWEST = np.float32(-3e38)
NOTHING = np.float32(-127)  # exponent of 0

_ROOM = np.float32(24)  # weights up to 2^24 are not rescaled
_MOST = np.float32(64)  # exponents are cut there, beyond which all is opened
_LARGEST = np.float32(10)  # of γS/2, as in summarised/read.py
_SMALL = np.float32(1e-2)
_HALF = np.float32(0.5)
_ONE = np.float32(1)
_NUMBERS = 4  # of a row of a table after mean key and mean value


@jit
def find_lows(delta: Array, table: Array, first: int, n_roots: int, width: int, lows: Array) -> float:
    """Write lower bounds of the logits of the roots; return their maximum."""
    dim, top = len(delta), LOWEST
    for j in range(n_roots):
        total = np.float32(0)
        for k in range(dim):
            total += delta[k] * table[first + j, k]
        lows[j] = max(total + LOG2E * table[first + j, dim + width], LOWEST)
        top = max(top, lows[j])
    return top


@jit
def scores(x: Array, rows: Array, first: int, n: int, logits: Array) -> None:
    """Write the dot products with n rows; the other logits are the lowest."""
    for j in range(n):
        total = np.float32(0)
        for k in range(len(x)):
            total += x[k] * rows[first + j, k]
        logits[j] = total
    for j in range(n, WIDTH):
        logits[j] = LOWEST


@jit
def add(logits: Array, rows: Array, first: int, dim: int, sums: Array, total: Array) -> None:
    """Add up to `WIDTH` rows of values, ``rows[·, dim:]``, to the sums; their weights replace the logits."""
    top = logits[0]
    for j in range(1, WIDTH):
        top = max(top, logits[j])
    if not top > LOWEST:
        return
    if top > total[0] + _ROOM:
        factor = exp2(max(total[0] - top, NOTHING))
        total[1] *= factor
        scale(sums, factor)
        total[0] = top
    mass = np.float32(0)
    last = 0
    for j in range(WIDTH):
        logits[j] = exp2(max(logits[j] - total[0], NOTHING))
        mass += logits[j]
        if logits[j] > 0:
            last = j
    total[1] += mass
    if last < WIDTH - 1:
        for j in range(last + 1):
            weight = logits[j]
            for k in range(len(sums)):
                sums[k] += weight * rows[first + j, dim + k]
        return
    a, b, c, d = logits[0], logits[1], logits[2], logits[3]
    e, f, g, h = logits[4], logits[5], logits[6], logits[7]
    for k in range(len(sums)):
        at = dim + k
        sums[k] += (
            a * rows[first, at]
            + b * rows[first + 1, at]
            + c * rows[first + 2, at]
            + d * rows[first + 3, at]
            + e * rows[first + 4, at]
            + f * rows[first + 5, at]
            + g * rows[first + 6, at]
            + h * rows[first + 7, at]
        )


@jit
def meet_own(
    x: Array,
    own: Array,
    real: NDArray[np.bool_],
    first: int,
    last: int,
    logits: Array,
    sums: Array,
    total: Array,
) -> None:
    """Meet the keys ``first`` … ``last`` exactly."""
    for start in range(first, last + 1, WIDTH):
        n = min(WIDTH, last + 1 - start)
        scores(x, own, start, n, logits)
        for j in range(n):
            if not real[start + j]:
                logits[j] = LOWEST
        add(logits, own, start, len(x), sums, total)


@jit
def judge(
    logits: Array,
    width: float,
    bound: float,
    table: Array,
    first: int,
    node: int,
    before: int,
    n_opened: int,
    stack: Integers,
) -> int:
    """Complete the logits of `WIDTH` nodes, from ``node`` on, of the level that begins ``before`` rows after the roots.

    Nodes to open go on the stack, and their logits become the lowest. Returns the number of nodes on the stack.
    """
    at = table.shape[1] - _NUMBERS
    for j in range(WIDTH):
        if not logits[j] > LOWEST:
            continue
        variance = width * table[first + j, at + 1]
        logit = logits[j] + LOG2E * min(_HALF * variance, _LARGEST)
        # (mass · relative error / exp(bound))² = Q exp(2(logit − bound) + t) (1 − exp(−t)), t the variance
        rest = _ONE - exp2(max(-LOG2E * variance, NOTHING))
        if variance < _SMALL:
            rest = variance * (_ONE - _HALF * variance)
        power = min(2 * (logit - bound) + LOG2E * variance, _MOST)
        logits[j] = logit
        if bound < LOWEST or exp2(max(power, NOTHING)) * table[first + j, at + 2] * rest >= _ONE:
            stack[n_opened, 0], stack[n_opened, 1] = before, node + j
            n_opened += 1
            logits[j] = LOWEST
    return n_opened

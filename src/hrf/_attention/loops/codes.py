"""Angular hybrids by sign code: sums over the keys with each value of each bit, which queries read.

Codes are the leaves of a binary tree, with the highest bit at its root. Tokens are visited in the order of their codes.
On the way up from a leaf, the sum of a branch is added to that of its parent and to the state of its bit; on the way
down, a branch is its parent plus the state of its bit. So a code costs about two additions of states, however many
bits it has. No difference is taken: a base whose weight is 0 for all keys gets exactly 0.

A state is a row of numbers: the sum of φ(y) v(y)ᵀ, ``(D, w)``, then the sum of φ(y). Features are computed for a few
tokens at a time, right before the product that needs them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrf import tuning
from hrf._attention.loops.features import fill, width
from hrf._attention.loops.jit import jit
from hrf._attention.loops.products import ROWS, add_product, add_product_transposed
from hrf._attention.loops.rows import add, clear, copy, dot, increase

__all__ = ["read", "write"]

Array = NDArray[np.floating]
Integers = NDArray[np.int64]

_SOME = tuning.LOOP_TOKENS


@jit
def write(
    products: Array,
    weights: Array,
    codes: Integers,
    values: Array,
    states: Array,
    bits: Integers,
    bases: Integers,
) -> None:
    """Add the sums over the keys with each value of each bit.

    Args:
        products: ``(S, ·)``, from `prepare`, as are weights and codes.
        weights: ``(S, 2)``.
        codes: ``(S, G)``; a code out of range leaves its key out.
        values: ``(S, c)``.
        states: by value of each bit, the lowest bit first, ``(G, 2g, ·)``.
        bits: ``(G,)``.
        bases: ``(2, 3)``.
    """
    left, right, flat = _scratch(states, bases)
    for group in range(len(bits)):
        order, ends = _by_code(codes[:, group], bits[group])
        branches, leaf, mass = _tree(bits[group], states, left)
        before, start = np.int64(-1), np.int64(0)
        for code in range(len(ends)):
            if ends[code] > start and before >= 0:
                _up(branches, before, _length(before ^ code), states[group])
            while start < ends[code]:
                some = order[start : min(start + _SOME, ends[code])]
                n = len(some)
                fill(products, weights, some, bases, flat, left)
                for i in range(n):
                    copy(values[some[i]], right[i])
                    increase(mass, left[i])
                add_product_transposed(leaf, left[:n], right[:n])
                before, start = np.int64(code), start + n
        if before >= 0:
            _up(branches, before, bits[group], states[group])


@jit
def read(
    products: Array,
    weights: Array,
    codes: Integers,
    out: Array,
    states: Array,
    bits: Integers,
    bases: Integers,
    column: int,
) -> None:
    """Let each query read the states of all bits of its code.

    Features of the first base read the state of the other value of a bit, those of the second the state of its own.

    Args:
        products: ``(L, ·)``, from `prepare`, as are weights and codes.
        weights: ``(L, 2)``.
        codes: ``(L, G)``.
        out: receives sums over values, ``(L, ·)``, with padded columns.
        states: from `write`.
        bits: ``(G,)``.
        bases: ``(2, 3)``.
        column: where the sums over ones go.
    """
    left, sums, flat = _scratch(states, bases)
    for group in range(len(bits)):
        order, ends = _by_code(codes[:, group], bits[group])
        branches, leaf, mass = _tree(bits[group], states, left)
        before, start = np.int64(-1), np.int64(0)
        for code in range(len(ends)):
            if ends[code] > start:
                differing = bits[group] if before < 0 else _length(before ^ code)
                _down(branches, code, differing, states[group], width(bases[0]), left.shape[1])
            while start < ends[code]:
                some = order[start : min(start + _SOME, ends[code])]
                n = len(some)
                fill(products, weights, some, bases, flat, left)
                for i in range(n):
                    if group:
                        copy(out[some[i]], sums[i])
                    else:
                        clear(sums[i])
                n_rows = n + -n % ROWS
                add_product(sums[:n_rows], left[:n_rows], leaf)
                for i in range(n):
                    row = out[some[i]]
                    total = dot(left[i], mass) + (row[column] if group else 0)
                    copy(sums[i], row)
                    row[column] = total
                before, start = np.int64(code), start + n


@jit
def _scratch(states: Array, bases: Integers) -> tuple[Array, Array, Array]:
    """Allocate scratch buffers: features of a few tokens, their values or sums, and one for `fill`."""
    features = width(bases[0]) + width(bases[1])
    kind, features = states.dtype, features + -features % ROWS
    columns = states.shape[-1] // features - 1
    return (
        np.zeros((_SOME, features), kind),
        np.zeros((_SOME, columns), kind),
        np.empty((2, _SOME * features), kind),
    )


@jit
def _tree(n_bits: int, states: Array, left: Array) -> tuple[Array, Array, Array]:
    """Allocate the branches from the root to a leaf; return also the leaf's sums of φ(y) v(y)ᵀ and of φ(y)."""
    branches = np.zeros((n_bits + 1, states.shape[-1]), states.dtype)
    size = states.shape[-1] - left.shape[1]
    return branches, branches[-1, :size].reshape(left.shape[1], -1), branches[-1, size:]


@jit
def _by_code(codes: Integers, n_bits: int) -> tuple[Integers, Integers]:
    """Sort tokens by code, and return where each code ends."""
    n_codes = 1 << n_bits
    starts = np.zeros(n_codes + 1, np.int64)
    for code in codes:
        if code < n_codes:
            starts[code + 1] += 1
    starts = np.cumsum(starts)
    order = np.empty(starts[-1], np.int64)
    for token, code in enumerate(codes):
        if code < n_codes:
            order[starts[code]] = token
            starts[code] += 1
    return order, starts[:-1]


@jit
def _length(code: int) -> int:
    """Return the position of the highest bit that is set."""
    n = 0
    while code:
        n, code = n + 1, code >> 1
    return n


@jit
def _up(branches: Array, code: int, n_bits: int, states: Array) -> None:
    """Add the branches of the lowest bits to their parents and to the states of their bits, and clear them."""
    for bit in range(n_bits):
        level = len(branches) - 1 - bit
        _move(branches[level], branches[level - 1], states[2 * bit + (code >> bit & 1)])


@jit
def _move(branch: Array, parent: Array, state: Array) -> None:
    """Add a branch to its parent and to a state, and clear it."""
    for i in range(len(branch)):
        s = branch[i]
        parent[i] += s
        state[i] += s
        branch[i] = 0


@jit
def _down(branches: Array, code: int, n_bits: int, states: Array, first: int, features: int) -> None:
    """Compute the branches of the lowest bits from their parents and the states of their bits."""
    size = states.shape[-1] // features
    bounds = first * (size - 1), features * (size - 1), features * (size - 1) + first, features * size
    for bit in range(n_bits - 1, -1, -1):
        level = len(branches) - 1 - bit
        branch, parent, own = branches[level], branches[level - 1], code >> bit & 1
        start = 0
        for k in range(4):
            state = states[2 * bit + (own if k % 2 else 1 - own)]
            add(parent[start : bounds[k]], state[start : bounds[k]], branch[start : bounds[k]])
            start = bounds[k]

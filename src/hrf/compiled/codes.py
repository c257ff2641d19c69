"""States of tokens by sign code: sums over the tokens with each value of each bit.

Codes are the leaves of a binary tree, with the highest bit at its root. Tokens are visited in the order of their codes.
On the way up from a leaf, the sum of a branch is added to that of its parent and to the state of its bit; on the way
down, a branch is its parent plus the state of its bit. So a code costs about two additions of states, however many
bits it has.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrf.compiled.jit import jit
from hrf.compiled.products import ROWS, add_product, add_product_transposed
from hrf.compiled.rows import add, clear, copy

__all__ = ["encode", "read", "write"]

Array = NDArray[np.floating]
Integers = NDArray[np.int64]

_SOME = 32  # tokens of a product: with a state, they stay in the cache


@jit
def encode(products: Array, bits: Integers, codes: Integers) -> None:
    """Codes whose bits are the signs of products.

    Args:
        products: ``(L, n)``.
        bits: how many each group has, ``(G,)``.
        codes: ``(G, L)``.
    """
    start = 0
    for group in range(len(bits)):
        part, own = products[:, start : start + bits[group]], codes[group]
        for token in range(len(part)):
            code = 0
            for bit in range(part.shape[1]):
                code |= (part[token, bit] >= 0) << bit
            own[token] = code
        start += bits[group]


@jit
def write(features: Array, codes: Integers, bits: Integers, values: Array, states: Array) -> None:
    """Add Σ φ(y) v(y)ᵀ over the keys with each value of each bit to the states.

    Args:
        features: φ, ``(S, D)``.
        codes: for each group of bits, ``(G, S)``; those out of range leave a key out.
        bits: how many each group has, ``(G,)``.
        values: ``(S, c)``.
        states: by value of each bit, the lowest bit first, ``(G, 2g, D, w)``. The columns are those of values, then
            one of ones, and the rest to no purpose.
    """
    width = states.shape[-1]
    left, right = _room(features, width)
    right[:, values.shape[1] :] = 1
    for group in range(len(codes)):
        order, ends = _by_code(codes[group], bits[group])
        branches = np.zeros((bits[group] + 1, left.shape[1] * width), states.dtype)
        leaf = branches[-1].reshape(-1, width)
        before, start = np.int64(-1), np.int64(0)
        for code in range(len(ends)):
            if ends[code] > start and before >= 0:
                _up(branches, before, _length(before ^ code), states[group])
            while start < ends[code]:
                tokens = order[start : min(start + _SOME, ends[code])]
                n = len(tokens)
                for i in range(n):
                    copy(features[tokens[i]], left[i])
                    copy(values[tokens[i]], right[i])
                add_product_transposed(leaf, left[:n], right[:n])
                before, start = np.int64(code), start + n
        if before >= 0:
            _up(branches, before, bits[group], states[group])


@jit
def read(features: Array, codes: Integers, bits: Integers, states: Array, out: Array, first: int) -> None:
    """Σ φ(x)ᵀ S over all bits of the code of each query.

    S is the state of the other value of the bit for the first features, and that of its own for the rest.

    Args:
        features: φ, ``(L, D)``.
        codes: for each group of bits, ``(G, L)``.
        bits: how many each group has, ``(G,)``.
        states: as of `write`.
        out: the sums, ``(L, w)``.
        first: how many features read the other value.
    """
    width = states.shape[-1]
    left, sums = _room(features, width)
    for group in range(len(codes)):
        order, ends = _by_code(codes[group], bits[group])
        branches = np.zeros((bits[group] + 1, left.shape[1] * width), states.dtype)
        leaf = branches[-1].reshape(-1, width)
        before, start = np.int64(-1), np.int64(0)
        for code in range(len(ends)):
            if ends[code] > start:
                differing = bits[group] if before < 0 else _length(before ^ code)
                _down(branches, code, differing, states[group], first * width)
            while start < ends[code]:
                tokens = order[start : min(start + _SOME, ends[code])]
                n = len(tokens)
                for i in range(n):
                    copy(features[tokens[i]], left[i])
                    if group:
                        copy(out[tokens[i]], sums[i])
                    else:
                        clear(sums[i])
                rows = n + -n % ROWS
                add_product(sums[:rows], left[:rows], leaf)
                for i in range(n):
                    copy(sums[i], out[tokens[i]])
                before, start = np.int64(code), start + n


@jit
def _room(features: Array, width: int) -> tuple[Array, Array]:
    """Memory for features and for values or sums of some tokens."""
    n = features.shape[1]
    return np.zeros((_SOME, n + -n % ROWS), features.dtype), np.zeros((_SOME, width), features.dtype)


@jit
def _by_code(codes: Integers, n_bits: int) -> tuple[Integers, Integers]:
    """Tokens by code, and where those of each code end."""
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
    """How many bits there are up to the highest that is set."""
    n = 0
    while code:
        n, code = n + 1, code >> 1
    return n


@jit
def _up(branches: Array, code: int, n_bits: int, states: Array) -> None:
    """Add the branches of the lowest bits to their parents and to the states of their bits, and clear them."""
    for bit in range(n_bits):
        level = len(branches) - 1 - bit
        branch, parent = branches[level], branches[level - 1]
        state = states[2 * bit + (code >> bit & 1)].reshape(-1)
        for i in range(len(state)):
            s = branch[i]
            parent[i] += s
            state[i] += s
            branch[i] = 0


@jit
def _down(branches: Array, code: int, n_bits: int, states: Array, first: int) -> None:
    """Make the branches of the lowest bits from their parents and the states of their bits."""
    for bit in range(n_bits - 1, -1, -1):
        level = len(branches) - 1 - bit
        branch, parent, own = branches[level], branches[level - 1], code >> bit & 1
        other, same = states[2 * bit + 1 - own].reshape(-1), states[2 * bit + own].reshape(-1)
        add(parent[:first], other[:first], branch[:first])
        add(parent[first : len(same)], same[first:], branch[first : len(same)])

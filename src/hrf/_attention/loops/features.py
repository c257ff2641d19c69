"""Projections, weights and codes of tokens, and from them the features of a few tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrf import tuning
from hrf._attention.loops.functions import cos_sin, exp, exp_both
from hrf._attention.loops.jit import jit
from hrf._attention.loops.products import add_product
from hrf._attention.loops.rows import clear, copy, dot, scaled

__all__ = ["COS_SIN", "EXP", "EXP_BOTH", "fill", "prepare", "width"]

EXP, EXP_BOTH, COS_SIN = 0, 1, 2  # features exp(p), exp(±p), or cos p and sin p

Array = NDArray[np.floating]
Integers = NDArray[np.int64]

_SOME = tuning.LOOP_TOKENS


@jit
def prepare(
    tokens: Array,
    products: Array,
    weights: Array,
    codes: Integers,
    largest: Array,
    omega: Array,
    bits: Integers,
    bases: Integers,
    logs: Array,
) -> None:
    """Compute projections, weights and codes of tokens.

    Args:
        tokens: u, ``(L, d)``.
        products: receives ωᵀu, ``(L, ·)``.
        weights: receives the weights of both bases, ``(L, 2)``.
        codes: receives the code of each group of sign bits, ``(L, G)``.
        largest: receives the largest |ωᵀu| and the largest |log weight|, ``(2,)``.
        omega: ``(d, ·)``, for both bases, which may share it, then for the signs, then padding.
        bits: number of signs per group, ``(G,)``.
        bases: kind of features, first product and number of products, per base, ``(2, 3)``.
        logs: logarithms of weights, a + b ‖u‖²/2 for each base, ``(2, 2)``.
    """
    n_real = (bases[:, 1] + bases[:, 2]).max()
    left, right = np.zeros((_SOME, len(omega)), omega.dtype), np.empty((_SOME, omega.shape[1]), omega.dtype)
    tops = np.zeros(omega.shape[1], omega.dtype)
    for start in range(0, len(tokens), _SOME):
        some = tokens[start : start + _SOME]
        clear(right.reshape(-1))
        if len(some) == _SOME:
            add_product(right, some, omega)
        else:
            for i in range(len(some)):
                copy(some[i], left[i])
            add_product(right, left, omega)
        for i in range(len(some)):
            square = dot(some[i], some[i]) / 2
            weights[start + i, 0] = logs[0, 0] + logs[0, 1] * square
            weights[start + i, 1] = logs[1, 0] + logs[1, 1] * square
            copy(right[i], products[start + i])
            _raise(tops, right[i])
        first = n_real
        for group in range(len(bits)):
            _encode(right[: len(some), first : first + bits[group]], codes[start : start + _SOME, group])
            first += bits[group]
    flat = weights.reshape(-1)
    largest[0], largest[1] = tops[:n_real].max(), max(flat.max(), -flat.min())
    for k in range(len(flat)):
        flat[k] = exp(flat[k])


@jit
def fill(products: Array, weights: Array, some: Integers, bases: Integers, flat: Array, out: Array) -> None:
    """Write the features of both bases of some tokens side by side; ``flat (2, ·)`` is a scratch buffer."""
    column = 0
    for base in range(2):
        kind, start, n = bases[base]
        size = len(some) * n
        first, second = flat[0, :size], flat[1, :size]
        for i in range(len(some)):
            copy(products[some[i], start : start + n], first[i * n : i * n + n])
        if kind == COS_SIN:
            for k in range(size):
                first[k], second[k] = cos_sin(first[k])
        else:  # EXP uses half of it
            for k in range(size):
                first[k], second[k] = exp_both(first[k])
        for i in range(len(some)):
            here, weight = slice(i * n, i * n + n), weights[some[i], base]
            scaled(first[here], weight, out[i, column : column + n])
            if kind != EXP:
                scaled(second[here], weight, out[i, column + n : column + 2 * n])
        column += width(bases[base])


@jit
def width(base: Integers) -> int:
    """Return the number of features of a base."""
    return base[2] if base[0] == EXP else 2 * base[2]


@jit
def _raise(tops: Array, row: Array) -> None:
    """Raise each number to the magnitude of another where that is larger."""
    for j in range(len(tops)):
        tops[j] = max(tops[j], abs(row[j]))


@jit
def _encode(signs: Array, codes: Integers) -> None:
    """Encode the signs of products ``(L, g)``."""
    for i in range(len(signs)):
        code = 0
        for bit in range(signs.shape[1]):
            code |= (signs[i, bit] >= 0) << bit
        codes[i] = code

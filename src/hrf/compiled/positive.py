"""Attention with features 2^(±ωᵀu), some tokens at a time: features never leave the cache."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrf.compiled.functions import exp2_both
from hrf.compiled.jit import jit
from hrf.compiled.products import ROWS, add_product, add_product_transposed
from hrf.compiled.rows import clear, copy

__all__ = ["read", "write"]

Array = NDArray[np.floating]

_SOME = 32  # tokens


@jit
def write(tokens: Array, values: Array, factors: Array, omega: Array, states: Array, masses: Array) -> None:
    """Add Σ ψ(y) vᵀ and Σ ψ(y), each with a factor, for features of either sign.

    Args:
        tokens: y, ``(S, d)``.
        values: ``(S, c)``.
        factors: ``(S, 1)``.
        omega: ``(d, m)``.
        states: of values, and columns to no purpose, ``(2, m, w)``.
        masses: of ones, ``(2, m)``.
    """
    plus, minus, right = _room(omega, states)
    for start in range(0, len(tokens), _SOME):
        some = tokens[start : start + _SOME]
        n = len(some)
        _features(some, omega, plus, minus)
        for i in range(n):
            _scaled(values[start + i], factors[start + i, 0], right[i])
            _add(masses[0], plus[i], factors[start + i, 0])
            _add(masses[1], minus[i], factors[start + i, 0])
        add_product_transposed(states[0], plus[:n], right[:n])
        add_product_transposed(states[1], minus[:n], right[:n])


@jit
def read(tokens: Array, omega: Array, states: Array, masses: Array, out: Array, denominators: Array) -> None:
    """Quotients of what queries read of states and of masses.

    Args:
        tokens: x, ``(L, d)``.
        omega: ``(d, m)``.
        states: as of `write`.
        masses: likewise.
        out: the quotients, ``(L, c)``.
        denominators: what they were divided by, ``(L, 1)``.
    """
    plus, minus, sums = _room(omega, states)
    for start in range(0, len(tokens), _SOME):
        some = tokens[start : start + _SOME]
        n = len(some)
        _features(some, omega, plus, minus)
        clear(sums.reshape(-1))
        n_rows = n + -n % ROWS
        add_product(sums[:n_rows], plus[:n_rows], states[0])
        add_product(sums[:n_rows], minus[:n_rows], states[1])
        for i in range(n):
            mass = _dot(plus[i], masses[0]) + _dot(minus[i], masses[1])
            denominators[start + i, 0] = mass
            _scaled(sums[i, : out.shape[1]], 1 / mass, out[start + i])


@jit
def _room(omega: Array, states: Array) -> tuple[Array, Array, Array]:
    """Memory for features of either sign, and for values or sums."""
    kind, m, width = omega.dtype, omega.shape[1], states.shape[-1]
    return np.zeros((_SOME, m), kind), np.zeros((_SOME, m), kind), np.zeros((_SOME, width), kind)


@jit
def _features(tokens: Array, omega: Array, plus: Array, minus: Array) -> None:
    """Those of some tokens, in the first rows."""
    n = len(tokens)
    whole = n - n % ROWS
    clear(plus.reshape(-1))
    add_product(plus[:whole], tokens[:whole], omega)
    if whole < n:
        rest = np.zeros((ROWS, tokens.shape[1]), tokens.dtype)
        for i in range(whole, n):
            copy(tokens[i], rest[i - whole])
        add_product(plus[whole : whole + ROWS], rest, omega)
    first, second = plus.reshape(-1), minus.reshape(-1)
    for k in range(len(first)):
        first[k], second[k] = exp2_both(first[k])


@jit
def _scaled(row: Array, factor: float, out: Array) -> None:
    for j in range(len(row)):
        out[j] = row[j] * factor


@jit
def _add(total: Array, row: Array, factor: float) -> None:
    for j in range(len(total)):
        total[j] += row[j] * factor


@jit
def _dot(row: Array, other: Array) -> float:
    total = row[0] * other[0]
    for j in range(1, len(row)):
        total += row[j] * other[j]
    return total

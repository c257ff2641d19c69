"""Sums by sign code in compiled loops."""

from __future__ import annotations

import numpy as np
import pytest

from attention.loops.data import GROUPS, KINDS, random

pytest.importorskip("numba")

from hrf._attention.loops.codes import read, write
from hrf._attention.loops.features import COS_SIN, EXP, EXP_BOTH, prepare
from hrf._attention.loops.products import ROWS, padded

DIM = 6


class TestCodes:
    DIM, VALUES, BASES = 6, 5, ((EXP_BOTH, 0, 3), (COS_SIN, 0, 3))

    @classmethod
    def prepared(cls, bits, length, kind, bases=BASES, seed=0):
        """Tokens, and what is prepared of them: products, weights and codes."""
        n_real = max(start + n for _, start, n in bases)
        tokens, omega = random(length, cls.DIM, kind=kind, seed=seed), np.zeros((cls.DIM, 32), kind)
        omega[:, : n_real + sum(bits)] = random(cls.DIM, n_real + sum(bits), kind=kind, seed=7)
        products, weights = np.empty((length, 32), kind), np.empty((length, 2), kind)
        codes, largest = np.empty((length, len(bits)), np.int64), np.empty(2, kind)
        logs = np.array([[0.5, -1], [0.25, 1]], kind)
        prepare(tokens, products, weights, codes, largest, omega, np.array(bits), np.array(bases), logs)
        return tokens, omega, logs, products, weights, codes, largest

    @staticmethod
    def features(products, weights, bases):
        found = []
        for (kind, start, n), weight in zip(bases, weights.astype(float).T, strict=True):
            p = products[:, start : start + n].astype(float)
            functions = {EXP: [np.exp], EXP_BOTH: [np.exp, lambda p: np.exp(-p)], COS_SIN: [np.cos, np.sin]}
            found += [weight[:, None] * function(p) for function in functions[kind]]
        return np.concatenate(found, 1)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("bits", GROUPS)
    @pytest.mark.parametrize("length", [1, 32, 50])
    def test_what_is_prepared(self, kind, bits, length):
        tokens, omega, logs, products, weights, codes, largest = self.prepared(bits, length, kind)
        exact, size = tokens.astype(float) @ omega, abs(tokens) @ abs(omega)
        assert (abs(products - exact) <= self.DIM * np.finfo(kind).eps * size).all()
        log_weights = logs[:, 0] + logs[:, 1] * (tokens.astype(float) ** 2).sum(1, keepdims=True) / 2
        rounding = (self.DIM + 4) * np.finfo(kind).eps * (1 + abs(log_weights))
        assert (abs(weights / np.exp(log_weights) - 1) <= rounding).all()
        assert largest[0] == abs(products[:, :3]).max()
        np.testing.assert_allclose(
            largest[1], abs(log_weights).max(), rtol=(self.DIM + 4) * np.finfo(kind).eps
        )
        start = 3
        for group, n in enumerate(bits):
            signs = products[:, start : start + n] >= 0
            assert (codes[:, group] == signs @ (1 << np.arange(n))).all()
            start += n

    def states(self, bits, kind):
        width = sum(n if kind == EXP else 2 * n for kind, _, n in self.BASES)
        return np.zeros((len(bits), 2 * max(bits), (width + -width % ROWS) * (padded(self.VALUES) + 1)), kind)

    @staticmethod
    def parts(state, width):
        """The sums of φ(y) v(y)ᵀ and of φ(y) side by side."""
        wide = width + -width % ROWS
        matrix, mass = np.split(state, [len(state) - wide])
        return np.concatenate([matrix.reshape(wide, -1)[:width, : TestCodes.VALUES], mass[:width, None]], 1)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("bits", GROUPS)
    @pytest.mark.parametrize("length", [1, 3, 200])
    def test_states(self, kind, bits, length):
        *_, products, weights, codes, _ = self.prepared(bits, length, kind)
        codes[2:3] = 2 ** max(bits)  # left out
        values, states = random(length, self.VALUES, kind=kind, seed=1), self.states(bits, kind)
        write(products, weights, codes, values, states, np.array(bits), np.array(self.BASES))
        phi = self.features(products, weights, self.BASES)
        ones = np.concatenate([values, np.ones((length, 1), kind)], 1)
        for group, n in enumerate(bits):
            kept = codes[:, group] < 2 ** max(bits)
            for bit in range(n):
                for value in range(2):
                    some = ((codes[:, group] >> bit & 1) == value) & kept
                    found = self.parts(states[group, 2 * bit + value], phi.shape[1])
                    size = abs(phi[some].T) @ abs(ones[some]) + np.finfo(kind).tiny
                    rounding = (length + n + 8) * np.finfo(kind).eps
                    assert (abs(found - phi[some].T @ ones[some]) <= rounding * size).all()

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("bits", GROUPS)
    @pytest.mark.parametrize("length", [1, 3, 200])
    @pytest.mark.parametrize(
        "bases", [BASES, ((EXP, 0, 2), (EXP_BOTH, 2, 5)), ((COS_SIN, 0, 5), (EXP, 5, 2))]
    )
    def test_sums(self, kind, bits, length, bases):
        *_, products, weights, codes, _ = self.prepared(bits, length, kind, bases)
        phi = self.features(products, weights, bases)
        states = random(*self.states(bits, kind).shape, kind=kind, seed=5)
        wide = phi.shape[1] + -phi.shape[1] % ROWS
        states = np.ascontiguousarray(np.tile(states, 4)[..., : wide * (padded(self.VALUES) + 1)])
        out = np.full((length, padded(self.VALUES + 1)), np.nan, kind)
        read(products, weights, codes, out, states, np.array(bits), np.array(bases), self.VALUES)
        kind_0, _, n_0 = bases[0]
        first = n_0 if kind_0 == EXP else 2 * n_0
        for token in range(length):
            expected = size = 0
            for group, n in enumerate(bits):
                for bit in range(n):
                    own = codes[token, group] >> bit & 1
                    other, same = (
                        self.parts(states[group, 2 * bit + v], phi.shape[1]) for v in (1 - own, own)
                    )
                    state = np.concatenate([other[:first], same[first:]]).astype(float)
                    expected, size = expected + phi[token] @ state, size + abs(phi[token]) @ abs(state)
            rounding = (wide + sum(bits) + 8) * np.finfo(kind).eps
            assert (abs(out[token, : self.VALUES + 1] - expected) <= rounding * size).all()

    def test_a_state_that_is_not_asked_for_does_not_count(self):
        """Not even to rounding: no difference is taken."""
        bases, codes = np.array([[EXP_BOTH, 0, 3], [EXP, 0, 2]]), np.full((9, 1), 5)
        states = np.zeros((1, 6, 8 * 9))
        own = 2 * np.arange(3) + np.array([1, 0, 1])
        states[0, own] = 1e300
        states[0, own, 48:64], states[0, own, 70:] = 0, 0  # of the second base
        out = np.ones((9, 8))
        read(np.zeros((9, 8)), np.ones((9, 2)), codes, out, states, np.array([3]), bases, 7)
        assert not out.any()

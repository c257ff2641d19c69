"""Exact pairs in compiled loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attention.loops.data import KINDS, random

pytest.importorskip("numba")

from hrf._attention.loops.pairs import met


class TestPairs:
    @staticmethod
    def case(kind, size=10, dim=7, columns=3, spread=1.0):
        generator = np.random.default_rng(0)
        counts = np.array([10, 4, 1, 10])
        members = np.zeros((4, size), np.int64)
        order, start = generator.permutation(25), 0
        for block, n in enumerate(counts):
            members[block, :n] = order[start : start + n]
            members[block, n:] = members[block, 0]
            start += n
        lists = [generator.integers(0, 90, n) for n in (150, 0, 3, 64)]
        tokens, lengths = np.concatenate(lists), np.array([len(keys) for keys in lists])
        x, y = spread * random(25, dim, kind=kind), random(90, dim, kind=kind, seed=1)
        return (
            members,
            np.arange(size) < counts[:, None],
            lengths.cumsum() - lengths,
            lengths[:, None],
            np.zeros((4, size, columns), kind),
            np.full((4, size, 1), -np.inf, kind),
            tokens,
            x,
            y,
            random(90, columns, kind=kind, seed=2),
        )

    @staticmethod
    def check(case, seen):
        """All places with a query against the definition; ``seen(block, place)`` says how many keys it meets."""
        members, filled, first, _, sums, scales, tokens, x, y, values = case
        kind, dim = x.dtype, x.shape[1]
        for block, place in zip(*filled.nonzero(), strict=True):
            keys = tokens[first[block] : first[block] + seen(block, place)]
            if not len(keys):
                assert scales[block, place] == -np.inf
                assert not sums[block, place].any()
                continue
            logs = y[keys].astype(float) @ x[members[block, place]]
            size = (abs(y[keys]) @ abs(x[members[block, place]])).max()
            scale = float(scales[block, place, 0])
            assert abs(scale - logs.max()) <= dim * np.finfo(kind).eps * size
            weights = np.exp2(logs - scale)
            # Logarithms are as good as their products, weights as these, and sums as both.
            rounding = (math.log(2) * (dim + 1) * size + len(keys) + 4) * np.finfo(kind).eps
            error = abs(sums[block, place] - weights @ values[keys])
            assert (error <= rounding * (weights @ abs(values[keys]))).all()

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("spread", [0.0, 1.0, 30.0])
    def test_lists(self, kind, spread):
        case = self.case(kind, spread=spread)
        met(*case)
        self.check(case, lambda block, place: case[3][block, 0])

    @pytest.mark.parametrize("kind", KINDS)
    def test_beginnings_of_lists(self, kind):
        case = list(self.case(kind))
        case[3] = np.minimum(case[3], np.array([0, 1, 63, 64, 65, 150, 2, 9, 80, 128]))
        met(*case)
        self.check(case, lambda block, place: case[3][block, place])

    def test_a_later_key_changes_nothing(self):
        case = list(self.case(np.float32))
        case[3] = np.minimum(case[3], np.arange(10))
        met(*case)
        before = [t.copy() for t in case[4:6]]
        unseen = np.setdiff1d(np.arange(90), case[6][np.r_[0:9, 150:159, 153:162]])
        case[9][unseen] = 1e38
        case[4], case[5] = np.zeros_like(case[4]), np.full_like(case[5], -np.inf)
        met(*case)
        assert all((a == b).all() for a, b in zip(before, case[4:6], strict=True))

"""Compiled loops against what they compute, and attention with and without them."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch

import hrf
from attention.engines import inputs, reference
from hrf import compiled
from hrf.attention import angular, clusters

pytest.importorskip("numba")

from hrf.compiled.codes import encode, read, write
from hrf.compiled.functions import exp2
from hrf.compiled.jit import jit
from hrf.compiled.pairs import met
from hrf.compiled.products import COLUMNS, ROWS, add_product, add_product_transposed, padded

KINDS = [np.float32, np.float64]
GROUPS = [[3], [2, 2, 1], [1], [5, 4]]  # of bits
DIM = 6


@pytest.fixture(params=["team", "pool", "alone"])
def threads(request, monkeypatch):
    """Two threads of OpenMP, two of a pool, or one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if request.param == "alone" else 2)
    if request.param == "pool":
        monkeypatch.setattr(compiled, "_team", lambda: None)
    yield request.param
    torch.set_num_threads(before)


def random(*shape, kind=np.float64, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(kind)


class TestEach:
    def test_calls_with_each(self, threads):
        out = np.zeros(100)
        compiled.each(lambda row, number: row.fill(number), ((out[i : i + 1], i) for i in range(100)))
        assert out.tolist() == list(range(100))

    def test_errors_arrive(self, threads):
        def fail(i):
            if i == 7:
                raise ValueError(f"received {i}")

        with pytest.raises(ValueError, match="received 7"):
            compiled.each(fail, ((i,) for i in range(20)))

    def test_nothing_to_do(self, threads):
        compiled.each(pytest.fail, [])


class TestServes:
    def test_float32_and_float64_of_this_machine(self):
        assert compiled.serves(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
        assert not compiled.serves(torch.zeros(2, dtype=torch.bfloat16))
        assert not compiled.serves(torch.zeros(2), torch.zeros(2, device="meta"))

    def test_no_transform_of_torch_func(self):
        seen = []
        torch.func.vmap(lambda t: seen.append(compiled.serves(t)) or t)(torch.zeros(2, 3))
        assert seen == [False]

    def test_not_without_numba(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "numba", None)
        assert not compiled.installed.__wrapped__()

    def test_not_without_compiler(self, monkeypatch):
        monkeypatch.setattr("numba.config.DISABLE_JIT", True)
        assert not compiled.installed.__wrapped__()


@jit
def _powers(t, out):
    for i in range(len(t)):
        out[i] = exp2(t[i])


def powers(t):
    out = np.empty_like(t)
    _powers(t, out)
    return out


class TestExp2:
    def test_two_roundings_in_float32(self):
        t = np.linspace(-126, 127, 100_001).astype(np.float32)
        exact = np.exp2(t.astype(np.float64))
        assert abs(powers(t) / exact - 1).max() < 2 * np.finfo(np.float32).eps

    def test_whole_numbers_are_exact(self):
        t = np.arange(-126, 128).astype(np.float32)
        assert (powers(t) == np.exp2(t.astype(np.float64))).all()

    def test_nothing_is_left_below(self):
        assert not powers(np.array([-127, -1000, -np.inf], np.float32)).any()

    def test_float64(self):
        t = np.linspace(-700, 700, 10_001)
        np.testing.assert_allclose(powers(t), np.exp2(t), rtol=4 * np.finfo(np.float64).eps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(8, 1, 8), (16, 5, 24), (8, 33, 32), (24, 7, 72), (64, 16, 40), (8, 0, 8)]
)
def test_product(kind, transposed, m, k, n):
    assert m % ROWS == n % COLUMNS == 0
    left = random(*((k, m) if transposed else (m, k)), kind=kind)
    right, out = random(k, n, kind=kind, seed=1), random(m, n, kind=kind, seed=2)
    a, b = (left.T if transposed else left).astype(np.longdouble), right.astype(np.longdouble)
    expected, size = out + a @ b, abs(out) + abs(a) @ abs(b)
    (add_product_transposed if transposed else add_product)(out, left, right)
    assert (abs(out - expected) <= (k + 1) * np.finfo(kind).eps * size).all()


@pytest.mark.parametrize(("n", "multiple"), [(0, 0), (1, 8), (8, 8), (65, 72)])
def test_padding(n, multiple):
    assert padded(n) == multiple


class TestCodes:
    @pytest.mark.parametrize("bits", GROUPS)
    def test_signs(self, bits):
        products = random(50, sum(bits))
        products[3] = 0  # counts as positive
        codes = np.empty((len(bits), 50), np.int64)
        encode(products, np.array(bits), codes)
        start = 0
        for group, n in enumerate(bits):
            signs = products[:, start : start + n] >= 0
            assert (codes[group] == signs @ (1 << np.arange(n))).all()
            start += n

    @staticmethod
    def case(bits, length, kind, width=11, columns=5):
        codes = np.stack([np.random.default_rng(3).integers(0, 2**n, length) for n in bits])
        features, values = random(length, width, kind=kind), random(length, columns, kind=kind, seed=1)
        return codes, features, values, np.zeros((len(bits), 2 * max(bits), width, padded(columns + 1)), kind)

    @staticmethod
    def has(codes, bit, value):
        return (codes >> bit & 1) == value

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("bits", GROUPS)
    @pytest.mark.parametrize("length", [1, 3, 200])
    def test_states(self, kind, bits, length):
        codes, features, values, states = self.case(bits, length, kind)
        codes[:, 2:3] = 2 ** max(bits)  # left out
        write(features, codes, np.array(bits), values, states)
        ones = np.concatenate([values, np.ones((length, 1), kind)], 1)
        for group, n in enumerate(bits):
            kept = codes[group] < 2 ** max(bits)
            for bit in range(n):
                for value in range(2):
                    some = self.has(codes[group], bit, value) & kept
                    expected = features[some].T.astype(float) @ ones[some]
                    size = abs(features[some].T) @ abs(ones[some]) + np.finfo(kind).tiny
                    found = states[group, 2 * bit + value, :, : ones.shape[1]]
                    assert (abs(found - expected) <= (length + n) * np.finfo(kind).eps * size).all()

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("bits", GROUPS)
    @pytest.mark.parametrize("length", [1, 3, 200])
    @pytest.mark.parametrize("first", [0, 4, 11])
    def test_sums(self, kind, bits, length, first):
        codes, features, _, states = self.case(bits, length, kind)
        states[:] = random(*states.shape, kind=kind, seed=5)
        out = np.full((length, states.shape[-1]), np.nan, kind)
        read(features, codes, np.array(bits), states, out, first)
        expected, size = np.zeros(out.shape), np.zeros(out.shape)
        for group, n in enumerate(bits):
            for bit in range(n):
                own = codes[group] >> bit & 1
                state = states[group, 2 * bit + own].astype(float)
                state[:, :first] = states[group, 2 * bit + 1 - own][:, :first]
                expected += np.einsum("td,tdc->tc", features, state)
                size += np.einsum("td,tdc->tc", abs(features), abs(state))
        assert (abs(out - expected) <= (features.shape[1] + sum(bits)) * np.finfo(kind).eps * size).all()

    def test_a_state_that_is_not_asked_for_does_not_count(self):
        """Not even to rounding: no difference is taken."""
        codes = np.full((1, 9), 5)
        states = np.zeros((1, 6, 8, 8))
        own = 2 * np.arange(3) + np.array([1, 0, 1])
        states[0, own] = 1e300
        out = np.ones((9, 8))
        read(np.ones((9, 8)), codes, np.array([3]), states, out, 8)
        assert not out.any()


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


def maps():
    torch.manual_seed(0)
    yield hrf.AngularHybrid(DIM, n_projections=8, n_coefficient_projections=8)
    yield hrf.AngularHybrid(DIM, n_projections=5, n_coefficient_projections=11, heads=3)
    x, y = 0.5 * torch.randn(2, 3, 200, DIM)
    for base in ("separable", "paper"):
        yield hrf.ClusteredHybrid.fit(x, y, n_clusters=(4, 5), base=base, exact_share=0.3, heads=3)


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("index", range(4))
def test_sums_with_and_without(monkeypatch, threads, loops, dtype, masked, index):
    """Both ways are as near to the definition: eight bits of the type are for roundings of logarithms and sums."""
    monkeypatch.setattr(compiled, "installed", lambda: loops)
    phi = list(maps())[index].double()
    x, y, values = inputs(2, 3, length=130, keys=140, dim=DIM)
    keep = torch.arange(140) < torch.tensor([100, 140]).view(2, 1, 1) if masked else None
    expected, size = reference(x, y, values, phi, keep)
    engine = angular if index < 2 else clusters
    found = engine.sums(*(t.to(dtype) for t in (x, y, values)), phi.to(dtype), keep).unscaled()
    assert ((found - expected).abs() <= 2**8 * torch.finfo(dtype).eps * size).all()

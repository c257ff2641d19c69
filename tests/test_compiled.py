"""Compiled loops against what they compute, and attention with and without them."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch

import hrf
from attention.engines import inputs, reference
from hrf._attention import loops as compiled
from hrf._attention.angular import stream as angular
from hrf._attention.clustered import bidirectional as clusters

pytest.importorskip("numba")

from numba.core.errors import TypingError

from hrf._attention.loops.codes import read, write
from hrf._attention.loops.features import COS_SIN, EXP, EXP_BOTH, prepare
from hrf._attention.loops.functions import cos_sin, exp, exp2, exp_both
from hrf._attention.loops.jit import jit
from hrf._attention.loops.pairs import met
from hrf._attention.loops.products import COLUMNS, ROWS, add_product, add_product_transposed, padded

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

    def test_no_more_is_done_after_an_error(self, threads):
        done = []

        def fail(i):
            done.append(i)
            raise ValueError

        with pytest.raises(ValueError):  # noqa: PT011
            compiled.each(fail, ((i,) for i in range(100)))
        assert len(done) <= 2  # one a thread

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
def _powers_of_two(t, out):
    for i in range(len(t)):
        out[0, i] = exp2(t[i])


@jit
def _powers(t, out):
    for i in range(len(t)):
        out[0, i] = exp(t[i])


@jit
def _both_powers(t, out):
    for i in range(len(t)):
        out[0, i], out[1, i] = exp_both(t[i])


@jit
def _waves(t, out):
    for i in range(len(t)):
        out[0, i], out[1, i] = cos_sin(t[i])


def run(function, t):
    out = np.zeros((2, len(t)), t.dtype)
    function(t, out)
    return out


class TestFunctions:
    """Two roundings each: that of a polynomial whose remainder is below one, and that of its argument's reduction."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        ("function", "exact", "most"),
        [
            (_powers_of_two, lambda t: [np.exp2(t)], 126),
            (_powers, lambda t: [np.exp(t)], 87),
            (_both_powers, lambda t: [np.exp(t), np.exp(-t)], 87),
        ],
    )
    def test_powers(self, kind, function, exact, most):
        t = np.linspace(-most, most, 100_001).astype(kind)
        for found, expected in zip(run(function, t), exact(t.astype(np.longdouble)), strict=False):
            assert abs(found / expected - 1).max() < 2 * np.finfo(kind).eps

    def test_whole_powers_of_two_are_exact(self):
        t = np.arange(-126, 128).astype(np.float32)
        assert (run(_powers_of_two, t)[0] == np.exp2(t.astype(np.float64))).all()

    @pytest.mark.parametrize("function", [_powers_of_two, _powers])
    def test_nothing_is_left_below(self, function):
        assert not run(function, np.array([-127, -1000, -np.inf], np.float32)).any()

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("most", [1, 30, 6000])
    def test_waves(self, kind, most):
        t = np.linspace(-most, most, 100_001).astype(kind)
        exact = t.astype(np.longdouble)
        for found, expected in zip(run(_waves, t), (np.cos(exact), np.sin(exact)), strict=True):
            assert abs(found - expected).max() < 2 * np.finfo(kind).eps


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


def test_products_of_mixed_arrays_are_refused():
    one, other = np.zeros((8, 8)), np.zeros((8, 8), np.float32)
    for arrays in ((one, other, one), (one, one, other), (one, one.T, one)):
        with pytest.raises(TypingError, match="contiguous arrays of one type"):
            add_product(*arrays)


@pytest.mark.parametrize(("n", "multiple"), [(0, 0), (1, 8), (8, 8), (65, 72)])
def test_padding(n, multiple):
    assert padded(n) == multiple


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

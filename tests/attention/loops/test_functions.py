"""Exponentials, waves and small matrix products of compiled loops."""

from __future__ import annotations

import numpy as np
import pytest

from attention.loops.data import KINDS, random

pytest.importorskip("numba")

from numba.core.errors import TypingError

from hrf._attention.loops.functions import cos_sin, exp, exp2, exp_both
from hrf._attention.loops.jit import jit
from hrf._attention.loops.products import COLUMNS, ROWS, add_product, add_product_transposed, padded


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

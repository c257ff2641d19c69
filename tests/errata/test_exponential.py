"""Errata of the complex exponential maps."""

from __future__ import annotations

import math

import pytest
import torch

import hrf
from errata.tools import (
    CENTRED,
    KEY_CENTRE,
    OMEGA,
    QUERY_CENTRE,
    at_nodes,
    bilinear,
    close,
    differ,
    hermitian,
    mean,
    printed_features,
    shown,
    vector,
)
from hrf import theory


def test_erratum_03_members_of_the_exponential_family():
    """A = I is SM⁺, and SM⁺⁺ only with ±ω; A = iI is complex, and trigonometric only in its real part."""
    x, y = vector(0.6, 0.3), vector(0.2, -0.5)
    kernel = (x @ y).exp()
    ones = torch.ones(2, dtype=torch.complex128)
    positive = theory.positive_mse(x, y, 1)
    trigonometric = theory.trigonometric_mse(x, y, 1)

    single = printed_features(x, ones, bilinear) * printed_features(y, ones, bilinear)
    assert close(mean(single.real), kernel)
    mse = mean((single.real - kernel).square())
    assert differ(mse, positive)
    assert differ(mse / 2, positive)  # nor at the same width, where SM⁺ has two rows for one of SM⁺⁺
    assert close(mse, kernel**2 * math.expm1((x + y).square().sum()))
    both = (single + printed_features(-x, ones, bilinear) * printed_features(-y, ones, bilinear)) / 2
    assert close(mean((both.real - kernel).square()), positive)
    shown(3, mse, "0.9172")
    shown(3, mse / 2, "0.4586")
    shown(3, positive, "0.2263")

    rotated = printed_features(x, 1j * ones, bilinear) * printed_features(y, -1j * ones, bilinear)
    assert close(mean(rotated).real, kernel)
    assert rotated.imag.abs().max() > 0.1
    mse = mean((rotated - kernel).abs().square())
    assert differ(mse, trigonometric)
    assert close(mean((rotated.real - kernel).square()), trigonometric)
    shown(3, mse, "1.1542")
    shown(3, trigonometric, "0.3178")

    a = ones.expand(len(OMEGA), 2)
    for matrix, antithetic, expected in ((a, False, single), (a, True, both), (1j * a, False, rotated)):
        estimates = at_nodes(hrf.Exponential, x, y, matrix=matrix, antithetic=antithetic)
        torch.testing.assert_close(estimates, expected.real, rtol=1e-10, atol=1e-10)


def test_erratum_04_square_of_a_complex_vector():
    """With ‖Ax‖² for the bilinear square (Ax)² a complex A gives a biased estimate."""
    for x, y in ((QUERY_CENTRE, KEY_CENTRE), (vector(0.7, 0.3), vector(0.1, -0.5))):
        kernel = (x @ y).exp()
        printed, corrected = (
            printed_features(x, CENTRED, square) * printed_features(y, 1 / CENTRED, square)
            for square in (hermitian, bilinear)
        )
        assert close(mean(corrected).real, kernel)
        assert differ(mean(printed).real, kernel)
        of_map = at_nodes(hrf.Exponential, x, y, matrix=CENTRED.expand(len(OMEGA), 2), antithetic=False)
        torch.testing.assert_close(of_map, corrected.real, rtol=1e-10, atol=1e-10)
        if x is QUERY_CENTRE:  # no variance at the centres, so every ω gives the same, right or wrong
            assert (printed - mean(printed)).abs().max() < 1e-12
            assert (of_map - kernel).abs().max() < 1e-12
            shown(4, kernel, "0.9802")
            shown(4, mean(printed).real, "0.8025")


def test_erratum_11_condition_for_zero_variance():
    """For real inputs the two conditions in Re and Im are the one condition Ax + A⁻ᵀy = 0."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        real, imag = torch.randn(2, 3, 3, dtype=torch.float64, generator=generator)
        x, y = torch.randn(2, 3, dtype=torch.float64, generator=generator)
        a = torch.complex(real, imag)
        inverse = torch.linalg.inv(a)
        parts = torch.cat([a.real @ x + inverse.mT.real @ y, a.imag @ x + inverse.mT.imag @ y])
        total = a @ x.to(a) + inverse.mT @ y.to(a)
        assert close(parts.norm(), total.norm())
        torch.testing.assert_close(inverse @ total, x + inverse @ inverse.mT @ y.to(a))

    # A = (1 + i)I: x = (i/2)y has no real solution, and the "relaxed" pair x = ∓y/2 has none either.
    a, y = torch.full((2,), 1 + 1j, dtype=torch.complex128), vector(1, 0)
    stacked = torch.cat([a.real.diag(), a.imag.diag()])
    target = -torch.cat([(1 / a).real * y, (1 / a).imag * y])
    x = torch.linalg.lstsq(stacked, target[:, None]).solution[:, 0]
    smallest = (stacked @ x - target).square().sum()
    shown(11, smallest, "0.5000")
    estimates = at_nodes(hrf.Exponential, x, y, matrix=a.expand(len(OMEGA), 2), antithetic=False)
    variance = mean((estimates - 1).square())
    assert close(variance, theory.exponential_mse(x, y, 1, a, antithetic=False))
    shown(11, variance, "0.2632")


def test_erratum_12_real_diagonal_at_a_key_centre_with_a_zero():
    """√|r_j/r_i| is 0 where r_j is 0: A has no inverse, and a tiny entry instead of 0 explodes."""
    query, key = QUERY_CENTRE, vector(0.2, 0)
    printed = (key / query).abs().sqrt()
    assert printed.prod() == 0
    with pytest.raises(ValueError, match="singular: 1 of its diagonal entries"):
        hrf.Exponential(2, n_projections=1, matrix=printed)
    # Near the centres, a tenth away in each coordinate: second moments (r² + 0.1²) against a small constant.
    x, y = query[None] + 0.1, key[None] + 0.1
    moments = ((key**2 + 0.01) / (query**2 + 0.01)) ** 0.25
    tiny = vector(float(printed[0]), 0.01)
    errors = [
        float(hrf.Exponential(2, n_projections=1, matrix=a, projection="iid").double().relative_error(x, y))
        for a in (tiny, moments)
    ]
    shown(12, math.log10(errors[0]), "21.7")
    shown(12, errors[1], "0.68")

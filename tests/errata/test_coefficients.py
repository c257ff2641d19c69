"""Errata of the coefficients of hybrids."""

from __future__ import annotations

import math

import torch

import hrf
from errata.tools import (
    CENTRED,
    KEY_CENTRE,
    OMEGA,
    QUERY_CENTRE,
    at_nodes,
    bilinear,
    bits,
    close,
    differ,
    gaussian_coefficient,
    hermitian,
    mean,
    shown,
    vector,
)


def test_erratum_05_gaussian_mixture_coefficient():
    """With a complex A the printed λ exceeds 1 or misses its features; the real form does neither."""

    def printed(x, y, square):
        return torch.exp(-square(CENTRED * x + y / CENTRED) / 2).real

    def linearised(x, y, square):
        return (torch.exp(-square(CENTRED * x) / 2 - square(y / CENTRED) / 2) * (-x @ y).exp()).real

    magnitude, sign = CENTRED.abs(), torch.where(CENTRED.imag == 0, 1.0, -1.0)

    def sides(x, y):
        return magnitude * x, -sign * y / magnitude

    def corrected(x, y):
        query, key = sides(x, y)
        return hrf.kernels.gaussian(query[None], key[None])[0, 0]

    # The bilinear square makes the two printed lines one, and grows without bound in imaginary coordinates.
    x, y = vector(2.0, 0.4), KEY_CENTRE
    assert close(printed(x, y, bilinear), linearised(x, y, bilinear))
    assert close(printed(QUERY_CENTRE, KEY_CENTRE, bilinear), 1)
    shown(5, printed(x, y, bilinear), "1.5683")
    for step in (-0.3, -0.01, 0.01, 0.3):  # a minimum at the centres
        assert printed(QUERY_CENTRE + vector(step, 0), KEY_CENTRE, bilinear) > 1
        assert printed(QUERY_CENTRE, KEY_CENTRE + vector(step, 0), bilinear) > 1
    # The norm stays in [0, 1], but then the two lines differ, and what has features peaks elsewhere.
    opposite = vector(-0.2, -0.3)
    assert close(printed(QUERY_CENTRE, KEY_CENTRE, hermitian), 1)
    shown(5, linearised(QUERY_CENTRE, KEY_CENTRE, hermitian), "0.8187")
    assert close(linearised(QUERY_CENTRE, opposite, hermitian), 1)

    assert close(corrected(QUERY_CENTRE, KEY_CENTRE), 1)
    shown(5, corrected(x, y), "0.6376")
    grid = torch.cartesian_prod(*[torch.linspace(-2, 2, 9, dtype=torch.float64)] * 4)
    values = torch.stack([corrected(point[:2], point[2:]) for point in grid[::7]])
    assert values.min() >= 0
    assert values.max() <= 1
    assert corrected(QUERY_CENTRE, opposite) < corrected(QUERY_CENTRE, KEY_CENTRE)
    for x, y in ((QUERY_CENTRE, KEY_CENTRE), (vector(0.7, 0.3), vector(0.1, -0.5))):
        query, key = sides(x, y)
        softmax = mean(at_nodes(hrf.Positive, query, key))
        assert close(softmax * torch.exp(-hermitian(query) / 2 - hermitian(key) / 2), corrected(x, y))


def test_erratum_08_features_of_the_gaussian_coefficient():
    """Without σ the printed ρ-features estimate another λ."""
    sigma, r = 2.0, 1.0
    rho = 1 - math.exp(-2 * sigma**2 * r**2)
    x = vector(r, 0)

    def linear(y, scale):
        """a + ρ(x)ᵀρ(y) with i² = −1: the mean over τ of 1/ρ − (1/ρ)(sin sin + cos cos)."""
        angles = [scale * OMEGA @ u for u in (x, y)]
        products = angles[0].sin() * angles[1].sin() + angles[0].cos() * angles[1].cos()
        return mean(1 / rho - products / rho)

    for y, exact, printed in ((vector(0, r), "0.9820", "0.6323"), (-x, "1.0000", "0.8650")):
        lam = (1 - math.exp(-(sigma**2) * (x - y).square().sum() / 2)) / rho
        assert close(linear(y, sigma), lam)
        assert differ(linear(y, 1.0), lam)
        values, chance = gaussian_coefficient(x, y, sigma=sigma, radius=r)
        assert close(chance @ values, lam)
        shown(8, lam, exact)
        shown(8, linear(y, 1.0), printed)


def test_erratum_10_second_moment_of_the_angular_coefficient():
    """The middle line lacks −(1 − 1/n); the last line is right."""
    for q, n in ((1 / 3, 2), (0.1, 5), (0.9, 3)):
        share, chance = bits(q, n)
        exact = chance @ share**2
        printed = (4 * q + (1 - 1 / n) * (1 - 2 * q) ** 2) / 4
        corrected = (4 * q - (1 - 1 / n) + (1 - 1 / n) * (1 - 2 * q) ** 2) / 4
        assert close(exact, corrected)
        assert close(exact, q * (q - q / n + 1 / n))
        assert differ(exact, printed)
        if n == 2:
            shown(10, exact, "0.2222")
            shown(10, printed, "0.3472")

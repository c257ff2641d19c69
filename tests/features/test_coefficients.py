"""Coefficients follow their definitions, and their moments the closed forms."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

import hrf
from features.registry import CENTERS, X, Y
from hrf import coefficients

SPHERE = 0.9 * normalize(Y, dim=-1)


def angular(n: int = 5, **arguments) -> coefficients.Angular:
    return coefficients.Angular(4, n_projections=n, **arguments)


def test_coefficients_follow_their_definitions():
    x, y = X[1:], Y
    lam = coefficients.Gaussian(hrf.Positive(4, n_projections=2), scale=1.5).exact(x, y)
    torch.testing.assert_close(lam, (-(torch.cdist(x, -y) ** 2) / (2 * 1.5**2)).exp())
    sphere = SPHERE
    bipolar = coefficients.Gaussian.bipolar(hrf.Trigonometric(4, n_projections=2), sigma=2.0, radius=0.9)
    torch.testing.assert_close(bipolar.exact(sphere, sphere).diagonal(), torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(bipolar.exact(sphere, -sphere).diagonal(), torch.ones(4, dtype=torch.float64))
    cosine = (normalize(x, dim=-1) @ normalize(y, dim=-1).mT).clamp(-1, 1)
    torch.testing.assert_close(angular().exact(x, y), cosine.arccos() / torch.pi)
    inside = coefficients.Indicator(CENTERS, -CENTERS, pair=(0, 1))
    expected = (torch.cdist(x, CENTERS).argmin(-1) == 0)[:, None] & (torch.cdist(y, -CENTERS).argmin(-1) == 1)
    assert torch.equal(inside.estimate(x, y), expected.double())


@pytest.mark.stat
@pytest.mark.parametrize("projection", ["iid", "orthogonal"])
@pytest.mark.parametrize(
    "make",
    [
        lambda **a: coefficients.Angular(4, n_projections=6, **a),
        lambda **a: coefficients.Gaussian.bipolar(
            hrf.Trigonometric(4, n_projections=6, **a), sigma=1.2, radius=0.9
        ),
        lambda **a: coefficients.FromFeatureMap(
            hrf.Positive(4, n_projections=6, **a), constant=0.3, weight=-0.5
        ),
    ],
    ids=["angular", "bipolar", "from map"],
)
def test_moments_of_coefficients(make, projection):
    draws = 20_000
    lam = make(projection=projection, heads=draws, generator=torch.Generator().manual_seed(0)).double()
    estimates = lam.estimate(X.unsqueeze(0), Y.unsqueeze(0))
    moments = make(projection=projection).moments(X, Y)
    for values, expected in (
        (estimates, moments.mean),
        (estimates.square(), moments.square),
        ((1 - estimates).square(), moments.complement_square),
        (estimates * (1 - estimates), moments.cross),
    ):
        error = (values.mean(0) - expected.value()).abs()
        assert (error <= 5 * values.std(0) / draws**0.5 + 1e-13).all()


def test_coefficient_feature_form_equals_estimate():
    for lam in (
        angular(),
        coefficients.Gaussian.bipolar(hrf.Positive(4, n_projections=3), sigma=1.0, radius=0.9),
    ):
        lam.double()
        linear = lam.constant + lam.queries(X) @ lam.keys(Y).mT
        torch.testing.assert_close(lam.estimate(X, Y), linear, rtol=1e-13, atol=1e-13)


def test_a_zero_vector_has_fair_bits_in_closed_form_too():
    lam = coefficients.Angular(4, n_projections=4)
    moments = lam.moments(torch.zeros(1, 4), Y)
    torch.testing.assert_close(moments.square.value(), torch.full((1, 4), 0.25 + 1 / 16, dtype=torch.float64))

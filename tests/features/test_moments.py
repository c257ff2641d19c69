"""Moments of coefficients in closed form: means for any projections, magnitudes for any norms."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

import hrf
from features.registry import DIM, M, N, X, Y
from hrf import coefficients

COUPLED = ("halton", "sobol", "simplex", "hadamard")


@pytest.mark.parametrize("kind", hrf.projections.KINDS)
def test_the_mean_is_known_whatever_the_projections(kind):
    common = {"n_projections": N, "projection": kind}
    x, y = X[1:], Y
    cosine = (x @ y.mT) / (x.norm(dim=-1)[:, None] * y.norm(dim=-1))
    angular = coefficients.Angular(DIM, **common)
    torch.testing.assert_close(angular.exact(x, y), cosine.arccos() / math.pi)
    gaussian = coefficients.Gaussian(hrf.Positive(DIM, **common), scale=1.5)
    torch.testing.assert_close(gaussian.exact(x, y), (-(torch.cdist(x, -y) ** 2) / (2 * 1.5**2)).exp())
    affine = coefficients.FromFeatureMap(hrf.Positive(DIM, **common), constant=0.3, weight=-0.5)
    torch.testing.assert_close(affine.exact(x, y), 0.3 - 0.5 * (x @ y.mT).exp())


@pytest.mark.parametrize("kind", COUPLED)
def test_the_other_moments_are_not_and_say_so(kind):
    with pytest.raises(NotImplementedError, match=f"Angular with '{kind}' projections"):
        coefficients.Angular(DIM, n_projections=N, projection=kind).moments(X, Y)
    inner = hrf.Positive(DIM, n_projections=N, projection=kind)
    with pytest.raises(NotImplementedError, match=f"Positive with '{kind}' projections"):
        coefficients.FromFeatureMap(inner).moments(X, Y)


def test_a_coefficient_without_closed_forms_says_so():
    class Unknown(coefficients.Coefficient):
        dim, heads, feature_dim = DIM, None, 1

    with pytest.raises(NotImplementedError, match="mean of Unknown"):
        Unknown().exact(X, Y)
    with pytest.raises(NotImplementedError, match="moments of Unknown"):
        Unknown().moments(X, Y)


@pytest.mark.parametrize("norm", [1.0, 30.0, 100.0])
def test_the_mse_of_a_hybrid_whose_coefficient_overflows_is_that_of_the_lemma(norm):
    """λ is a Gaussian kernel estimated with positive features: its variance reaches e^20000."""
    common = {"projection": "iid"}
    inner = hrf.Positive(DIM, n_projections=N, **common)
    bases = [base(DIM, n_projections=M, **common) for base in (hrf.Positive, hrf.Trigonometric)]
    phi = hrf.Hybrid(bases, [coefficients.Gaussian(inner, matrix=-torch.ones(DIM))]).double()
    x, y = (norm * torch.nn.functional.normalize(u[1:3], dim=-1) for u in (X, Y))
    log_mse = phi.log_mse(x, y)
    for i, u in enumerate(x.tolist()):
        for j, v in enumerate(y.tolist()):
            expected = float(mpmath.log(_mse(u, v)))
            assert math.isclose(log_mse[i, j].item(), expected, rel_tol=1e-12, abs_tol=1e-12)


def _mse(x: list[float], y: list[float]) -> mpmath.mpf:
    """E λ̂² MSE⁺⁺ + E(1 − λ̂)² MSE^trig (paper, Theorem 3.1) with λ = exp(−‖x − y‖²/2), in many digits."""
    with mpmath.workdps(60):
        total, delta = (
            mpmath.fsum((mpmath.mpf(a) + s * mpmath.mpf(b)) ** 2 for a, b in zip(x, y, strict=True))
            for s in (1, -1)
        )
        squared_kernel = mpmath.exp((total - delta) / 2)

        def variance(square: mpmath.mpf, rows: int) -> mpmath.mpf:
            return mpmath.exp(square) * (1 - mpmath.exp(-square)) ** 2 / (2 * rows)

        mean = mpmath.exp(-delta / 2)
        spread = mean**2 * variance(total, N)
        relative = (mean**2 + spread) * variance(total, M) + ((1 - mean) ** 2 + spread) * variance(delta, M)
        return squared_kernel * relative

"""Hybrids K̂ = Σ λ̂_k K̂_k + (1 − Σ λ̂_k) K̂_{p+1} (paper, Sec. 2.2): MSEs from the moments of λ̂ and of the bases.

The coefficients are independent of the bases, so with λ̂_{p+1} = 1 − Σ λ̂_k the MSE is
Σ_{kl} E[λ̂_k λ̂_l] Cov(K̂_k, K̂_l): Theorem 3.1 of the paper for any number of bases. The MSEs below follow
the corrected theorems (docs/errata.md), which differ from the paper in two places: a coefficient for inputs of equal
length, and the claim that sharing projections never changes the MSE of the Gaussian hybrid.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hrf.theory.coefficients import Moments, angle, angular_moments, gaussian_moments
from hrf.theory.exponential import exponential_covariance
from hrf.theory.scaled import Scaled, complement, scaled_sum

__all__ = [
    "angular_hybrid_log_mse",
    "angular_hybrid_mse",
    "bipolar_log_mse",
    "gaussian_hybrid_log_mse",
    "gaussian_hybrid_mse",
    "hybrid_covariance",
]


def hybrid_covariance(moments: Sequence[Moments], covariances: Sequence[Sequence[Scaled | None]]) -> Scaled:
    """Return Σ_{kl} E[λ̂_k λ̂_l] Cov_kl, the variance of a hybrid of p + 1 bases (paper, Theorem 3.1, for any p).

    With the means μ_k, where μ_{p+1} = 1 − Σ μ_k, and the variances V_k of the p coefficients it is
    Σ_{kl} μ_k μ_l Cov_kl + Σ_k V_k Var(K̂_k − K̂_{p+1}).

    Args:
        moments: Moments of the p coefficients, which are independent of one another.
        covariances: Covariances of the p + 1 bases, symmetric; None where two bases are independent.

    Returns:
        The variance, in the units of the covariances (relative where they are relative).
    """
    means = [moment.mean for moment in moments]
    means.append(complement(*means))
    terms = [
        (covariance, weight.times(other))
        for weight, row in zip(means, covariances, strict=True)
        for other, covariance in zip(means, row, strict=True)
    ]
    for k, moment in enumerate(moments):
        v = moment.variance
        terms += [(covariances[k][k], v), (covariances[k][-1], v.times(-2)), (covariances[-1][-1], v)]
    return scaled_sum(*(covariance.times(weight) for covariance, weight in terms if covariance is not None))


def bipolar_log_mse(
    x: Tensor, y: Tensor, moments: Moments, n_projections: int, *, shared: bool, orthogonal: bool = False
) -> Tensor:
    """Log MSE of λ̂K̂⁺⁺ + (1 − λ̂)K̂^trig (paper, Theorem 3.1).

    The MSE is E λ̂² MSE⁺⁺ + E(1 − λ̂)² MSE^trig + 2E[λ̂(1 − λ̂)] Cov(K̂⁺⁺, K̂^trig).
    Independent bases have Cov = 0; bases that share their rows have Cov = −(1/m) e^{2xᵀy}(1 − cos(‖x‖² − ‖y‖²)).

    Args:
        x: Queries ``(..., d)``.
        y: Keys ``(..., d)``, broadcast against ``x``.
        moments: Moments of λ̂, of shape ``(...)``.
        n_projections: m, the rows of each base.
        shared: Whether both bases use the same rows.
        orthogonal: Whether the rows come in Haar blocks.
    """
    imaginary = torch.full((x.shape[-1],), 1j, dtype=x.dtype.to_complex(), device=x.device)
    positive = exponential_covariance(x, y, n_projections, (None, None), (True, True), orthogonal)
    trigonometric = exponential_covariance(x, y, n_projections, (imaginary,) * 2, (False, False), orthogonal)
    between = None
    if shared:
        between = exponential_covariance(x, y, n_projections, (None, imaginary), (True, False), orthogonal)
    variance = hybrid_covariance([moments], [[positive, between], [between, trigonometric]])
    return variance.log() + 2 * (x * y).sum(-1)


def angular_hybrid_log_mse(
    x: Tensor,
    y: Tensor,
    n_projections: int,
    n_coefficient_projections: int,
    *,
    shared: bool = True,
    orthogonal: bool = False,
) -> Tensor:
    """Log MSE of the angular hybrid, λ = θ/π (paper, Theorem D.1); ``orthogonal`` applies to both ω and τ."""
    dim, zero = x.shape[-1] if orthogonal else None, ~(x.any(-1) & y.any(-1))
    moments = angular_moments(angle(x, y), n_coefficient_projections, dim=dim, zero=zero)
    return bipolar_log_mse(x, y, moments, n_projections, shared=shared, orthogonal=orthogonal)


def angular_hybrid_mse(
    x: Tensor,
    y: Tensor,
    n_projections: int,
    n_coefficient_projections: int,
    *,
    shared: bool = True,
    orthogonal: bool = False,
) -> Tensor:
    """MSE of the angular hybrid (paper, Theorem D.1): zero at x = y and at x = −y.

    >>> x = torch.tensor([0.6, 0.8], dtype=torch.float64)
    >>> angular_hybrid_mse(x, torch.stack([x, -x]), 8, 4)
    tensor([0., 0.], dtype=torch.float64)
    """
    log_mse = angular_hybrid_log_mse(
        x, y, n_projections, n_coefficient_projections, shared=shared, orthogonal=orthogonal
    )
    return log_mse.exp()


def gaussian_hybrid_log_mse(
    x: Tensor,
    y: Tensor,
    n_projections: int,
    n_coefficient_projections: int,
    *,
    sigma: float,
    radius: float,
    shared: bool = True,
    orthogonal: bool = False,
) -> Tensor:
    """Log MSE of the normalised bipolar Gaussian hybrid (paper, Theorem F.1); ``orthogonal`` applies to ω and τ."""
    moments = gaussian_moments(
        x, y, n_coefficient_projections, sigma=sigma, radius=radius, orthogonal=orthogonal
    )
    return bipolar_log_mse(x, y, moments, n_projections, shared=shared, orthogonal=orthogonal)


def gaussian_hybrid_mse(
    x: Tensor,
    y: Tensor,
    n_projections: int,
    n_coefficient_projections: int,
    *,
    sigma: float,
    radius: float,
    shared: bool = True,
    orthogonal: bool = False,
) -> Tensor:
    """MSE of the normalised bipolar Gaussian hybrid (paper, Theorem F.1).

    The theorem says that sharing rows between the bases does not change the MSE; this holds only where
    ‖x‖² − ‖y‖² is a multiple of 2π, for instance on a sphere.
    """
    log_mse = gaussian_hybrid_log_mse(
        x,
        y,
        n_projections,
        n_coefficient_projections,
        sigma=sigma,
        radius=radius,
        shared=shared,
        orthogonal=orthogonal,
    )
    return log_mse.exp()

"""Moments of the estimated coefficients λ̂ of a hybrid (paper, Lemma 3.2 and Theorem F.1).

A hybrid λ̂K̂₁ + (1 − λ̂)K̂₂ needs E λ̂², E(1 − λ̂)² and E λ̂(1 − λ̂): they follow from the mean and the variance. An
estimated kernel as coefficient has a variance that overflows, so all moments are ``Scaled``.

Hybrids K̂ = Σ λ̂_k K̂_k + (1 − Σ λ̂_k) K̂_{p+1} (paper, Sec. 2.2): MSEs from the moments of λ̂ and of the bases.

The coefficients are independent of the bases, so with λ̂_{p+1} = 1 − Σ λ̂_k the MSE is
Σ_{kl} E[λ̂_k λ̂_l] Cov(K̂_k, K̂_l): Theorem 3.1 of the paper for any number of bases. The MSEs below follow
the corrected theorems (docs/errata.md), which differ from the paper in two places: a coefficient for inputs of equal
length, and the claim that sharing projections never changes the MSE of the Gaussian hybrid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hrf.kernels import squared_distance
from hrf.theory.map_errors import exponential_covariance
from hrf.theory.orthogonal import (
    Scaled,
    angular_pair_covariance,
    complement,
    orthogonal_excess,
    orthogonal_share,
    scaled_sum,
)

__all__ = [
    "Moments",
    "angle",
    "angular_hybrid_log_mse",
    "angular_moments",
    "gaussian_hybrid_log_mse",
    "hybrid_covariance",
    "pairwise_angle",
]


class Moments(NamedTuple):
    """The mean μ and the variance V of one coefficient λ̂."""

    mean: Scaled
    variance: Scaled

    @property
    def square(self) -> Scaled:
        """E λ̂² = μ² + V."""
        return scaled_sum(self.mean.times(self.mean), self.variance)

    @property
    def complement_square(self) -> Scaled:
        """E(1 − λ̂)² = (1 − μ)² + V."""
        rest = complement(self.mean)
        return scaled_sum(rest.times(rest), self.variance)

    @property
    def cross(self) -> Scaled:
        """E λ̂(1 − λ̂) = μ(1 − μ) − V."""
        return scaled_sum(self.mean.times(complement(self.mean)), self.variance.times(-1))


def angle(x: Tensor, y: Tensor) -> Tensor:
    """Return the angle θ = 2 atan2(‖x̂ − ŷ‖, ‖x̂ + ŷ‖) of x and y (Kahan), exact at 0 and π, unlike arccos.

    A zero vector stays zero when normalised, so it is at π/2 from any other vector and at 0 from
    another zero vector. This is the mean of its sign bits: sgn(0) = +1 differs from a fair coin half of the
    time, and never from itself.

    >>> x = torch.tensor([3.0, 4.0])
    >>> angle(x, torch.stack([x, -x, 0 * x]))
    tensor([0.0000, 3.1416, 1.5708])
    """
    x, y = _unit(x), _unit(y)
    return 2 * torch.atan2(torch.linalg.vector_norm(x - y, dim=-1), torch.linalg.vector_norm(x + y, dim=-1))


def pairwise_angle(x: Tensor, y: Tensor) -> Tensor:
    """Return the `angle` of all pairs, at less cost: ``(..., L, d), (..., S, d) -> (..., L, S)``."""
    x, y = _unit(x), _unit(y)
    return 2 * torch.atan2(squared_distance(x, y).sqrt(), squared_distance(x, -y).sqrt())


def _unit(x: Tensor) -> Tensor:
    # Divide by the largest entry first, so that the squares of tiny or huge vectors neither vanish nor overflow
    for order in (math.inf, 2):
        length = torch.linalg.vector_norm(x, ord=order, dim=-1, keepdim=True)
        x = x / torch.where(length == 0, 1.0, length)
    return x


def angular_moments(
    theta: Tensor, n_coefficient_projections: int, *, dim: int | None = None, zero: Tensor | None = None
) -> Moments:
    """Moments of the share λ̂ of n sign bits that differ: mean q = θ/π, variance q(1 − q)/n (paper, Lemma 3.2).

    So E λ̂² = q(q − q/n + 1/n), E(1 − λ̂)² = (1 − q)(1 − q + q/n) and E λ̂(1 − λ̂) = (1 − 1/n) q(1 − q).
    With ``dim`` the directions τ come in orthogonal blocks of R^d, and the variance becomes
    q(1 − q)/n + f C(θ, d)/4 with ``orthogonal_share`` f and ``angular_pair_covariance`` C (derived here).

    Args:
        theta: The angles θ.
        n_coefficient_projections: n, the number of sign bits.
        dim: d where the directions τ are orthogonal, None where they are independent.
        zero: Where x or y is the zero vector. Its bits are all +1, and the bits of the other vector are
            independent for any τ: C = 0 there. None where there are no such pairs.

    >>> angular_moments(torch.tensor([0.0, torch.pi / 2], dtype=torch.float64), 2).square.value()
    tensor([0.0000, 0.3750], dtype=torch.float64)
    """
    q = theta / math.pi
    variance = q * (1 - q) / n_coefficient_projections
    share = 0.0 if dim is None else orthogonal_share(n_coefficient_projections, dim)
    if dim is not None and share > 0:
        covariance = share / 4 * angular_pair_covariance(theta, dim)
        variance = variance + (covariance if zero is None else covariance.masked_fill(zero, 0.0))
    return Moments(Scaled.plain(q), Scaled.plain(variance))


def gaussian_moments(
    x: Tensor,
    y: Tensor,
    n_coefficient_projections: int,
    *,
    sigma: float,
    radius: float,
    orthogonal: bool = False,
) -> Moments:
    """Moments of λ̂ = (1 − (1/n) Σ cos(σ τᵀ(x − y)))/ρ with ρ = 1 − e^{−2σ²r²} (paper, Theorem F.1).

    Mean (1 − e^{−s/2})/ρ and variance (1 − e^{−s})²/(2nρ²), with s = σ²‖x − y‖². Orthogonal τ add
    ``orthogonal_share`` times e^{−s}/ρ² times the ``orthogonal_excess`` of iσ(x − y) (derived here).

    >>> x = torch.tensor([0.6, 0.8], dtype=torch.float64)
    >>> gaussian_moments(x, -x, 4, sigma=1.0, radius=1.0).mean.value()  # 1 at the far end of the sphere
    tensor(1., dtype=torch.float64)
    """
    square = sigma**2 * (x - y).square().sum(-1)
    rho = -math.expm1(-2 * (sigma * radius) ** 2)
    variance = torch.expm1(-square).square() / (2 * n_coefficient_projections)
    share = orthogonal_share(n_coefficient_projections, x.shape[-1]) if orthogonal else 0.0
    if share > 0:
        variance = variance + share * (-square).exp() * orthogonal_excess(
            -square, -square, -square, x.shape[-1]
        )
    return Moments(Scaled.plain(-torch.expm1(-square / 2) / rho), Scaled.plain(variance / rho**2))


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
    """Log MSE of the angular hybrid, λ = θ/π (paper, Theorem D.1); ``orthogonal`` applies to both ω and τ.

    The MSE is zero at x = y and at x = −y.

    >>> x = torch.tensor([0.6, 0.8], dtype=torch.float64)
    >>> angular_hybrid_log_mse(x, torch.stack([x, -x]), 8, 4).exp()
    tensor([0., 0.], dtype=torch.float64)
    """
    dim, zero = x.shape[-1] if orthogonal else None, ~(x.any(-1) & y.any(-1))
    moments = angular_moments(angle(x, y), n_coefficient_projections, dim=dim, zero=zero)
    return bipolar_log_mse(x, y, moments, n_projections, shared=shared, orthogonal=orthogonal)


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
    """Log MSE of the normalised bipolar Gaussian hybrid (paper, Theorem F.1).

    The theorem says that sharing rows between the bases does not change the MSE; this holds only where
    ‖x‖² − ‖y‖² is a multiple of 2π, for instance on a sphere. ``orthogonal`` applies to ω and τ.
    """
    moments = gaussian_moments(
        x, y, n_coefficient_projections, sigma=sigma, radius=radius, orthogonal=orthogonal
    )
    return bipolar_log_mse(x, y, moments, n_projections, shared=shared, orthogonal=orthogonal)

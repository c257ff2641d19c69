"""Relative errors on the sphere ‖x‖ = ‖y‖ = r as functions of the angle θ (paper, Lemma 3.4 and Theorem 3.5).

ε_θ = √MSE / e^{xᵀy}. The two bases mirror each other, ε_θ(trig) = ε_{π−θ}(++), and the angular hybrid mixes
their squares with E(1 − λ̂)² and E λ̂². Every function has a logarithmic twin, since ε grows like e^{2r²}.
All rows, ω and τ, are independent here.

These are special cases of ``hrf.theory.bases`` and ``hrf.theory.hybrid``, written out on their own: an
independent witness, with which tests compare the general forms. ``hrf.theory.bounds`` bounds their maxima.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hrf.theory.coefficients import angular_moments

__all__ = [
    "angular_same_length_log_mse",
    "angular_same_length_mse",
    "log_sphere_relative_error_angular",
    "log_sphere_relative_error_positive",
    "log_sphere_relative_error_trigonometric",
    "sphere_relative_error_angular",
    "sphere_relative_error_positive",
    "sphere_relative_error_trigonometric",
]


def log_sphere_relative_error_trigonometric(theta: Tensor, r: Tensor | float, n_projections: int) -> Tensor:
    """Log ε_θ(trig) = s/2 + log(1 − e^{−s}) − ½ log 2m with s = 4r² sin²(θ/2) (paper, Lemma 3.4)."""
    s = (2 * r * (theta / 2).sin()).square()
    return s / 2 + torch.log(-torch.expm1(-s)) - math.log(2 * n_projections) / 2


def log_sphere_relative_error_positive(theta: Tensor, r: Tensor | float, n_projections: int) -> Tensor:
    """Log ε_θ(++) = log ε_{π−θ}(trig) (paper, Lemma 3.4)."""
    return log_sphere_relative_error_trigonometric(math.pi - theta, r, n_projections)


def log_sphere_relative_error_angular(
    theta: Tensor, r: Tensor | float, n_projections: int, n_coefficient_projections: int
) -> Tensor:
    """Log ε_θ of the angular hybrid: ε² = E λ̂² ε_θ(++)² + E(1 − λ̂)² ε_θ(trig)² (paper, Theorems 3.1 and D.1).

    The rows of a base are independent, not orthogonal. On a sphere the error is then the same whether or not the
    two bases share their rows.
    """
    moments = angular_moments(theta, n_coefficient_projections)
    positive = moments.square.log() + 2 * log_sphere_relative_error_positive(theta, r, n_projections)
    trigonometric = moments.complement_square.log() + 2 * log_sphere_relative_error_trigonometric(
        theta, r, n_projections
    )
    return torch.logaddexp(positive, trigonometric) / 2


def sphere_relative_error_trigonometric(theta: Tensor, r: Tensor | float, n_projections: int) -> Tensor:
    """ε_θ(trig) = (2m)^{−1/2} e^{2r² sin²(θ/2)} (1 − e^{−4r² sin²(θ/2)}) (paper, Lemma 3.4)."""
    return log_sphere_relative_error_trigonometric(theta, r, n_projections).exp()


def sphere_relative_error_positive(theta: Tensor, r: Tensor | float, n_projections: int) -> Tensor:
    """ε_θ(++) = (2m)^{−1/2} e^{2r² cos²(θ/2)} (1 − e^{−4r² cos²(θ/2)}) (paper, Lemma 3.4)."""
    return log_sphere_relative_error_positive(theta, r, n_projections).exp()


def sphere_relative_error_angular(
    theta: Tensor, r: Tensor | float, n_projections: int, n_coefficient_projections: int
) -> Tensor:
    """ε_θ of the angular hybrid (paper, Theorem 3.5): zero at θ = 0 and θ = π.

    >>> theta = torch.tensor([0.0, 1.0, torch.pi], dtype=torch.float64)
    >>> sphere_relative_error_angular(theta, 1.0, 32, 8)
    tensor([0.0000, 0.2162, 0.0000], dtype=torch.float64)
    """
    return log_sphere_relative_error_angular(theta, r, n_projections, n_coefficient_projections).exp()


def angular_same_length_log_mse(
    theta: Tensor, r: Tensor | float, n_projections: int, n_coefficient_projections: int
) -> Tensor:
    """Log MSE of the angular hybrid for inputs of one length, 2 log ε_θ + 2r² cos θ."""
    log_error = log_sphere_relative_error_angular(theta, r, n_projections, n_coefficient_projections)
    return 2 * log_error + 2 * r**2 * theta.cos()


def angular_same_length_mse(
    theta: Tensor, r: Tensor | float, n_projections: int, n_coefficient_projections: int
) -> Tensor:
    """MSE of the angular hybrid for inputs of one length (paper, after Theorem D.1, corrected).

    It is (1/2m) E λ̂² e^{8r²cos²(θ/2) − 2r²} (1 − e^{−4r²cos²(θ/2)})²
    plus (1/2m) E(1 − λ̂)² e^{2r²} (1 − e^{−4r²sin²(θ/2)})², with the moments of ``angular_moments``.
    The paper prints E λ̂(1 − λ̂) in place of E(1 − λ̂)² = (1 − q)(1 − q + q/n).
    """
    return angular_same_length_log_mse(theta, r, n_projections, n_coefficient_projections).exp()

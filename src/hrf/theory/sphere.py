"""Relative errors on the sphere ‖x‖ = ‖y‖ = r as functions of the angle θ (paper, Lemma 3.4 and Theorem 3.5).

ε_θ = √MSE / e^{xᵀy}. The two bases mirror each other, ε_θ(trig) = ε_{π−θ}(++), and the angular hybrid mixes
their squares with E(1 − λ̂)² and E λ̂². All rows, ω and τ, are independent here. All functions return logarithms, since
ε grows like e^{2r²}, and W(r) overflows beyond r = 18. Radii are numbers or tensors.

These are special cases of ``hrf.theory.map_errors`` and ``hrf.theory.hybrid_errors``, written out on their own: an
independent witness, with which tests compare the general forms.

The largest relative error on a sphere of radius r, and bounds for it (paper, Lemma 3.4 and Theorem 3.5).

The bases reach W(r)/√(2m). The angular hybrid stays below the bases, by r^{−1/2} at a fixed number n of
coefficient projections and by r^{−1} only if n grows like r. Theorem 3.5 promises r^{−1} for every n, which
is false for large r: its proof drops a factor r where it bounds max_θ (θ/π) e^{2r² cos θ}. Two bounds that
hold are given beside it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hrf.theory.hybrid_errors import angular_moments

__all__ = [
    "log_corrected_bound",
    "log_limit_ratio",
    "log_max_relative_error",
    "log_max_relative_error_base",
    "log_paper_bound",
    "log_sphere_relative_error_angular",
    "log_sphere_relative_error_positive",
    "log_sphere_relative_error_trigonometric",
    "log_tight_bound",
    "log_w",
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

    >>> theta = torch.tensor([0.0, 1.0, torch.pi], dtype=torch.float64)
    >>> log_sphere_relative_error_angular(theta, 1.0, 32, 8).exp()
    tensor([0.0000, 0.2162, 0.0000], dtype=torch.float64)
    """
    moments = angular_moments(theta, n_coefficient_projections)
    positive = moments.square.log() + 2 * log_sphere_relative_error_positive(theta, r, n_projections)
    trigonometric = moments.complement_square.log() + 2 * log_sphere_relative_error_trigonometric(
        theta, r, n_projections
    )
    return torch.logaddexp(positive, trigonometric) / 2


_GOLDEN = (math.sqrt(5) - 1) / 2


def log_w(r: Tensor | float) -> Tensor:
    """Log W(r) = 2r² + log(1 − e^{−4r²}), W(r) = e^{2r²}(1 − e^{−4r²}) (paper, Lemma 3.4).

    >>> log_w(1.0)
    tensor(1.9815, dtype=torch.float64)
    """
    square = _radius(r).square()
    return 2 * square + torch.log(-torch.expm1(-4 * square))


def log_max_relative_error_base(r: Tensor | float, n_projections: int) -> Tensor:
    """Log of the largest relative error of either base, W(r)/√(2m) (paper, Lemma 3.4), at θ = π or θ = 0."""
    return log_w(r) - math.log(2 * n_projections) / 2


def log_max_relative_error(r: Tensor | float, n_projections: int, n_coefficient_projections: int) -> Tensor:
    """Log max_θ ε_θ of the angular hybrid, by a grid over half of the angles and golden-section search.

    >>> (log_max_relative_error(1.0, 32, 8) - log_max_relative_error_base(1.0, 32)).exp()
    tensor(0.2432, dtype=torch.float64)
    """
    r = _radius(r)[..., None]

    def error(theta: Tensor) -> Tensor:
        return log_sphere_relative_error_angular(theta, r, n_projections, n_coefficient_projections)

    # ε is symmetric about π/2, and for large r it peaks near θ = 1/r: a grid that is dense at 0.
    grid = math.pi / 2 * torch.linspace(0, 1, 257, dtype=r.dtype, device=r.device).square()
    best = error(grid).argmax(-1, keepdim=True)
    low, high = grid[(best - 1).clamp_min(0)], grid[(best + 1).clamp_max(256)]
    for _ in range(60):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        rising = error(left) < error(right)
        low, high = torch.where(rising, left, low), torch.where(rising, high, right)
    return error((low + high) / 2).squeeze(-1)


def log_paper_bound(r: Tensor | float, n_projections: int, n_coefficient_projections: int) -> Tensor:
    """Log of (W/(r√2m)) √(1/π − 1/(nπ) + 1/(n√π)), as printed (paper, Theorem 3.5).

    The exact maximum exceeds it for r > 4.128 (n = 1), 6.234 (n = 2), 10.44 (n = 4) and 18.85 (n = 8).
    """
    n = n_coefficient_projections
    inner = 1 / math.pi - 1 / (n * math.pi) + 1 / (n * math.sqrt(math.pi))
    return log_max_relative_error_base(r, n_projections) - _radius(r).log() + math.log(inner) / 2


def log_corrected_bound(r: Tensor | float, n_projections: int, n_coefficient_projections: int) -> Tensor:
    """Log of (W/(r√2m)) √(1/π − 1/(nπ) + r/(n√π)), r ≥ 1: Theorem 3.5 with the factor r that its proof lost."""
    n, r = n_coefficient_projections, _radius(r)
    inner = 1 / math.pi - 1 / (n * math.pi) + r / (n * math.sqrt(math.pi))
    return log_max_relative_error_base(r, n_projections) - r.log() + inner.log() / 2


def log_tight_bound(r: Tensor | float, n_projections: int, n_coefficient_projections: int) -> Tensor:
    """Log of (W/√2m) √((1 − 1/n)/(8e r²) + 1/(4√e n r) + e^{−2r²}/(1 − e^{−4r²})²), r ≥ 1 (derived here).

    The first two terms bound the peaks of q² e^{2r² cos θ} and q e^{2r² cos θ}, the last term bounds the other base.
    """
    n, r = n_coefficient_projections, _radius(r)
    square = r.square()
    far_base = (-2 * square).exp() / torch.expm1(-4 * square).square()
    inner = (1 - 1 / n) / (8 * math.e * square) + 1 / (4 * math.sqrt(math.e) * n * r) + far_base
    return log_max_relative_error_base(r, n_projections) + inner.log() / 2


def log_limit_ratio(r: Tensor | float, n_projections: int, n_coefficient_projections: int) -> Tensor:
    """Log of W(r)/√(2πmn), the limit of ε_θ/√θ as θ → 0 and of ε_θ/√(π − θ) as θ → π (paper, Theorem 3.5)."""
    return log_w(r) - math.log(2 * math.pi * n_projections * n_coefficient_projections) / 2


def _radius(r: Tensor | float) -> Tensor:
    return r if isinstance(r, Tensor) else torch.tensor(r, dtype=torch.float64)

"""The largest relative error on a sphere of radius r, and bounds for it (paper, Lemma 3.4 and Theorem 3.5).

The bases reach W(r)/√(2m). The angular hybrid stays below the bases, by r^{−1/2} at a fixed number n of
coefficient projections and by r^{−1} only if n grows like r. Theorem 3.5 promises r^{−1} for every n, which
is false for large r: its proof drops a factor r where it bounds max_θ (θ/π) e^{2r² cos θ}. Two bounds that
hold are given beside it.
Radii are numbers or tensors; every function has a logarithmic twin, since W(r) overflows beyond r = 18.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hrf.theory.sphere import log_sphere_relative_error_angular

__all__ = [
    "corrected_bound",
    "limit_ratio",
    "log_corrected_bound",
    "log_limit_ratio",
    "log_max_relative_error",
    "log_max_relative_error_base",
    "log_paper_bound",
    "log_tight_bound",
    "log_w",
    "max_relative_error",
    "max_relative_error_base",
    "paper_bound",
    "tight_bound",
    "w",
]

_GOLDEN = (math.sqrt(5) - 1) / 2


def log_w(r: Tensor | float) -> Tensor:
    """Log W(r) = 2r² + log(1 − e^{−4r²}) (paper, Lemma 3.4)."""
    square = _radius(r).square()
    return 2 * square + torch.log(-torch.expm1(-4 * square))


def w(r: Tensor | float) -> Tensor:
    """W(r) = e^{2r²}(1 − e^{−4r²}) (paper, Lemma 3.4).

    >>> w(1.0)
    tensor(7.2537, dtype=torch.float64)
    """
    return log_w(r).exp()


def log_max_relative_error_base(r: Tensor | float, n_projections: int) -> Tensor:
    """Log of the largest relative error of either base, W(r)/√(2m) (paper, Lemma 3.4)."""
    return log_w(r) - math.log(2 * n_projections) / 2


def max_relative_error_base(r: Tensor | float, n_projections: int) -> Tensor:
    """The largest relative error of either base, W(r)/√(2m) (paper, Lemma 3.4), at θ = π or θ = 0."""
    return log_max_relative_error_base(r, n_projections).exp()


def log_max_relative_error(r: Tensor | float, n_projections: int, n_coefficient_projections: int) -> Tensor:
    """Log max_θ ε_θ of the angular hybrid, by a grid over half of the angles and golden-section search."""
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


def max_relative_error(r: Tensor | float, n_projections: int, n_coefficient_projections: int) -> Tensor:
    """max_θ ε_θ of the angular hybrid on the sphere of radius r, exact to rounding.

    >>> max_relative_error(1.0, 32, 8) / max_relative_error_base(1.0, 32)
    tensor(0.2432, dtype=torch.float64)
    """
    return log_max_relative_error(r, n_projections, n_coefficient_projections).exp()


def log_paper_bound(r: Tensor | float, n_projections: int, n_coefficient_projections: int) -> Tensor:
    """Log of ``paper_bound``."""
    n = n_coefficient_projections
    inner = 1 / math.pi - 1 / (n * math.pi) + 1 / (n * math.sqrt(math.pi))
    return log_max_relative_error_base(r, n_projections) - _radius(r).log() + math.log(inner) / 2


def paper_bound(r: Tensor | float, n_projections: int, n_coefficient_projections: int) -> Tensor:
    """(W/(r√2m)) √(1/π − 1/(nπ) + 1/(n√π)), as printed (paper, Theorem 3.5).

    The exact maximum exceeds it for r > 4.128 (n = 1), 6.234 (n = 2), 10.44 (n = 4) and 18.85 (n = 8).
    """
    return log_paper_bound(r, n_projections, n_coefficient_projections).exp()


def log_corrected_bound(r: Tensor | float, n_projections: int, n_coefficient_projections: int) -> Tensor:
    """Log of ``corrected_bound``."""
    n, r = n_coefficient_projections, _radius(r)
    inner = 1 / math.pi - 1 / (n * math.pi) + r / (n * math.sqrt(math.pi))
    return log_max_relative_error_base(r, n_projections) - r.log() + inner.log() / 2


def corrected_bound(r: Tensor | float, n_projections: int, n_coefficient_projections: int) -> Tensor:
    """(W/(r√2m)) √(1/π − 1/(nπ) + r/(n√π)) for r ≥ 1: Theorem 3.5 with the factor r that its proof lost."""
    return log_corrected_bound(r, n_projections, n_coefficient_projections).exp()


def log_tight_bound(r: Tensor | float, n_projections: int, n_coefficient_projections: int) -> Tensor:
    """Log of ``tight_bound``."""
    n, r = n_coefficient_projections, _radius(r)
    square = r.square()
    far_base = (-2 * square).exp() / torch.expm1(-4 * square).square()
    inner = (1 - 1 / n) / (8 * math.e * square) + 1 / (4 * math.sqrt(math.e) * n * r) + far_base
    return log_max_relative_error_base(r, n_projections) + inner.log() / 2


def tight_bound(r: Tensor | float, n_projections: int, n_coefficient_projections: int) -> Tensor:
    """(W/√2m) √((1 − 1/n)/(8e r²) + 1/(4√e n r) + e^{−2r²}/(1 − e^{−4r²})²), r ≥ 1 (derived here).

    The first two terms bound the peaks of q² e^{2r² cos θ} and q e^{2r² cos θ}, the last term bounds the other base.
    """
    return log_tight_bound(r, n_projections, n_coefficient_projections).exp()


def log_limit_ratio(r: Tensor | float, n_projections: int, n_coefficient_projections: int) -> Tensor:
    """Log of ``limit_ratio``."""
    return log_w(r) - math.log(2 * math.pi * n_projections * n_coefficient_projections) / 2


def limit_ratio(r: Tensor | float, n_projections: int, n_coefficient_projections: int) -> Tensor:
    """W(r)/√(2πmn), the limit of ε_θ/√θ as θ → 0 and of ε_θ/√(π − θ) as θ → π (paper, Theorem 3.5)."""
    return log_limit_ratio(r, n_projections, n_coefficient_projections).exp()


def _radius(r: Tensor | float) -> Tensor:
    return r if isinstance(r, Tensor) else torch.tensor(r, dtype=torch.float64)

"""The two bases of the paper (Choromanski et al., ICLR 2022), Lemma 2.2: trigonometric and positive features.

With Δ = x − y, z = x + y and SM = e^{xᵀy},

    MSE(trig) = (1/2m) e^{‖z‖²} SM⁻² (1 − e^{−‖Δ‖²})²,    MSE(++) = (1/2m) e^{‖z‖²} SM² (1 − e^{−‖z‖²})².

As e^{‖z‖²} = e^{‖Δ‖²} SM⁴, both are SM² (1/2m) e^{s}(1 − e^{−s})² with s = ‖Δ‖² and s = ‖z‖². They are
computed in this form: one formula, no cancellation at s = 0, no overflow. ``x`` and ``y`` are ``(..., d)``
and broadcast; ``orthogonal`` means rows in Haar blocks, corrected as ``hrf.theory.orthogonal`` derives.

These are special cases of ``hrf.theory.exponential``, written out on their own, so that tests
can compare the general form with an independent witness.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hrf.theory.orthogonal import orthogonal_excess, orthogonal_share
from hrf.theory.scaled import Scaled, scaled_sum

__all__ = [
    "positive_log_mse",
    "positive_mse",
    "positive_relative_error",
    "trigonometric_log_mse",
    "trigonometric_mse",
    "trigonometric_relative_error",
]


def trigonometric_log_mse(x: Tensor, y: Tensor, n_projections: int, *, orthogonal: bool = False) -> Tensor:
    """Log MSE(trig) = 2xᵀy + ‖Δ‖² + 2 log(1 − e^{−‖Δ‖²}) − log 2m (paper, Lemma 2.2)."""
    return _trigonometric_variance(x, y, n_projections, orthogonal).log() + 2 * (x * y).sum(-1)


def trigonometric_mse(x: Tensor, y: Tensor, n_projections: int, *, orthogonal: bool = False) -> Tensor:
    """MSE(trig) (paper, Lemma 2.2); zero where x = y.

    >>> x = torch.tensor([[0.3, 0.4], [0.0, 1.0]])
    >>> trigonometric_mse(x, x, 8)
    tensor([0., 0.])
    """
    return trigonometric_log_mse(x, y, n_projections, orthogonal=orthogonal).exp()


def trigonometric_relative_error(
    x: Tensor, y: Tensor, n_projections: int, *, orthogonal: bool = False
) -> Tensor:
    """√MSE(trig)/SM(x, y) (paper, Definition 3.3)."""
    return (_trigonometric_variance(x, y, n_projections, orthogonal).log() / 2).exp()


def positive_log_mse(x: Tensor, y: Tensor, n_projections: int, *, orthogonal: bool = False) -> Tensor:
    """Log MSE(++) = 2xᵀy + ‖z‖² + 2 log(1 − e^{−‖z‖²}) − log 2m (paper, Lemma 2.2)."""
    return _positive_variance(x, y, n_projections, orthogonal).log() + 2 * (x * y).sum(-1)


def positive_mse(x: Tensor, y: Tensor, n_projections: int, *, orthogonal: bool = False) -> Tensor:
    """MSE(++) (paper, Lemma 2.2); zero where x = −y.

    >>> x = torch.tensor([[0.3, 0.4], [0.0, 1.0]])
    >>> positive_mse(x, -x, 8)
    tensor([0., 0.])
    """
    return positive_log_mse(x, y, n_projections, orthogonal=orthogonal).exp()


def positive_relative_error(x: Tensor, y: Tensor, n_projections: int, *, orthogonal: bool = False) -> Tensor:
    """√MSE(++)/SM(x, y) (paper, Definition 3.3)."""
    return (_positive_variance(x, y, n_projections, orthogonal).log() / 2).exp()


def _trigonometric_variance(x: Tensor, y: Tensor, n_projections: int, orthogonal: bool) -> Scaled:
    square = (x - y).square().sum(-1)
    return _relative_variance(square, -square, n_projections, x.shape[-1] if orthogonal else None)


def _positive_variance(x: Tensor, y: Tensor, n_projections: int, orthogonal: bool) -> Scaled:
    square = (x + y).square().sum(-1)
    return _relative_variance(square, square, n_projections, x.shape[-1] if orthogonal else None)


def _relative_variance(square: Tensor, bilinear: Tensor, n_projections: int, dim: int | None) -> Scaled:
    """(1/2m) e^s (1 − e^{−s})², plus the covariance of orthogonal rows where ``dim`` is given."""
    variance = Scaled(torch.expm1(-square).square() / (2 * n_projections), square)
    share = 0.0 if dim is None else orthogonal_share(n_projections, dim)
    if dim is None or share == 0:
        return variance
    excess = orthogonal_excess(bilinear, bilinear, bilinear, dim)
    return scaled_sum(variance, Scaled.plain(share * excess))

"""MSEs of the later positive maps, OPRF (FAVOR++) and SDERF (FAVOR#), in closed form (derived here).

Both use features m^{−1/2} D exp(ωᵀ𝐀ω + ωᵀBu − ‖u‖²/2) with 𝐀 = diag(a_l), B = (I − 4𝐀)^{1/2} Qᵀ,
D = det(I − 4𝐀)^{1/4} and an orthogonal Q: OPRF with one a for all coordinates (Likhosherstov et al., 2022),
SDERF with one a_l per eigenvector (Likhosherstov et al., 2023). a = 0 is the single positive map.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hrf.theory.orthogonal import orthogonal_excess, orthogonal_share
from hrf.theory.scaled import Scaled, scaled_sum

__all__ = ["optimal_log_mse", "optimal_log_relative_mse", "optimal_mse"]


def optimal_log_relative_mse(
    form: Tensor, square: Tensor, n_projections: int, a: Tensor, *, orthogonal: bool = False
) -> Tensor:
    """Log of MSE/e^{2xᵀy} = (1/m)[Π_l (1 − 4a_l)(1 − 8a_l)^{−1/2} exp(ζ_l²/(1 − 8a_l)) − 1], ζ = Qᵀ(x + y).

    Orthogonal rows are covered for equal a_l only: weighting a row by e^{2a‖ω‖²} then rescales its
    length and keeps its direction, so two rows covary as in the positive map.

    Args:
        form: The quadratic form Σ_l ζ_l²/(1 − 8a_l).
        square: ‖x + y‖², of the same shape.
        n_projections: m, the number of rows ω.
        a: The a_l, below 1/8, ``(..., d)``; the leading axes broadcast against ``form``.
        orthogonal: Whether the rows come in Haar blocks.

    Raises:
        ValueError: If any a_l ≥ 1/8, where the MSE is infinite.
        NotImplementedError: If rows are orthogonal and the a_l differ.
    """
    if bool((a >= 1 / 8).any()):
        raise ValueError(f"a must be below 1/8 for a finite MSE, got {a.max().item()}")
    # (1 − 4a)²/(1 − 8a) = 1 + 16a²/(1 − 8a)
    logarithm = form + torch.log1p(16 * a.square() / (1 - 8 * a)).sum(-1) / 2
    variance = Scaled(-torch.expm1(-logarithm) / n_projections, logarithm)
    dim = a.shape[-1]
    share = orthogonal_share(n_projections, dim) if orthogonal else 0.0
    if share == 0:
        return variance.log()
    if bool((a != a[..., :1]).any()):
        raise NotImplementedError(
            "no closed form is known for orthogonal rows with different a_l; it is for iid rows, or equal a_l"
        )
    excess = orthogonal_excess(square, square, square, dim)
    return scaled_sum(variance, Scaled.plain(share * excess)).log()


def optimal_log_mse(
    x: Tensor,
    y: Tensor,
    n_projections: int,
    a: Tensor | float,
    basis: Tensor | None = None,
    *,
    orthogonal: bool = False,
) -> Tensor:
    """Log MSE = 2xᵀy + ``optimal_log_relative_mse`` of x + y.

    Args:
        x: Queries ``(..., d)``.
        y: Keys ``(..., d)``, broadcast against ``x``.
        n_projections: m, the number of rows ω.
        a: The a_l, below 1/8: a number, or one per column of the basis, ``(..., d)``.
        basis: Q, ``(..., d, d)`` with orthonormal columns; None for the identity.
        orthogonal: Whether the rows come in Haar blocks, for equal a_l only.
    """
    z = x + y
    zeta = z if basis is None else (z.unsqueeze(-2) @ basis).squeeze(-2)
    a = torch.as_tensor(a, dtype=z.dtype, device=z.device).expand_as(z)
    form, square = (zeta.square() / (1 - 8 * a)).sum(-1), z.square().sum(-1)
    relative = optimal_log_relative_mse(form, square, n_projections, a, orthogonal=orthogonal)
    return relative + 2 * (x * y).sum(-1)


def optimal_mse(
    x: Tensor,
    y: Tensor,
    n_projections: int,
    a: Tensor | float,
    basis: Tensor | None = None,
    *,
    orthogonal: bool = False,
) -> Tensor:
    """MSE: the exponential of ``optimal_log_mse``.

    >>> x = torch.tensor([0.6, 0.8], dtype=torch.float64)
    >>> optimal_mse(x, -x, 8, 0.0)  # a = 0 is the positive map: exact where x + y = 0
    tensor(0., dtype=torch.float64)
    """
    return optimal_log_mse(x, y, n_projections, a, basis, orthogonal=orthogonal).exp()

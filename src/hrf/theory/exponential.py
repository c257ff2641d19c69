"""Complex exponential estimators (paper, Sec. 2.3): closed-form covariances and MSEs (derived here).

An invertible matrix A gives K̂ = mean over m rows ω ~ N(0, I) of

    T_A(ω) = Re[exp(ωᵀAx − (Ax)²/2) exp(ωᵀA⁻ᵀy − (A⁻ᵀy)²/2)] = e^{xᵀy} Re exp(ωᵀz_A − z_A²/2),

where z_A = Ax + A⁻ᵀy and v² = Σ vₖ² is the bilinear square. An antithetic estimator averages T_A(ω) and
T_A(−ω). A = I is the positive map (SM⁺, antithetic SM⁺⁺), A = iI the trigonometric map. All functions take
``x`` and ``y`` of shape ``(..., d)``, broadcast over the leading axes, and return ``(...)``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hrf.theory.orthogonal import orthogonal_excess, orthogonal_share
from hrf.theory.scaled import Scaled, scaled_sum

__all__ = [
    "Products",
    "covariance_of_products",
    "exponential_covariance",
    "exponential_log_mse",
    "exponential_mse",
    "shifted_sum",
]


def shifted_sum(x: Tensor, y: Tensor, matrix: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the real and imaginary parts (u, v) of z_A = Ax + A⁻ᵀy (paper, Sec. 2.3).

    Args:
        x: Queries ``(..., d)``.
        y: Keys ``(..., d)``, broadcast against ``x``.
        matrix: A, real or complex: None for the identity, ``(d,)`` for a diagonal, ``(d, d)`` for a full matrix.

    >>> one = torch.ones(2, dtype=torch.float64)
    >>> shifted_sum(one, 3 * one, torch.full((2,), 1j, dtype=torch.complex128))
    (tensor([0., 0.], dtype=torch.float64), tensor([-2., -2.], dtype=torch.float64))
    """
    if matrix is None:
        total = x + y
        return total, torch.zeros_like(total)
    if matrix.ndim not in (1, 2) or any(size != x.shape[-1] for size in matrix.shape):
        raise ValueError(f"matrix has shape {tuple(matrix.shape)}, x has last dimension {x.shape[-1]}")
    matrix = matrix.to(x.dtype.to_complex() if matrix.is_complex() else x.dtype)
    x, y = x.to(matrix.dtype), y.to(matrix.dtype)
    if matrix.ndim == 1:
        total = x * matrix + y / matrix
    else:
        # A⁻ᵀy as a row is yᵀA⁻¹: one factorisation of A serves all of y.
        rows = y.reshape(-1, y.shape[-1])
        total = x @ matrix.mT + torch.linalg.solve(matrix, rows, left=False).reshape(y.shape)
    return (total.real, total.imag) if total.is_complex() else (total, torch.zeros_like(total))


class Products(NamedTuple):
    """Inner products of z_A = u_A + iv_A and z_B = u_B + iv_B: u_Aᵀu_B, v_Aᵀv_B, v_Aᵀu_B and u_Aᵀv_B."""

    uu: Tensor
    vv: Tensor
    vu: Tensor
    uv: Tensor

    @classmethod
    def of(cls, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Products:
        """Compute the products of (u_A, v_A) and (u_B, v_B), ``(..., d)`` each."""
        (u_a, v_a), (u_b, v_b) = first, second
        return cls(_dot(u_a, u_b), _dot(v_a, v_b), _dot(v_a, u_b), _dot(u_a, v_b))

    def bilinear(self) -> Tensor:
        """Return z_Aᵀz_B."""
        return torch.complex(self.uu - self.vv, self.vu + self.uv)

    def hermitian(self) -> Tensor:
        """Return z_Aᵀ conj(z_B)."""
        return torch.complex(self.uu + self.vv, self.vu - self.uv)


def covariance_of_products(
    products: Products,
    n_projections: int,
    dim: int,
    *,
    antithetic: bool,
    own: tuple[Products, Products] | None = None,
) -> Scaled:
    """Cov(K̂_A, K̂_B)/e^{2xᵀy} = (1/m)[½ Re(f(p) + f(q)) − 1], p = z_Aᵀz_B, q = z_Aᵀ conj(z_B) (derived here).

    Both estimators use the same rows ω, and the result depends on z_A and z_B through inner products alone.
    f = exp where both are single, and cosh where one of them is antithetic: averaging either estimator over ±ω
    already makes the product even in ω. Orthogonal rows add ``orthogonal_share`` times the mean
    ``orthogonal_excess`` of (z_A, z_B) and (z_A, conj z_B), for either f, because the sign of a row does not change
    the law of an orthogonal pair.

    Args:
        products: Inner products of z_A and z_B, tensors that broadcast.
        n_projections: m, the number of rows ω.
        dim: d, the length of z.
        antithetic: Whether at least one of the two averages over ±ω.
        own: For rows in Haar blocks, the products of z_A with itself and of z_B with itself; None for
            independent rows.
    """
    uu, vv, vu, uv = products
    # p = (uu − vv) + i(vu + uv),  q = (uu + vv) + i(vu − uv)
    if antithetic:
        same_row = scaled_sum(_cosh_excess(uu - vv, vu + uv), _cosh_excess(uu + vv, vu - uv)).times(0.5)
    else:
        same_row = _mean_exp_excess(uu, vv, vu, uv)
    covariance = same_row.times(1 / n_projections)
    share = 0.0 if own is None else orthogonal_share(n_projections, dim)
    if own is None or share == 0:
        return covariance
    alpha, beta = (product.bilinear() for product in own)
    other_rows = orthogonal_excess(alpha, beta, products.bilinear(), dim).real
    # A real or imaginary z is its own conjugate, up to a sign that does not change the law of a row.
    if all(product.uu.any() and product.vv.any() for product in own):
        conjugate = orthogonal_excess(alpha, beta.conj(), products.hermitian(), dim).real
        other_rows = (other_rows + conjugate) / 2
    return scaled_sum(covariance, Scaled.plain(share * other_rows))


def exponential_covariance(
    x: Tensor,
    y: Tensor,
    n_projections: int,
    matrices: tuple[Tensor | None, Tensor | None] = (None, None),
    antithetic: tuple[bool, bool] = (True, True),
    orthogonal: bool = False,
) -> Scaled:
    """Cov(K̂_A, K̂_B)/e^{2xᵀy} of two estimators on the same rows: ``covariance_of_products`` of z_A and z_B.

    Args:
        x: Queries ``(..., d)``.
        y: Keys ``(..., d)``, broadcast against ``x``.
        n_projections: m, the number of rows ω.
        matrices: A and B, each as in ``shifted_sum``.
        antithetic: For each estimator, whether it averages over ±ω.
        orthogonal: Whether the rows come in Haar blocks instead of independently.

    >>> x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    >>> exponential_covariance(x, -x, 16).value()  # SM⁺⁺ is exact where x + y = 0
    tensor(0., dtype=torch.float64)
    """
    first, second = (shifted_sum(x, y, matrix) for matrix in matrices)
    own = (Products.of(first, first), Products.of(second, second)) if orthogonal else None
    return covariance_of_products(
        Products.of(first, second), n_projections, x.shape[-1], antithetic=any(antithetic), own=own
    )


def exponential_log_mse(
    x: Tensor,
    y: Tensor,
    n_projections: int,
    matrix: Tensor | None = None,
    *,
    antithetic: bool = True,
    orthogonal: bool = False,
) -> Tensor:
    """Log MSE(K̂_A) = 2xᵀy + log of ``exponential_covariance`` with A = B; −inf where K̂_A is exact."""
    covariance = exponential_covariance(
        x, y, n_projections, (matrix, matrix), (antithetic, antithetic), orthogonal
    )
    return covariance.log() + 2 * _dot(x, y)


def exponential_mse(
    x: Tensor,
    y: Tensor,
    n_projections: int,
    matrix: Tensor | None = None,
    *,
    antithetic: bool = True,
    orthogonal: bool = False,
) -> Tensor:
    """MSE(K̂_A): the exponential of ``exponential_log_mse``.

    >>> x, y = torch.tensor([0.5, 0.0]), torch.tensor([0.0, 0.5])
    >>> exponential_mse(x, y, 1, antithetic=False)  # A = I, single: e^{2xᵀy}(e^{‖x + y‖²} − 1)
    tensor(0.6487)
    """
    return exponential_log_mse(
        x, y, n_projections, matrix, antithetic=antithetic, orthogonal=orthogonal
    ).exp()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1)


def _cosh_excess(real: Tensor, imaginary: Tensor) -> Scaled:
    """Re cosh(real + i·imaginary) − 1 = 2 sinh²(real/2) cos(imaginary) − 2 sin²(imaginary/2)."""
    size = real.abs()
    growth = torch.expm1(-size).square() / 2 * imaginary.cos()
    return Scaled(growth - 2 * (imaginary / 2).sin().square() * (-size).exp(), size)


def _mean_exp_excess(uu: Tensor, vv: Tensor, vu: Tensor, uv: Tensor) -> Scaled:
    """½ Re(e^p + e^q) − 1, written so that the parts linear in vv, which cancel, never appear.

    It is e^{uu} [C + sinh(vv) sin(vu) sin(uv)] + (e^{uu} − 1), where C is the mean of
    Re cosh(vv + i(vu ± uv)) − 1.
    """
    size = vv.abs()
    sinh = Scaled(-vv.sign() * torch.expm1(-2 * size) / 2, size)
    even = scaled_sum(_cosh_excess(vv, vu + uv), _cosh_excess(vv, vu - uv)).times(0.5)
    expm1 = Scaled(-uu.sign() * torch.expm1(-uu.abs()), uu.clamp_min(0))
    return scaled_sum(even.times_exp(uu), sinh.times(vu.sin() * uv.sin()).times_exp(uu), expm1)

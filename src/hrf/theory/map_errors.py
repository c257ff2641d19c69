"""Moments and MSEs of single maps: the bases of the paper, complex exponential maps, FAVOR++ and FAVOR#.

The two bases of the paper (Choromanski et al., ICLR 2022), Lemma 2.2: trigonometric and positive features.

With Δ = x − y, z = x + y and SM = e^{xᵀy},

    MSE(trig) = (1/2m) e^{‖z‖²} SM⁻² (1 − e^{−‖Δ‖²})²,    MSE(++) = (1/2m) e^{‖z‖²} SM² (1 − e^{−‖z‖²})².

As e^{‖z‖²} = e^{‖Δ‖²} SM⁴, both are SM² (1/2m) e^{s}(1 − e^{−s})² with s = ‖Δ‖² and s = ‖z‖². They are
computed in this form: one formula, no cancellation at s = 0, no overflow. ``x`` and ``y`` are ``(..., d)``
and broadcast; ``orthogonal`` means rows in Haar blocks, corrected as ``hrf.theory.orthogonal`` derives.

These are special cases of complex exponential estimators, written out on their own, so that tests
can compare the general form with an independent witness.

Complex exponential estimators (paper, Sec. 2.3): closed-form covariances and MSEs (derived here).

An invertible matrix A gives K̂ = mean over m rows ω ~ N(0, I) of

    T_A(ω) = Re[exp(ωᵀAx − (Ax)²/2) exp(ωᵀA⁻ᵀy − (A⁻ᵀy)²/2)] = e^{xᵀy} Re exp(ωᵀz_A − z_A²/2),

where z_A = Ax + A⁻ᵀy and v² = Σ vₖ² is the bilinear square. An antithetic estimator averages T_A(ω) and
T_A(−ω). A = I is the positive map (SM⁺, antithetic SM⁺⁺), A = iI the trigonometric map. All functions take
``x`` and ``y`` of shape ``(..., d)``, broadcast over the leading axes, and return ``(...)``.

MSEs of the later positive maps, OPRF (FAVOR++) and SDERF (FAVOR#), in closed form (derived here).

Both use features m^{−1/2} D exp(ωᵀ𝐀ω + ωᵀBu − ‖u‖²/2) with 𝐀 = diag(a_l), B = (I − 4𝐀)^{1/2} Qᵀ,
D = det(I − 4𝐀)^{1/4} and an orthogonal Q: OPRF with one a for all coordinates (Likhosherstov et al., 2022),
SDERF with one a_l per eigenvector (Likhosherstov et al., 2023). a = 0 is the single positive map.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hrf.theory.orthogonal import Scaled, orthogonal_excess, orthogonal_share, scaled_sum

__all__ = [
    "Products",
    "covariance_of_products",
    "exponential_log_mse",
    "optimal_log_mse",
    "optimal_log_relative_mse",
    "positive_log_mse",
    "trigonometric_log_mse",
]


def trigonometric_log_mse(x: Tensor, y: Tensor, n_projections: int, *, orthogonal: bool = False) -> Tensor:
    """Log MSE(trig) = 2xᵀy + ‖Δ‖² + 2 log(1 − e^{−‖Δ‖²}) − log 2m (paper, Lemma 2.2); the MSE is zero where x = y.

    >>> x = torch.tensor([[0.3, 0.4], [0.0, 1.0]])
    >>> trigonometric_log_mse(x, x, 8).exp()
    tensor([0., 0.])
    """
    square = (x - y).square().sum(-1)
    variance = _relative_variance(square, -square, n_projections, x.shape[-1] if orthogonal else None)
    return variance.log() + 2 * _dot(x, y)


def positive_log_mse(x: Tensor, y: Tensor, n_projections: int, *, orthogonal: bool = False) -> Tensor:
    """Log MSE(++) = 2xᵀy + ‖z‖² + 2 log(1 − e^{−‖z‖²}) − log 2m (paper, Lemma 2.2); the MSE is zero where x = −y.

    >>> x = torch.tensor([[0.3, 0.4], [0.0, 1.0]])
    >>> positive_log_mse(x, -x, 8).exp()
    tensor([0., 0.])
    """
    square = (x + y).square().sum(-1)
    variance = _relative_variance(square, square, n_projections, x.shape[-1] if orthogonal else None)
    return variance.log() + 2 * _dot(x, y)


def _relative_variance(square: Tensor, bilinear: Tensor, n_projections: int, dim: int | None) -> Scaled:
    """(1/2m) e^s (1 − e^{−s})², plus the covariance of orthogonal rows where ``dim`` is given."""
    variance = Scaled(torch.expm1(-square).square() / (2 * n_projections), square)
    share = 0.0 if dim is None else orthogonal_share(n_projections, dim)
    if dim is None or share == 0:
        return variance
    excess = orthogonal_excess(bilinear, bilinear, bilinear, dim)
    return scaled_sum(variance, Scaled.plain(share * excess))


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
    """Log MSE(K̂_A) = 2xᵀy + log of ``exponential_covariance`` with A = B; −inf where K̂_A is exact.

    >>> x, y = torch.tensor([0.5, 0.0]), torch.tensor([0.0, 0.5])
    >>> exponential_log_mse(x, y, 1, antithetic=False).exp()  # A = I, single: e^{2xᵀy}(e^{‖x + y‖²} − 1)
    tensor(0.6487)
    """
    covariance = exponential_covariance(
        x, y, n_projections, (matrix, matrix), (antithetic, antithetic), orthogonal
    )
    return covariance.log() + 2 * _dot(x, y)


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

    >>> x = torch.tensor([0.6, 0.8], dtype=torch.float64)
    >>> optimal_log_mse(x, -x, 8, 0.0).exp()  # a = 0 is the positive map: exact where x + y = 0
    tensor(0., dtype=torch.float64)
    """
    z = x + y
    zeta = z if basis is None else (z.unsqueeze(-2) @ basis).squeeze(-2)
    a = torch.as_tensor(a, dtype=z.dtype, device=z.device).expand_as(z)
    form, square = (zeta.square() / (1 - 8 * a)).sum(-1), z.square().sum(-1)
    relative = optimal_log_relative_mse(form, square, n_projections, a, orthogonal=orthogonal)
    return relative + 2 * (x * y).sum(-1)

"""The matrix A of an exponential map in closed form, from second moments or from centres (paper, Sec. 2.4).

The variance of the map at (x, y) is governed by z = Ax + A⁻ᵀy. The paper calls |z|² at a pair of centres its
loss; over data it is

    l(A) = E|Ax + A⁻ᵀy|² = tr(A S_x Aᴴ) + tr(B S_y Bᴴ) + 2 Re tr(A S_xy Bᴴ),   B = A⁻ᵀ,

with S_x = E xxᵀ, S_y = E yyᵀ and S_xy = E xyᵀ. `fit_matrix` minimises it (derived here):

    ====================  ========================================  ==========================================
    kind                  A                                         l(A)
    ====================  ========================================  ==========================================
    ``real-diagonal``     aₖ = (E yₖ² / E xₖ²)^¼                     2 Σ √(E xₖ² E yₖ²) + 2 tr S_xy
    ``complex-diagonal``  the same, times i where E xₖyₖ > 0         2 Σ √(E xₖ² E yₖ²) − 2 Σ |E xₖyₖ|
    ``real-full``         M^½                                       2 ‖S_x^½ S_y^½‖_* + 2 tr S_xy
    ``complex-full``      Δ Qᵀ M^½                                  2 ‖S_x^½ S_y^½‖_* − 2 Σ |cₖ|
    ====================  ========================================  ==========================================

M = S_x^{−½} (S_x^½ S_y S_x^½)^½ S_x^{−½} is the geometric mean of S_x⁻¹ and S_y, the positive solution of
M S_x M = S_y, and ‖·‖_* is the sum of the singular values. Every real A with AᵀA = M does as well as M^½: the
term with S_xy is always 2 tr S_xy. A complex A = W M^½ with a unitary W turns that term into
2 tr(Re(WᵀW) C), where C = sym(M^½ S_xy M^{−½}) = Q diag(c) Qᵀ. It is least at WᵀW = −sign(C): Δₖ = i where
cₖ > 0, and 1 elsewhere. About the means S_xy = 0, nothing is gained by an imaginary unit, and both complex
kinds are as good as the real kinds and have no imaginary part.

The first three rules are minimal among all matrices of their kind. ``complex-full`` is minimal among matrices with
AᴴA = M, and never loses to ``real-full``; freeing AᴴA as well would gain where M and S_xy do not commute, but
no closed form is known.

>>> import torch
>>> x, y = torch.tensor([[2.0, 1.0]]), torch.tensor([[0.5, -1.0]])
>>> matrix_from_centers(x, y, "complex-diagonal")
tensor([[[0.+0.5000j, 1.+0.0000j]]], dtype=torch.complex128)
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

__all__ = [
    "KINDS",
    "RIDGE",
    "DiagonalKind",
    "MatrixKind",
    "SecondMoments",
    "fit_matrix",
    "matrix_from_centers",
    "matrix_loss",
    "optimal_loss",
]

DiagonalKind = Literal["real-diagonal", "complex-diagonal"]
MatrixKind = Literal[DiagonalKind, "real-full", "complex-full"]
KINDS: tuple[MatrixKind, ...] = get_args(MatrixKind)

#: Noise that is added to the data, as a share of their mean square. It raises the least loss by at most
#: (4√ridge + 2 ridge) √(tr S_x tr S_y), and keeps A well-conditioned where the data do not fill the space.
RIDGE = 1e-3


class SecondMoments(NamedTuple):
    """Second moments of queries x and keys y, each ``(..., d, d)``, in float64.

    Attributes:
        queries: S_x = E xxᵀ.
        keys: S_y = E yyᵀ.
        cross: S_xy = E xyᵀ.
    """

    queries: Tensor
    keys: Tensor
    cross: Tensor

    @classmethod
    def of(cls, queries: Tensor, keys: Tensor, *, paired: bool = False) -> SecondMoments:
        """Compute moments of data: ``(..., N, d), (..., S, d) -> (..., d, d)``.

        Args:
            queries: vectors x.
            keys: vectors y.
            paired: whether the n-th query meets the n-th key only. In attention every query meets every key,
                and S_xy is the product of the means.
        """
        x, y = queries.to(torch.float64), keys.to(torch.float64)
        if x.shape[-1] != y.shape[-1]:
            raise ValueError(
                f"queries have last dimension {x.shape[-1]}, keys {y.shape[-1]}; expected the same"
            )
        for name, points in (("queries", x), ("keys", y)):
            if points.shape[-2] == 0 or not points.isfinite().all():
                raise ValueError(
                    f"{name} of shape {tuple(points.shape)} are empty, or not all of them are finite"
                )
        if not paired:
            cross = x.mean(-2).unsqueeze(-1) * y.mean(-2).unsqueeze(-2)
        elif x.shape[-2] == y.shape[-2]:
            cross = x.mT @ y / x.shape[-2]
        else:
            raise ValueError(f"{x.shape[-2]} queries do not pair with {y.shape[-2]} keys")
        return cls(x.mT @ x / x.shape[-2], y.mT @ y / y.shape[-2], cross)

    def with_ridge(self, ridge: float = RIDGE) -> SecondMoments:
        """Return the moments after isotropic noise that has a share ``ridge`` of the data's mean square.

        S_x and S_y become S + ridge · (tr S/d) · I; where tr S/d is below 1e-30, as for points that are all
        zero, it counts as 1. A positive ridge makes them invertible for any data, and keeps the
        condition number of a fitted A below √(1 + d/ridge).
        """
        s_x, s_y, s_xy = (moment.to(torch.float64) for moment in self)
        return SecondMoments(_add_ridge(s_x, ridge), _add_ridge(s_y, ridge), s_xy)


def _add_ridge(second: Tensor, ridge: float) -> Tensor:
    scale = _diagonal(second).mean(-1)[..., None, None]
    eye = torch.eye(second.shape[-1], dtype=second.dtype, device=second.device)
    return second + ridge * torch.where(scale > 1e-30, scale, 1.0) * eye


def fit_matrix(moments: SecondMoments, kind: MatrixKind, *, ridge: float = RIDGE) -> Tensor:
    """Return the A of a kind with the least l(A): ``(..., d)`` for a diagonal, ``(..., d, d)`` for a full matrix.

    Args:
        moments: moments of the data; their leading axes are broadcast.
        kind: one of `KINDS`; complex kinds give complex128, real kinds float64.
        ridge: noise for `SecondMoments.with_ridge`; 0 only for invertible moments.

    >>> wide, tall = torch.diag(torch.tensor([16.0, 1.0])), torch.diag(torch.tensor([1.0, 16.0]))
    >>> fit_matrix(SecondMoments(wide, tall, torch.zeros(2, 2)), "real-diagonal").round(decimals=2)
    tensor([0.5000, 2.0000], dtype=torch.float64)
    """
    _check_kind(kind, KINDS)
    s_x, s_y, s_xy = moments.with_ridge(ridge)
    diagonal, real = kind.endswith("diagonal"), kind.startswith("real")
    matrix = (_diagonal(s_y) / _diagonal(s_x)).pow(0.25) if diagonal else _root_of_mean(s_x, s_y)
    if real:
        return matrix
    if diagonal:
        return matrix * _units(_diagonal(s_xy), (_diagonal(s_x) * _diagonal(s_y)).sqrt())
    correlation, q = torch.linalg.eigh(_similar(matrix, s_xy))
    size = _diagonal(matrix @ s_x @ matrix)  # of M^½x, and of M^{−½}y
    return _units(correlation, size).unsqueeze(-1) * (q.mT @ matrix)


def optimal_loss(moments: SecondMoments, kind: MatrixKind, *, ridge: float = RIDGE) -> Tensor:
    """Return the l(A) that the closed forms promise for `fit_matrix`, at the moments with the ridge: ``(...)``.

    Args:
        moments: moments of the data.
        kind: one of `KINDS`.
        ridge: as for `fit_matrix`.
    """
    _check_kind(kind, KINDS)
    s_x, s_y, s_xy = moments.with_ridge(ridge)
    if kind.endswith("diagonal"):
        size, correlation = (_diagonal(s_x) * _diagonal(s_y)).sqrt(), _diagonal(s_xy)
    else:
        size = torch.linalg.svdvals(_root(s_x) @ _root(s_y))
        correlation = torch.linalg.eigvalsh(_similar(_root_of_mean(s_x, s_y), s_xy))  # they sum to tr S_xy
    signed = correlation if kind.startswith("real") else -correlation.abs()
    return 2 * (size + signed).sum(-1)


def matrix_loss(moments: SecondMoments, matrix: Tensor) -> Tensor:
    """Return l(A) = E|Ax + A⁻ᵀy|², the mean of the paper's loss (Sec. 2.4), for any invertible A: ``(...)``.

    Args:
        moments: moments of the data, ``(..., d, d)`` each.
        matrix: A as ``(..., d, d)``, or its diagonal with one axis fewer than the moments; real or complex.
    """
    query = matrix.to(torch.complex128)
    if matrix.ndim < moments.queries.ndim:
        query = torch.diag_embed(query)
    key = torch.linalg.inv(query).mT
    s_x, s_y, s_xy = (moment.to(query.dtype) for moment in moments)
    products = (query @ s_x) * query.conj() + (key @ s_y) * key.conj() + 2 * (query @ s_xy) * key.conj()
    return products.sum((-2, -1)).real


def matrix_from_centers(
    query_centers: Tensor, key_centers: Tensor, kind: DiagonalKind, *, limit: float = 3.0
) -> Tensor:
    """Return the paper's diagonal A for every pair of centres: ``(..., n, d), (..., k, d) -> (..., n, k, d)``.

    With r the centre of the queries and s the centre of the keys, aₖ = √|sₖ/rₖ|, times i in the complex kind where
    rₖsₖ > 0. The complex map is then exact at the centres, Ar + A⁻¹s = 0.

    Coordinates near 0 would make A explode or vanish, so |aₖ| is kept within [1/limit, limit]. The ends are
    also the large and the small number that the paper asks for where rₖ or sₖ is 0; where both are 0,
    aₖ = 1. (Its real rule as printed gives aₖ = 0 where sₖ = 0, and A would be singular.) Points spread
    around their centres: where their moments are known, `fit_matrix` has the lower error.

    Args:
        query_centers: centres r.
        key_centers: centres s.
        kind: ``real-diagonal`` or ``complex-diagonal``.
        limit: largest |aₖ|, at least 1. It matches coordinates up to limit² apart; a larger limit only pays for
            clusters whose width is less than a tenth of their distance from 0.
    """
    _check_kind(kind, get_args(DiagonalKind))
    if not limit >= 1:
        raise ValueError(f"limit is {limit}; expected at least 1")
    r, s = query_centers.to(torch.float64).unsqueeze(-2), key_centers.to(torch.float64).unsqueeze(-3)
    ratio = torch.where((r == 0) & (s == 0), 1.0, (s / r).abs())
    sizes = ratio.sqrt().clamp(1 / limit, limit)
    return sizes if kind.startswith("real") else sizes * _units(r.sign() * s.sign(), torch.ones_like(sizes))


def _check_kind(kind: str, allowed: tuple[str, ...]) -> None:
    if kind not in allowed:
        raise ValueError(f"kind is {kind!r}; expected one of {', '.join(map(repr, allowed))}")


def _diagonal(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1)


def _units(correlation: Tensor, size: Tensor) -> Tensor:
    """Return units with u² = −sign: i for a positive correlation, 1 for a negative one or rounding of ``size``."""
    positive = correlation > 1e-12 * size.amax(-1, keepdim=True)
    return torch.complex((~positive).to(correlation.dtype), positive.to(correlation.dtype))


def _root(second: Tensor) -> Tensor:
    """Return the positive root S^½."""
    values, vectors = torch.linalg.eigh(second)
    return (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)) @ vectors.mT


def _root_of_mean(s_x: Tensor, s_y: Tensor) -> Tensor:
    """Return M^½ without squaring a condition number: M = P⁻¹UσUᵀP⁻¹ with P = S_x^½ and P S_y^½ = UσVᵀ."""
    p = _root(s_x)
    u, sigma, _ = torch.linalg.svd(p @ _root(s_y))
    half = torch.linalg.solve(p, u * sigma.sqrt().unsqueeze(-2))  # M = half halfᵀ
    u, sigma, _ = torch.linalg.svd(half)
    return (u * sigma.unsqueeze(-2)) @ u.mT


def _similar(root: Tensor, s_xy: Tensor) -> Tensor:
    """Return C = sym(M^½ S_xy M^{−½})."""
    product = torch.linalg.solve(root, root @ s_xy, left=False)
    return (product + product.mT) / 2

"""Later positive maps of the field, with parameters learned from data.

Both maps have features m^{−1/2} D exp(ωᵀ𝐀ω + ωᵀBu − ‖u‖²/2) with 𝐀 = diag(a), B = (I − 4𝐀)^{1/2} Qᵀ and
D = det(I − 4𝐀)^{1/4}, unbiased for any a < 1/4 and any orthogonal Q; a = 0 is the positive map with single ω.
They differ in their parameters: one number a, or a whole quadratic form.

References:
    Likhosherstov et al., Chefs' Random Tables: Non-Trigonometric Random Features, NeurIPS 2022 (FAVOR++).
    Likhosherstov et al., FAVOR#: Sharp Attention Kernel Approximations via New Classes of Positive
    Random Features, 2023.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Generator, Tensor
from typing_extensions import Self, override

from hrf import kernels, theory
from hrf.checks import own_constructor
from hrf.features import flops
from hrf.features.affine_exponents import Affine, AffineExponents, joined
from hrf.features.base import FeatureMap, Side
from hrf.features.exponential_features import matrix_pair
from hrf.features.flops import Flops
from hrf.fitting import SecondMoments, samples
from hrf.numerics import Features, half_square
from hrf.projections import ProjectionKind, Projections

__all__ = ["AsymmetricExponential", "DenseExponential", "OptimalPositive"]


class _Tilted(FeatureMap):
    """Features D exp(ωᵀ𝐀ω + ωᵀBu − ‖u‖²/2)/√m, of width m; a = 0 and Q = I until `fit`."""

    curvature: Tensor  # a: (1, d) or (H, 1, d)
    basis: Tensor  # Q: (d, d) or (H, d, d)

    def __init__(
        self,
        dim: int,
        *,
        n_projections: int,
        projection: ProjectionKind | Projections = "orthogonal",
        heads: int | None = None,
        generator: Generator | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.projection = Projections.resolve(
            projection, n_projections, dim, heads=heads, generator=generator, seed=seed
        )
        self.dim, self.n_projections, self.heads = self.projection.sizes()
        self.feature_dim = self.n_projections
        leading = () if heads is None else (heads,)
        self.register_buffer("curvature", torch.zeros(*leading, 1, dim))
        self.register_buffer("basis", torch.eye(dim).expand(*leading, dim, dim).clone())
        self.to(device=device, dtype=dtype)

    @property
    @override
    def nonnegative(self) -> bool:
        """Whether no estimate can be negative, since features are exponentials."""
        return True

    @override
    def scaled(self, x: Tensor, side: Side) -> Features:
        omega, a = self.projection.omega.to(x.dtype), self.curvature.to(x.dtype)
        weights = (omega * (1 - 4 * a).sqrt()) @ self.basis.to(x.dtype).mT  # rows Bᵀω: (..., m, d)
        tilt = (omega.square() * a).sum(-1).unsqueeze(-2)  # ωᵀ𝐀ω: (..., 1, m)
        log_d = torch.log1p(-4 * a).sum(-1, keepdim=True) / 4
        logs = (x @ weights.mT).add_(tilt)
        largest = logs.detach().amax(-1, keepdim=True)
        log_weight = log_d - half_square(x) - math.log(self.n_projections) / 2
        return Features(logs.sub_(largest).exp_(), log_weight + largest)

    @override
    def affine(self) -> AffineExponents:
        omega, a = self.projection.omega.detach().double(), self.curvature.double()
        weights = (omega * (1 - 4 * a).sqrt()) @ self.basis.double().mT
        tilt = (omega.square() * a).sum(-1).unsqueeze(-2)
        log_weight = torch.log1p(-4 * a).sum(-1, keepdim=True) / 4 - math.log(self.n_projections) / 2
        offset = joined([tilt, log_weight], self.heads)[:, 0]
        both = Affine(joined([weights.mT], self.heads), offset)
        return AffineExponents("single", self.n_projections, both, both)

    @override
    def _log_mse(self, x: Tensor, y: Tensor) -> Tensor:
        kind = self.projection.kind
        isotropic = bool((self.curvature == self.curvature[..., :1]).all())
        if kind != "iid" and not (kind == "orthogonal" and isotropic):
            raise NotImplementedError(
                f"no closed form is known for the MSE of {type(self).__name__} with {kind!r} projections; "
                "one is known for 'iid'"
            )
        a = self.curvature.double()
        stretch = self.basis.double() / (1 - 8 * a).sqrt()  # columns: stretchᵀz has the square Σ ζ²/(1 − 8a)
        relative = theory.optimal_log_relative_mse(
            kernels.squared_distance(x @ stretch, -y @ stretch),
            kernels.squared_distance(x, -y),
            self.n_projections,
            a.unsqueeze(-2),
            orthogonal=kind == "orthogonal",
        )
        return relative + 2 * kernels.log_softmax_kernel(x, y)

    @override
    def _flops(self) -> Flops:
        """Count projections, one exponential per feature and its scaling."""
        return flops.projected(self.n_projections, self.dim).plus(flops.features(self.n_projections))

    @override
    def config(self) -> dict[str, Any]:
        return {
            "dim": self.dim,
            "n_projections": self.n_projections,
            "projection": self.projection,
            "heads": self.heads,
        }


@own_constructor
class OptimalPositive(_Tilted):
    """FAVOR++ (optimal positive random features): one number a, the best for the mean of ‖x + y‖².

    It takes the arguments of `Positive`; `fit` learns a, head by head where there are heads.

    >>> import torch, hrf
    >>> x = torch.randn(100, 4)
    >>> phi = hrf.OptimalPositive(4, n_projections=8, projection="iid")
    >>> before = phi.mse(x, x).mean()
    >>> bool(phi.fit(x, x).mse(x, x).mean() < before)
    True
    """

    def fit(self, queries: Tensor, keys: Tensor) -> Self:
        """Learn a from ``queries (..., L, d)`` and ``keys (..., S, d)``, head by head."""
        x, y = samples(queries, self.heads, "queries"), samples(keys, self.heads, "keys")
        # Mean of ‖x + y‖² over all pairs.
        square = (
            x.square().sum(-1).mean(-1) + y.square().sum(-1).mean(-1) + 2 * (x.mean(-2) * y.mean(-2)).sum(-1)
        )
        a = optimal_curvature(square / self.dim)
        self.curvature.copy_(a[..., None, None].expand_as(self.curvature))
        return self


@own_constructor
class DenseExponential(_Tilted):
    """FAVOR# (symmetric dense-exponential random features): Q and a from the second moments of x + y.

    It takes the arguments of `Positive`; `fit` learns a and Q, head by head where there are heads.
    """

    def fit(self, queries: Tensor, keys: Tensor) -> Self:
        """Learn a and Q from ``queries (..., L, d)`` and ``keys (..., S, d)``, head by head."""
        x, y = samples(queries, self.heads, "queries"), samples(keys, self.heads, "keys")
        mean_x, mean_y = x.mean(-2, keepdim=True), y.mean(-2, keepdim=True)
        cross = mean_x.mT @ mean_y
        # E (x + y)(x + y)ᵀ over all pairs
        return self._learn(x.mT @ x / x.shape[-2] + y.mT @ y / y.shape[-2] + cross + cross.mT)

    def _learn(self, moments: Tensor) -> Self:
        """Take a and Q from E (x + y)(x + y)ᵀ = Q Λ Qᵀ."""
        eigenvalues, q = torch.linalg.eigh(moments)
        self.curvature.copy_(optimal_curvature(eigenvalues.clamp(min=0)).unsqueeze(-2))
        self.basis.copy_(q)
        return self


def optimal_curvature(square: Tensor) -> Tensor:
    """Return the a ≤ 0 that minimises the mean of the log second moment in a direction with E z² = ``square``."""
    return (1 - 2 * square - ((2 * square + 1).square() + 8 * square).sqrt()) / 16


# FAVOR# for queries and keys that are not alike: dense-exponential features of Ax and of A⁻ᵀy.
#
# exp(xᵀy) = exp((Ax)ᵀ(A⁻ᵀy)) for any invertible A. The A of `hrf.fitting` makes both sides as small as they can be
# together; the quadratic form of FAVOR# is then fitted to Ax and A⁻ᵀy.


class AsymmetricExponential(DenseExponential):
    """`DenseExponential` of Ax and A⁻ᵀy. Every estimate is positive; the width is m.

    Args:
        dim: length d of the inputs.
        n_projections: number m of rows ω.
        matrix: A, real, ``(d, d)`` or its diagonal ``(d,)``; with ``heads=H``, a leading axis H.
        projection: one of `hrf.projections.KINDS`, or a `Projections` to share.
        heads: ``None``, or H for one map per head.
        generator: the source of randomness.
        seed: seed of a new generator, in place of ``generator``.
        device: of all tensors, which are drawn where the generator is.
        dtype: of all tensors, which are drawn in float64.

    >>> import torch, hrf
    >>> _ = torch.manual_seed(0)
    >>> x, y = torch.randn(99, 4) * torch.tensor([3, 1, 1, 1.0]), torch.randn(99, 4) / 4
    >>> a = hrf.fitting.fit_matrix(hrf.fitting.SecondMoments.of(x, y), "real-full")
    >>> phi = hrf.AsymmetricExponential(4, n_projections=8, matrix=a, projection="iid").fit(x, y)
    >>> plain = hrf.DenseExponential(4, n_projections=8, projection="iid").fit(x, y)
    >>> bool(phi.relative_error(x, y).median() < plain.relative_error(x, y).median())
    True
    """

    def __init__(
        self,
        dim: int,
        *,
        n_projections: int,
        matrix: Tensor,
        projection: ProjectionKind | Projections = "orthogonal",
        heads: int | None = None,
        generator: Generator | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            dim,
            n_projections=n_projections,
            projection=projection,
            heads=heads,
            generator=generator,
            seed=seed,
            device=device,
            dtype=dtype,
        )
        self.query_matrix, self.key_matrix = matrix_pair(matrix, dim, heads)
        if self.query_matrix.has_imag:
            raise ValueError("matrix has imaginary parts; expected a real one")
        self.to(device=device, dtype=dtype)

    def fit(self, queries: Tensor, keys: Tensor) -> Self:
        """Learn a and Q from ``queries (..., L, d)`` and ``keys (..., S, d)``, head by head; A stays."""
        return super().fit(self._turned(queries, "query"), self._turned(keys, "key"))

    def fit_moments(self, moments: SecondMoments) -> Self:
        """Learn a and Q from second moments of queries and keys, ``(..., d, d)`` each."""
        a, b = (self._turned(torch.eye(self.dim, dtype=torch.float64), side).mT for side in ("query", "key"))
        cross = a @ moments.cross @ b.mT
        return self._learn(a @ moments.queries @ a.mT + b @ moments.keys @ b.mT + cross + cross.mT)

    def _turned(self, u: Tensor, side: Side) -> Tensor:
        """Return Ax or A⁻ᵀy."""
        turned, _ = (self.query_matrix if side == "query" else self.key_matrix)(u)
        assert turned is not None
        return turned

    @override
    def scaled(self, x: Tensor, side: Side) -> Features:
        return super().scaled(self._turned(x, side), side)

    @override
    def affine(self) -> AffineExponents:
        found = super().affine()
        return found._replace(
            query=self._of_turned(found.query, "query"), key=self._of_turned(found.key, "key")
        )

    def _of_turned(self, own: Affine, side: Side) -> Affine:
        """Return the function of x, with u = Ax or A⁻ᵀx in further columns, for one of u."""
        turned = self._turned(
            torch.eye(self.dim, dtype=torch.float64, device=own.matrix.device), side
        )  # rows Aeᵢ
        none = turned.new_zeros(1, self.dim + 1)
        offset = [own.offset[:, None, :-1], none, own.offset[:, None, -1:]]
        columns = [turned @ own.matrix, turned, none[:, :1].expand(self.dim, 1)]
        return Affine(joined(columns, self.heads), joined(offset, self.heads)[:, 0])

    @override
    def _log_mse(self, x: Tensor, y: Tensor) -> Tensor:
        return super()._log_mse(self._turned(x, "query"), self._turned(y, "key"))

    @override
    def _flops(self) -> Flops:
        """Count `DenseExponential` and the product with A."""
        return super()._flops().plus(self.query_matrix.flops(self.dim))

    @override
    def config(self) -> dict[str, Any]:
        matrix = self.query_matrix.matrix()
        if matrix is None:  # the identity
            matrix = torch.ones(self.query_matrix.shape)
        return super().config() | {"matrix": matrix}

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
from hrf.features.base import FeatureMap, Side
from hrf.features.flops import Flops
from hrf.fitting import samples
from hrf.numerics import Features, half_square
from hrf.projections import ProjectionKind, Projections

__all__ = ["DenseExponential", "OptimalPositive"]


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

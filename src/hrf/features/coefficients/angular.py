"""The angular coefficient (paper, Sec. 2.4): λ = θ/π, estimated by sign bits."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Generator, Tensor
from typing_extensions import override

from hrf import theory
from hrf.features import flops
from hrf.features.base import Side
from hrf.features.coefficients.base import Coefficient
from hrf.features.flops import Flops
from hrf.numerics import Features
from hrf.projections import ProjectionKind, Projections

__all__ = ["Angular"]


class Angular(Coefficient):
    """λ = θ/π, the angle of x and y (paper, Sec. 2.4): λ̂ is the share of the n sign bits that differ.

    λ̂ = ½ − (1/2n) Σ sgn(τᵀx) sgn(τᵀy); sgn 0 counts as +1.

    Args:
        dim: length d of the inputs.
        n_projections: number n of sign bits.
        projection: one of `hrf.projections.KINDS`, or a `Projections` to share.
        heads: ``None``, or H for one coefficient per head.
        generator: the source of randomness.
        seed: seed of a new generator, in place of ``generator``.
    """

    constant = 0.5

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

    def signs(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """Return the bits as ±``scale``: ``(..., L, d) -> (..., L, n)``."""
        bits = x @ self.projection.omega.to(x.dtype).mT >= 0
        return bits.to(x.dtype).mul_(2 * scale).sub_(scale)

    @override
    def scaled(self, x: Tensor, side: Side) -> Features:
        scale = 1 / math.sqrt(2 * self.n_projections)
        signs = self.signs(x, scale if side == "query" else -scale)
        return Features(signs, torch.zeros_like(x[..., :1]))

    @override
    def _estimate(self, x: Tensor, y: Tensor) -> Tensor:
        # Sums of ±1 are exact: a pair gets exactly 0 if all bits agree, and exactly 1 if all differ.
        n = self.n_projections
        return (n - self.signs(x) @ self.signs(y).mT) / (2 * n)

    @override
    def _mean(self, x: Tensor, y: Tensor) -> theory.Scaled:
        return theory.angular_moments(theory.pairwise_angle(x, y), self.n_projections).mean

    @override
    def _moments(self, x: Tensor, y: Tensor) -> theory.Moments:
        kind = self.projection.kind
        if kind not in ("iid", "orthogonal"):
            raise NotImplementedError(
                f"no closed form is known for the moments of Angular with {kind!r} projections; "
                "they are known for 'iid' and 'orthogonal'"
            )
        dim = self.dim if kind == "orthogonal" else None
        zero = ~(x.any(-1).unsqueeze(-1) & y.any(-1).unsqueeze(-2))
        return theory.angular_moments(theory.pairwise_angle(x, y), self.n_projections, dim=dim, zero=zero)

    @override
    def _flops(self) -> Flops:
        """Count projections and signs."""
        return flops.projected(self.n_projections, self.dim).plus(flops.signs(self.n_projections))

    @override
    def config(self) -> dict[str, Any]:
        return {
            "dim": self.dim,
            "n_projections": self.n_projections,
            "projection": self.projection,
            "heads": self.heads,
        }

"""Centred positive features: a whole estimator in one file, for the page "Add an estimator".

With a(u) = exp(ωᵀu − ‖u‖²/2), E a(u) = 1 and E a(x)a(y) = exp(xᵀy): the constant need not be estimated,

    K̂ = 1 + (1/m) Σ (a(x) − 1)(a(y) − 1),   φ(u) = (1, (a(u) − 1)/√m),   of width m + 1.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Generator, Tensor

from hrf import kernels
from hrf.features.base import FeatureMap, Side
from hrf.numerics import Features, half_square
from hrf.projections import Projections
from hrf.theory import Scaled, scaled_sum

__all__ = ["CentredPositive"]


class CentredPositive(FeatureMap):
    """Positive features less their mean; it takes the arguments of `hrf.Positive`."""

    def __init__(
        self,
        dim: int,
        *,
        n_projections: int,
        projection: str | Projections = "orthogonal",
        heads: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.projection = Projections.resolve(
            projection, n_projections, dim, heads=heads, generator=generator
        )
        self.dim, self.n_projections, self.heads = self.projection.sizes()
        self.feature_dim = self.n_projections + 1

    def scaled(self, x: Tensor, side: Side) -> Features:
        """Return φ(x) as values and one log scale per row; both sides have the same features."""
        logs = x @ self.projection.omega.to(x.dtype).mT - half_square(x)  # log a: (..., L, m)
        scale = logs.detach().amax(-1, keepdim=True).clamp(min=0)
        one = (-scale).exp()
        rest = ((logs - scale).exp() - one) / math.sqrt(self.n_projections)
        return Features(torch.cat([one, rest], -1), scale)

    def _log_mse(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the log of (1/m) [E (a(x) − 1)²(a(y) − 1)² − (exp(xᵀy) − 1)²], a sum of exponentials.

        For i, j ≤ 2, E a(x)^i a(y)^j = exp(ij xᵀy), times exp(‖x‖²) if i = 2 and exp(‖y‖²) if j = 2.
        """
        if self.projection.kind != "iid":
            raise NotImplementedError(f"the MSE of {type(self).__name__} is known for 'iid' rows only")
        s, xx, yy = kernels.log_softmax_kernel(x, y), 2 * half_square(x), 2 * half_square(y).mT
        terms = [(1, 4 * s + xx + yy), (-2, 2 * s + xx), (-2, 2 * s + yy), (1, xx), (1, yy)]
        terms += [(-1, 2 * s), (6, s), (-4, 0 * s)]
        variance = scaled_sum(*(Scaled.exp(exponent).times(count) for count, exponent in terms))
        return variance.log() - math.log(self.n_projections)

    def flops(self) -> int:
        """Count the projections, and per projection an exponential, a difference and a factor."""
        return self.n_projections * (2 * self.dim + 3)

    def config(self) -> dict[str, Any]:
        """Return constructor arguments that rebuild the map."""
        return {
            "dim": self.dim,
            "n_projections": self.n_projections,
            "projection": self.projection,
            "heads": self.heads,
        }

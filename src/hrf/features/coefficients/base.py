"""The contract of coefficients: λ̂(x, y) = a + ρ₁(x)ᵀρ₂(y), an unbiased estimate of λ(x, y)."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from hrf import theory
from hrf.features.base import Linearised
from hrf.numerics import full_precision

__all__ = ["Coefficient"]


class Coefficient(Linearised):
    """λ̂(x, y) = constant + queries(x) · keys(y), an unbiased estimate of a function λ(x, y)."""

    constant: float = 0.0

    @full_precision
    @override
    def estimate(self, x: Tensor, y: Tensor) -> Tensor:
        """Return λ̂ for every pair: ``(..., L, d), (..., S, d) -> (..., L, S)``."""
        return self._estimate(*self._checked_pair(x, y))

    @full_precision
    def exact(self, x: Tensor, y: Tensor) -> Tensor:
        """Return λ for every pair, in float64: ``(..., L, S)``."""
        x, y = self._checked_pair(x, y)
        return self._mean(x.double(), y.double()).value()

    @full_precision
    def moments(self, x: Tensor, y: Tensor) -> theory.Moments:
        """Return first and second moments of λ̂ over draws for every pair, in closed form and float64."""
        x, y = self._checked_pair(x, y)
        return self._moments(x.double(), y.double())

    def _estimate(self, x: Tensor, y: Tensor) -> Tensor:
        return self.constant + self.scaled_estimate(x, y).unscaled()

    def _mean(self, x: Tensor, y: Tensor) -> theory.Scaled:
        """Return λ, which does not depend on the projections."""
        raise NotImplementedError(f"no closed form is known for the mean of {type(self).__name__}")

    def _moments(self, x: Tensor, y: Tensor) -> theory.Moments:
        raise NotImplementedError(f"no closed form is known for the moments of {type(self).__name__}")

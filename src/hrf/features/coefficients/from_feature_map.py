"""Any estimated kernel as a coefficient, so that hybrids nest."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from hrf import theory
from hrf.features.base import FeatureMap, Side
from hrf.features.coefficients.base import Coefficient
from hrf.features.flops import Flops
from hrf.numerics import Features

__all__ = ["FromFeatureMap"]


class FromFeatureMap(Coefficient):
    """λ = a + w K(x, y) for the kernel K of any feature map, hybrids included: so hybrids nest.

    Args:
        feature_map: estimates K.
        constant: a.
        weight: w, of either sign.
    """

    def __init__(self, feature_map: FeatureMap, *, constant: float = 0.0, weight: float = 1.0) -> None:
        super().__init__()
        if not isinstance(feature_map, FeatureMap):
            raise TypeError(f"feature_map is of type {type(feature_map).__name__}; expected a FeatureMap")
        if not (math.isfinite(constant) and math.isfinite(weight) and weight):
            raise ValueError(
                f"constant, weight = {constant}, {weight}; expected finite numbers, weight not 0"
            )
        self.feature_map, self.constant, self.weight = feature_map, float(constant), float(weight)
        self.dim, self.heads = feature_map.dim, feature_map.heads
        self.feature_dim = feature_map.feature_dim

    def _inputs(self, u: Tensor, side: Side) -> Tensor:
        """Return the inputs of the map."""
        return u

    @override
    def scaled(self, x: Tensor, side: Side) -> Features:
        values, log_scale = self.feature_map.scaled(self._inputs(x, side), side)
        if side == "key" and self.weight < 0:
            values = -values
        return Features(values, log_scale + math.log(abs(self.weight)) / 2)

    @override
    def _estimate(self, x: Tensor, y: Tensor) -> Tensor:
        kernel = self.feature_map.scaled_estimate(self._inputs(x, "query"), self._inputs(y, "key"))
        return self.constant + self.weight * kernel.unscaled()

    @override
    def _mean(self, x: Tensor, y: Tensor) -> theory.Scaled:
        log_kernel = self.feature_map.log_kernel(self._inputs(x, "query"), self._inputs(y, "key"))
        constant = theory.Scaled.plain(torch.full_like(log_kernel, self.constant))
        return theory.scaled_sum(constant, theory.Scaled.exp(log_kernel).times(self.weight))

    @override
    def _moments(self, x: Tensor, y: Tensor) -> theory.Moments:
        log_mse = self.feature_map.log_mse(self._inputs(x, "query"), self._inputs(y, "key"))
        return theory.Moments(self._mean(x, y), theory.Scaled.exp(log_mse).times(self.weight**2))

    @override
    def _flops(self) -> Flops:
        """Count the map."""
        return self.feature_map._flops()

    @override
    def config(self) -> dict[str, Any]:
        return {"feature_map": self.feature_map, "constant": self.constant, "weight": self.weight}

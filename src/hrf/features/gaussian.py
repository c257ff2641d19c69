"""Gaussian-kernel maps from softmax-kernel maps (paper, Sec. 1): φ_gauss(u) = exp(−‖u‖²/2) φ(u)."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from typing_extensions import override

from hrf.features.base import FeatureMap, Side
from hrf.features.flops import Flops
from hrf.numerics import Features, half_square

__all__ = ["GaussianKernel"]


class GaussianKernel(FeatureMap):
    """Turn any softmax-kernel map, hybrids included, into a map for exp(−‖x − y‖²/2).

    Scale the inputs by 1/ℓ for a length scale ℓ.

    >>> import torch, hrf
    >>> phi = hrf.GaussianKernel(hrf.Trigonometric(4, n_projections=8))
    >>> x = torch.randn(3, 4)
    >>> bool(torch.allclose(phi.estimate(x, x).diagonal(), torch.ones(3)))
    True
    """

    kernel = "gaussian"

    def __init__(self, feature_map: FeatureMap) -> None:
        super().__init__()
        if not isinstance(feature_map, FeatureMap):
            raise TypeError(f"feature_map is of type {type(feature_map).__name__}; expected a FeatureMap")
        if feature_map.kernel != "softmax":
            raise ValueError(
                f"the map estimates the {feature_map.kernel} kernel; expected a softmax-kernel map"
            )
        self.feature_map = feature_map
        self.dim, self.heads = feature_map.dim, feature_map.heads
        self.feature_dim = feature_map.feature_dim

    @property
    @override
    def nonnegative(self) -> bool:
        """Whether no estimate can be negative, as for the map inside."""
        return self.feature_map.nonnegative

    @override
    def scaled(self, x: Tensor, side: Side) -> Features:
        values, log_scale = self.feature_map.scaled(x, side)
        return Features(values, log_scale - half_square(x))

    @override
    def scaled_into(self, x: Tensor, side: Side, out: Tensor) -> Features:
        values, log_scale = self.feature_map.scaled_into(x, side, out)
        return Features(values, log_scale - half_square(x))

    @property
    @override
    def whitening(self) -> Tensor | None:
        """The matrix of the map inside."""
        return self.feature_map.whitening

    @override
    def unwhitened(self, x: Tensor) -> Features:
        values, log_scale = self.feature_map.unwhitened(x)
        return Features(values, log_scale - half_square(x))

    @property
    @override
    def unbiased(self) -> bool:
        """Whether the map inside is."""
        return self.feature_map.unbiased

    @property
    @override
    def has_pullback(self) -> bool:
        return self.feature_map.has_pullback

    @override
    def pullback(self, x: Tensor, side: Side, values: Tensor, grad: Features) -> Tensor:
        return self.feature_map.pullback(x, side, values, grad) - grad.log_scale * x

    @override
    def scaled_estimate(self, x: Tensor, y: Tensor) -> Features:
        values, log_scale = self.feature_map.scaled_estimate(x, y)
        return Features(values, log_scale - half_square(x) - half_square(y).mT)

    @override
    def _log_mse(self, x: Tensor, y: Tensor) -> Tensor:
        return self.feature_map._log_mse(x, y) - 2 * half_square(x) - 2 * half_square(y).mT

    @override
    def _flops(self) -> Flops:
        """Count the map inside; the factor joins a scaling that is there already."""
        return self.feature_map._flops()

    @override
    def config(self) -> dict[str, Any]:
        return {"feature_map": self.feature_map}

"""The Gaussian coefficient (paper, Sec. 2.4 and appendix): a window in ‖Px + My‖."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self, override

from hrf.checks import check_positive, check_tensor, shapes_with_heads
from hrf.features.base import FeatureMap, Side
from hrf.features.coefficients.from_feature_map import FromFeatureMap
from hrf.features.gaussian import GaussianKernel

__all__ = ["Gaussian"]


class Gaussian(FromFeatureMap):
    """λ = a + w exp(−‖Px + My‖²/2c²) (paper, Sec. 2.4, where P = I): fires where Px ≈ −My.

    It is the Gaussian kernel of Px/c and −My/c, estimated by any softmax-kernel map.

    Args:
        feature_map: a softmax-kernel map of the same ``dim``.
        matrix: M as ``(d, d)``, or its diagonal as ``(d,)``; ``None`` is the identity. With ``heads=H`` in the
            map, a leading axis H.
        query_matrix: P, likewise.
        scale: c, the width of the window.
        constant: a.
        weight: w.
    """

    matrix: Tensor | None
    query_matrix: Tensor | None

    def __init__(
        self,
        feature_map: FeatureMap,
        *,
        matrix: Tensor | None = None,
        query_matrix: Tensor | None = None,
        scale: float = 1.0,
        constant: float = 0.0,
        weight: float = 1.0,
    ) -> None:
        super().__init__(GaussianKernel(feature_map), constant=constant, weight=weight)
        check_positive("scale", scale)
        self.scale = float(scale)
        shapes = shapes_with_heads(self.heads, (self.dim,), (self.dim, self.dim))
        for name, value in (("matrix", matrix), ("query_matrix", query_matrix)):
            if value is not None:
                check_tensor(name, value, shapes)
            self.register_buffer(name, None if value is None else value.detach().clone())

    @classmethod
    def bipolar(cls, feature_map: FeatureMap, *, sigma: float, radius: float) -> Self:
        """λ = (1 − exp(−σ²‖x − y‖²/2))/ρ, ρ = 1 − exp(−2σ²r²): 0 at x = y and 1 at x = −y on the sphere of r.

        The paper's normalised variant (appendix, Gaussian hybrid estimators).
        """
        for name, value in (("sigma", sigma), ("radius", radius)):
            check_positive(name, value)
        rho = -math.expm1(-2 * (sigma * radius) ** 2)
        if not rho:
            raise ValueError(f"sigma · radius is {sigma * radius}: too small to tell x = y from x = −y")
        inverse = 1 / rho
        minus = -torch.ones(shapes_with_heads(feature_map.heads, (feature_map.dim,))[0])
        return cls(feature_map, matrix=minus, scale=1 / sigma, constant=inverse, weight=-inverse)

    @override
    def _inputs(self, u: Tensor, side: Side) -> Tensor:
        matrix = self.query_matrix if side == "query" else self.matrix
        if matrix is not None:
            matrix = matrix.to(u.dtype)
            diagonal = matrix.ndim == 1 + (self.heads is not None)
            u = u * matrix.unsqueeze(-2) if diagonal else u @ matrix.mT
        return u / (self.scale if side == "query" else -self.scale)

    @override
    def config(self) -> dict[str, Any]:
        assert isinstance(self.feature_map, GaussianKernel)
        config = super().config() | {
            "matrix": self.matrix,
            "query_matrix": self.query_matrix,
            "scale": self.scale,
        }
        return config | {"feature_map": self.feature_map.feature_map}

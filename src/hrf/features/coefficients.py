"""Coefficients λ(x, y) of hybrids (paper, Sec. 2.2 and 2.4), each linearised as λ̂ = a + ρ₁(x)ᵀρ₂(y).

A hybrid leans on a base where its coefficient is large. Signs that the paper writes with an
imaginary unit stand on the key side.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Generator, Tensor
from typing_extensions import Self, override

from hrf import theory
from hrf.checks import check_positive, check_tensor, shapes_with_heads
from hrf.features import flops
from hrf.features.base import FeatureMap, Linearised, Side
from hrf.features.flops import Flops
from hrf.features.gaussian import GaussianKernel
from hrf.fitting import assign
from hrf.numerics import Features, full_precision
from hrf.projections import ProjectionKind, Projections

__all__ = ["Angular", "Coefficient", "FromFeatureMap", "Gaussian", "Indicator"]

# The contract of coefficients: λ̂(x, y) = a + ρ₁(x)ᵀρ₂(y), an unbiased estimate of λ(x, y).


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


# The angular coefficient (paper, Sec. 2.4): λ = θ/π, estimated by sign bits.


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
        device: of all tensors, which are drawn where the generator is.
        dtype: of all tensors, which are drawn in float64.
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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.projection = Projections.resolve(
            projection, n_projections, dim, heads=heads, generator=generator, seed=seed
        )
        self.dim, self.n_projections, self.heads = self.projection.sizes()
        self.feature_dim = self.n_projections
        self.to(device=device, dtype=dtype)

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


# Any estimated kernel as a coefficient, so that hybrids nest.


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


# The Gaussian coefficient (paper, Sec. 2.4 and appendix): a window in ‖Px + My‖.


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


# The indicator of a pair of clusters (paper, Sec. 2.4): a coefficient of 0 or 1, without randomness.


class Indicator(Coefficient):
    """λ = 1 if x lies in query cluster i and y in key cluster j, else 0 (paper, Sec. 2.4). No randomness.

    Args:
        query_centers: ``(n_q, d)``, or ``(H, n_q, d)`` for heads; a vector belongs to the nearest centre.
        key_centers: ``(n_k, d)``, or ``(H, n_k, d)``.
        pair: (i, j).
    """

    feature_dim = 1
    query_centers: Tensor
    key_centers: Tensor

    def __init__(self, query_centers: Tensor, key_centers: Tensor, *, pair: tuple[int, int]) -> None:
        super().__init__()
        shapes = tuple(query_centers.shape), tuple(key_centers.shape)
        if len(shapes[0]) not in (2, 3) or shapes[0][:-2] != shapes[1][:-2] or shapes[0][-1] != shapes[1][-1]:
            raise ValueError(
                f"the centres have shapes {shapes[0]} and {shapes[1]}; expected (n_q, d) and (n_k, d), "
                "both with the same leading axis for heads if there is one"
            )
        i, j = pair
        if not (0 <= i < shapes[0][-2] and 0 <= j < shapes[1][-2]):
            raise ValueError(f"pair is {pair}; expected indices below {shapes[0][-2]} and {shapes[1][-2]}")
        self.dim, self.heads, self.pair = (
            shapes[0][-1],
            (shapes[0][0] if len(shapes[0]) == 3 else None),
            (i, j),
        )
        self.register_buffer("query_centers", query_centers.detach().clone())
        self.register_buffer("key_centers", key_centers.detach().clone())

    @override
    def scaled(self, x: Tensor, side: Side) -> Features:
        centers, index = (
            (self.query_centers, self.pair[0]) if side == "query" else (self.key_centers, self.pair[1])
        )
        nearest = assign(x, centers.to(x.dtype)).unsqueeze(-1)
        return Features((nearest == index).to(x.dtype), torch.zeros_like(x[..., :1]))

    @override
    def _mean(self, x: Tensor, y: Tensor) -> theory.Scaled:
        return theory.Scaled.plain(self.scaled_estimate(x, y).values)

    @override
    def _moments(self, x: Tensor, y: Tensor) -> theory.Moments:
        mean = self._mean(x, y)
        return theory.Moments(mean, mean.times(0))

    @override
    def _flops(self) -> Flops:
        """Count distances to the centres."""
        return flops.distances(max(self.query_centers.shape[-2], self.key_centers.shape[-2]), self.dim)

    @override
    def config(self) -> dict[str, Any]:
        return {"query_centers": self.query_centers, "key_centers": self.key_centers, "pair": self.pair}

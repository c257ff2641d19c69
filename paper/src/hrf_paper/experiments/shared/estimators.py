"""Estimators of the paper by name and size, and the sizes at which hybrids are compared with bases.

The paper gives hybrids "the configuration leading to the similar number of FLOPS" as bases with D projections,
and pairs D with (m, n) = (D/8, 8), so that m·n = D. This gives neither the same number of operations nor the
same width, so hybrids are compared at all three matchings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Generator

import hrf

__all__ = ["BASES", "HYBRIDS", "MATCHINGS", "Estimator", "matched"]

BASES = {"trigonometric": hrf.Trigonometric, "FAVOR+": hrf.Positive}
HYBRIDS = {"angular hybrid": hrf.AngularHybrid, "Gaussian hybrid": hrf.GaussianHybrid}
MATCHINGS = ("m·n = D", "equal FLOPs", "equal width")


@dataclass(frozen=True)
class Estimator:
    """Recipe of a map: call it with a number of heads and a generator.

    Attributes:
        name: a key of `BASES` or `HYBRIDS`.
        dim: d.
        n_projections: m.
        n_coefficient_projections: n of a hybrid.
        projection: kind of all rows ω.
        sigma: σ of the Gaussian hybrid.
        radius: r of the Gaussian hybrid.
    """

    name: str
    dim: int
    n_projections: int
    n_coefficient_projections: int = 0
    projection: str = "iid"
    sigma: float = 1.0
    radius: float = 1.0

    def __call__(self, heads: int | None, generator: Generator) -> hrf.FeatureMap:
        """Draw the map."""
        common: dict[str, Any] = {
            "n_projections": self.n_projections,
            "projection": self.projection,
            "heads": heads,
            "generator": generator,
        }
        if self.name in BASES:
            return BASES[self.name](self.dim, **common)
        common["n_coefficient_projections"] = self.n_coefficient_projections
        if self.name == "Gaussian hybrid":
            common |= {"sigma": self.sigma, "radius": self.radius}
        return HYBRIDS[self.name](self.dim, **common)

    def one(self) -> hrf.FeatureMap:
        """Draw a map for closed forms, costs and widths, which do not depend on the draw."""
        return self(None, Generator())


def matched(estimator: Estimator, matching: str, n_features: int) -> Estimator:
    """Return the hybrid at the size that one of `MATCHINGS` gives it against bases with ``n_features`` projections."""
    if matching == "m·n = D":
        return replace(estimator, n_projections=n_features // estimator.n_coefficient_projections)
    cost = _width if matching == "equal width" else _flops
    limit = cost(replace(estimator, name="FAVOR+", n_projections=n_features).one())
    return replace(estimator, n_projections=_largest_within(estimator, cost, limit))


def _width(feature_map: hrf.FeatureMap) -> int:
    return feature_map.active_width


def _flops(feature_map: hrf.FeatureMap) -> int:
    return feature_map.flops()


def _largest_within(estimator: Estimator, cost: Callable[[hrf.FeatureMap], int], limit: int) -> int:
    """Return the largest m whose map costs at most ``limit``. Costs are affine in m: two maps determine all."""
    one, two = (cost(replace(estimator, n_projections=m).one()) for m in (1, 2))
    m = math.floor(1 + (limit * (1 + 1e-9) - one) / (two - one))
    if m < 1:
        raise ValueError(
            f"a {estimator.name} with one projection costs {one}, more than the {limit} of the base"
        )
    return m

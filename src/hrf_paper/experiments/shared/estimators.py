"""The estimators of the paper by name and size, and the sizes at which hybrids are compared with bases.

The paper gives hybrids "the configuration leading to the similar number of FLOPS" as bases with D projections,
and pairs D with (m, n) = (D/8, 8), so that m·n = D. That is neither the same number of operations nor the
same width, so all three are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Generator

import hrf
from hrf.advice.cost import active_width, largest_within

__all__ = ["BASES", "HYBRIDS", "MATCHINGS", "Estimator", "matched"]

BASES = {"trigonometric": hrf.Trigonometric, "FAVOR+": hrf.Positive}
HYBRIDS = {"angular hybrid": hrf.AngularHybrid, "Gaussian hybrid": hrf.GaussianHybrid}
MATCHINGS = ("m·n = D", "equal FLOPs", "equal width")


@dataclass(frozen=True)
class Estimator:
    """A map to be drawn: call it with a number of heads and a generator.

    Attributes:
        name: in `BASES` or `HYBRIDS`.
        dim: d.
        n_projections: m.
        n_coefficient_projections: n of a hybrid.
        projection: kind of all rows.
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
        """The map itself."""
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
        """A map whose draw does not matter: for closed forms, costs and widths."""
        return self(None, Generator())


def matched(estimator: Estimator, matching: str, n_features: int) -> Estimator:
    """A hybrid at the size that one of `MATCHINGS` gives it against bases with ``n_features`` projections."""
    if matching == "m·n = D":
        return replace(estimator, n_projections=n_features // estimator.n_coefficient_projections)
    base = replace(estimator, name="FAVOR+", n_projections=n_features).one()
    count = active_width if matching == "equal width" else lambda phi: phi.flops()
    m = largest_within(lambda m: replace(estimator, n_projections=m).one(), count, count(base))
    return replace(estimator, n_projections=m)

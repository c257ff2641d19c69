"""Building maps within a budget: the largest number of projections whose map costs no more than allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from hrf.advice.cost import Cost, Unit
from hrf.advice.errors import Problem
from hrf.features.base import FeatureMap
from hrf.features.clustered import ClusterBase, ClusteredHybrid
from hrf.features.exponential import Exponential, Positive
from hrf.features.optimal import AsymmetricExponential

__all__ = ["MOST_COLUMNS", "Builder", "check_matrix", "largest_measured", "largest_within"]

# No map has more active features than this many times the budget, however cheap they are to compute, since
# attention touches every one of them.
_WIDEST = 16
_TOO_SLOW = 1.25  # times the time allowed; less is noise
_STEPS, _TOLERANCE = 6, 1.1

MOST_COLUMNS = 2048  # of maps with a d × d matrix: fitting takes d³ operations


def check_matrix(dim: int) -> None:
    """Refuse more columns than a map with a matrix is fitted to."""
    if dim > MOST_COLUMNS:
        raise ValueError(
            f"vectors have {dim} columns, and the map has a matrix of {dim} × {dim} numbers; expected at most "
            f"{MOST_COLUMNS} columns, as a projection or PCA makes them"
        )


class Builder(NamedTuple):
    """Data, budget and seed that maps are built from.

    Attributes:
        queries: ``(N, d)`` to fit to.
        keys: ``(S, d)`` to fit to.
        practice: the problem on the fitting data by which settings of a hybrid are chosen.
        budget: a map may cost as much as positive features of this width.
        unit: the unit of cost.
        cost: cost of a map relative to the budget.
        seed: seed of ω and of k-means.
        most_features: the largest ``feature_dim`` allowed.
    """

    queries: Tensor
    keys: Tensor
    practice: Problem
    budget: int
    unit: Unit
    cost: Cost
    seed: int
    most_features: float = math.inf

    @property
    def dim(self) -> int:
        """Length d of the vectors."""
        return self.queries.shape[-1]

    def generator(self) -> Generator:
        """Return the source of ω, the same for every map, so that maps are compared on equal terms."""
        return Generator().manual_seed(self.seed)

    def fits(self, feature_map: FeatureMap) -> bool:
        """Return whether a map is within the budget."""
        wide = feature_map.active_width > _WIDEST * self.budget
        wide = wide or feature_map.feature_dim > self.most_features
        return not wide and self.fixed_cost(feature_map) <= 1 + 1e-9

    def fixed_cost(self, feature_map: FeatureMap) -> float:
        """Return the cost; FLOPs stand in for times, which vary, so that the set of maps does not."""
        if self.unit == "time":
            return feature_map.flops() / Positive(self.dim, n_projections=self.budget // 2).flops()
        return self.cost(feature_map)

    def slowness(self, feature_map: FeatureMap) -> float:
        """Return how many times the budget a map takes, if time is the unit and it is clearly too slow; else 0."""
        spent = self.cost(feature_map) if self.unit == "time" else 0.0
        return spent if spent > _TOO_SLOW else 0.0

    def size(self, build: Callable[[int], FeatureMap]) -> int:
        """Return the largest number of projections within the budget; by time, 1 if even 1 is too slow."""
        widest = largest_within(build, lambda phi: phi.active_width, _WIDEST * self.budget)
        if math.isfinite(self.most_features) and build(1).feature_dim <= self.most_features:
            widest = min(widest, largest_within(build, lambda phi: phi.feature_dim, self.most_features))
        if self.unit != "time":
            return min(widest, largest_within(build, self.cost, 1))
        return min(widest, largest_measured(build, self.cost, 1, min(widest, self.budget // 2)))

    def sized(self, build: Callable[..., FeatureMap]) -> FeatureMap:
        """Build the largest map within the budget by ``build(n_projections=, generator=)``."""

        def of_size(n_projections: int) -> FeatureMap:
            return build(n_projections=n_projections, generator=self.generator())

        return of_size(self.size(of_size))

    def blank(self, base: ClusterBase, n: int, n_projections: int) -> ClusteredHybrid:
        """Build an unfitted map with n clusters per side, whose cost is known before any data are clustered."""
        d, centers = self.dim, torch.zeros(n, self.dim)
        common: dict[str, Any] = {
            "n_projections": n_projections,
            "projection": "iid",
            "generator": self.generator(),
        }
        inner: FeatureMap | None = None
        if base == "moments":
            inner = Exponential(d, matrix=torch.full((n * n, d), 2.0), heads=n * n, **common)
        elif base != "separable":
            inner = AsymmetricExponential(d, matrix=2 * torch.eye(d), **common)
        shrinkage = torch.ones(()) if base == "shrunk" else None
        return ClusteredHybrid(centers, centers, base=base, feature_map=inner, shrinkage=shrinkage)


def largest_within(build: Callable[[int], FeatureMap], cost: Cost, limit: float) -> int:
    """Return the largest number m of projections whose map costs at most ``limit``.

    Args:
        build: makes a map with m projections.
        cost: cost of a map, affine in m, so that two maps determine the cost of every map.
        limit: the largest cost allowed.
    """
    one, two = cost(build(1)), cost(build(2))
    return _at_least_one(math.floor(1 + (limit * (1 + 1e-9) - one) / (two - one)))


def largest_measured(build: Callable[[int], FeatureMap], cost: Cost, limit: float, start: int) -> int:
    """Return a large m whose map costs at most ``limit``, for a cost that is measured and noisy.

    Takes a few proportional steps from ``start``. Nothing is extrapolated: the returned m has been measured, at no
    more than a tenth above the limit; it is 1 if nothing else was.
    """
    largest, size = 0, start
    for _ in range(_STEPS):
        spent = cost(build(size))
        if spent <= _TOLERANCE * limit:
            largest = size  # the last one is the best known
        size = max(1, min(4 * size, round(size * limit / spent)))
    return max(1, largest)


def _at_least_one(size: int) -> int:
    if size < 1:
        raise ValueError("even one projection costs more than the budget")
    return size

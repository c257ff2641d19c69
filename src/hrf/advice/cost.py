"""What a map costs: active width, FLOPs or measured time, and the largest map within a budget.

The *active width* is the number of features of a vector that are not zero by construction. For most maps it
is ``feature_dim``. A vector of a clustered map fills the blocks of its own cluster only: n_k of them for a
query, n_q for a key, and the larger number counts. Attention touches that many numbers a vector; its state
has ``feature_dim`` of them for each column of the values.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from hrf.features.base import FeatureMap
from hrf.features.clustered import ClusteredHybrid

__all__ = ["UNITS", "Cost", "active_width", "cost_in", "largest_measured", "largest_within", "seconds"]

Cost = Callable[[FeatureMap], float]

UNITS = ("width", "flops", "time")

_STEPS, _TOLERANCE = 6, 1.1
_REPEATS = 7  # the fastest counts: what else the machine does only ever adds time


def active_width(feature_map: FeatureMap) -> int:
    """Features of one vector that can differ from zero."""
    if isinstance(feature_map, ClusteredHybrid):
        return feature_map.feature_dim // min(feature_map.n_q, feature_map.n_k)
    return feature_map.feature_dim


def cost_in(unit: str, reference: FeatureMap, vectors: Tensor) -> Cost:
    """What a map costs in one of `UNITS`, as a share of what the ``reference`` does.

    Args:
        unit: what is counted.
        reference: the map that costs 1. Its time is taken anew beside every other: machines are not steady.
        vectors: ``(L, d)``, what is timed.
    """
    if unit == "time":
        return lambda feature_map: seconds(feature_map, vectors) / seconds(reference, vectors)
    count: Cost = active_width if unit == "width" else lambda feature_map: feature_map.flops()
    return lambda feature_map: count(feature_map) / count(reference)


def largest_within(build: Callable[[int], FeatureMap], cost: Cost, limit: float) -> int:
    """The largest number m of projections whose map costs at most ``limit``.

    Args:
        build: a map from m.
        cost: what a map costs, affine in m, so that two maps tell all of them.
        limit: what it may cost.
    """
    one, two = cost(build(1)), cost(build(2))
    return _at_least_one(math.floor(1 + (limit * (1 + 1e-9) - one) / (two - one)))


def largest_measured(build: Callable[[int], FeatureMap], cost: Cost, limit: float, start: int) -> int:
    """The same for a cost that is measured, and noisy: a few steps in proportion, from ``start``.

    Nothing is extrapolated: the m that is returned has been measured, at no more than a tenth above the limit.
    """
    largest, size = 0, start
    for _ in range(_STEPS):
        spent = cost(build(size))
        if spent <= _TOLERANCE * limit:
            largest = size  # the last one is the best known
        size = max(1, min(4 * size, round(size * limit / spent)))
    return _at_least_one(largest)


def _at_least_one(size: int) -> int:
    if size < 1:
        raise ValueError("even one projection costs more than the budget")
    return size


def seconds(feature_map: FeatureMap, vectors: Tensor) -> float:
    """Measured seconds to map one vector, in a batch of them."""
    times = []
    with torch.no_grad():
        for _ in range(1 + _REPEATS):
            start = time.perf_counter()
            _active_features(feature_map, vectors)
            times.append(time.perf_counter() - start)
    return min(times[1:]) / len(vectors)  # the first is cold


def _active_features(feature_map: FeatureMap, x: Tensor) -> None:
    """The work on queries without the zeros of a clustered map."""
    if not isinstance(feature_map, ClusteredHybrid):
        feature_map.scaled_queries(x)
        return
    own = feature_map.assign(x, "query")
    inner = feature_map.feature_map
    if (
        inner is not None and inner.heads is not None
    ):  # one map for each pair of clusters: a vector meets n_k of them
        share = x[: math.ceil(len(x) / feature_map.n_q)]
        inner.scaled_queries(share.expand(inner.heads, -1, -1))
        return
    (x @ feature_map.key_centers.to(x.dtype).mT).exp_()
    if inner is not None:
        inner.scaled_queries(x - feature_map.query_centers.to(x.dtype)[own])

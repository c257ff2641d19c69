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

__all__ = ["UNITS", "active_width", "cost_in", "largest_within", "seconds"]

UNITS = ("width", "flops", "time")

_REPEATS = 7  # the fastest counts: what else the machine does only ever adds time


def active_width(feature_map: FeatureMap) -> int:
    """Features of one vector that can differ from zero."""
    if isinstance(feature_map, ClusteredHybrid):
        return feature_map.feature_dim // min(feature_map.n_q, feature_map.n_k)
    return feature_map.feature_dim


def cost_in(unit: str, vectors: Tensor) -> Callable[[FeatureMap], float]:
    """The function that counts a map's cost in one of `UNITS`; ``vectors (L, d)`` are what is timed."""
    functions: dict[str, Callable[[FeatureMap], float]] = {
        "width": active_width,
        "flops": lambda feature_map: feature_map.flops(),
        "time": lambda feature_map: seconds(feature_map, vectors),
    }
    return functions[unit]


def largest_within(
    build: Callable[[int], FeatureMap], cost: Callable[[FeatureMap], float], limit: float, probes: int = 1
) -> int:
    """The largest number m of projections whose map costs at most ``limit``.

    Costs are affine in m, so two maps tell all of them.

    Args:
        build: a map from m.
        cost: what a map costs.
        limit: what it may cost.
        probes: m of the smaller of the two maps; the other is twice as large. Measured times want large maps.
    """
    small, large = cost(build(probes)), cost(build(2 * probes))
    slope = (large - small) / probes
    fixed = small - slope * probes
    # A slope that noise made vanish says nothing; a projection then costs its share of the smaller map.
    slope = slope if slope > 0 else small / probes
    size = math.floor((limit * (1 + 1e-9) - fixed) / slope)
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

"""Cost of a map: active width, FLOPs or measured time, and the largest map within a budget.

The *active width* (`FeatureMap.active_width`) is the number of features per vector that are not zero by
construction. Attention touches that many numbers per vector; its state holds ``feature_dim`` numbers per column
of the values.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from hrf.features.base import FeatureMap

__all__ = ["UNITS", "Cost", "cost_in", "largest_measured", "largest_within", "seconds"]

Cost = Callable[[FeatureMap], float]

UNITS = ("width", "flops", "time")

_STEPS, _TOLERANCE = 6, 1.1
_REPEATS = 7  # the fastest counts: other load on the machine only ever adds time


def cost_in(unit: str, reference: FeatureMap, vectors: Tensor) -> Cost:
    """Return the function that measures the cost of a map relative to the cost of ``reference``.

    Args:
        unit: one of `UNITS`.
        reference: the map that costs 1. Its time is measured again next to every other map, since the speed of
            a machine varies.
        vectors: ``(L, d)``, the vectors to map when time is measured.
    """
    if unit == "time":
        return lambda feature_map: seconds(feature_map, vectors) / seconds(reference, vectors)
    if unit == "width":
        return lambda feature_map: feature_map.active_width / reference.active_width
    return lambda feature_map: feature_map.flops() / reference.flops()


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


def seconds(feature_map: FeatureMap, vectors: Tensor) -> float:
    """Measure the seconds per vector to map a batch ``(L, d)``."""
    times = []
    with torch.no_grad():
        for _ in range(1 + _REPEATS):
            start = time.perf_counter()
            feature_map.active_queries(vectors)
            times.append(time.perf_counter() - start)
    return min(times[1:]) / len(vectors)  # the first call is cold

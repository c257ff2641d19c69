"""Cost of a map: active width, FLOPs or measured time.

The *active width* (`FeatureMap.active_width`) is the number of features per vector that are not zero by
construction. Attention touches that many numbers per vector; its state holds ``feature_dim`` numbers per column
of the values.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from hrf.features.base import FeatureMap

__all__ = ["UNITS", "Cost", "Unit", "cost_in", "seconds"]

Cost = Callable[[FeatureMap], float]

Unit = Literal["width", "flops", "time"]
UNITS: tuple[Unit, ...] = get_args(Unit)

_REPEATS = 7  # the fastest counts: other load on the machine only ever adds time


def cost_in(unit: Unit, reference: FeatureMap, vectors: Tensor) -> Cost:
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


def seconds(feature_map: FeatureMap, vectors: Tensor) -> float:
    """Measure the seconds per vector to map a batch ``(L, d)``."""
    times = []
    with torch.no_grad():
        for _ in range(1 + _REPEATS):
            start = time.perf_counter()
            feature_map.active_queries(vectors)
            times.append(time.perf_counter() - start)
    return min(times[1:]) / len(vectors)  # the first call is cold

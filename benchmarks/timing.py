"""Times of calls that are compared with each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter

from torch import Tensor

__all__ = ["best_times"]


def best_times(
    calls: dict[str, Callable[[], Tensor]],
    rounds: int = 3,
    budget: float = 5.0,
    clock: Callable[[], float] = perf_counter,
) -> dict[str, float]:
    """Return the shortest time per call, measured in alternation so that other load hits all calls alike.

    At least ``rounds`` rounds, and more until ``budget`` seconds have passed on the clock.
    """
    best, begin = dict.fromkeys(calls, math.inf), clock()
    while rounds > 0 or clock() - begin < budget:
        rounds -= 1
        for name, call in calls.items():
            start = clock()
            call()
            best[name] = min(best[name], clock() - start)
    return best

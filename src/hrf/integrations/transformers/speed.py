"""Time of linear attention against exact attention on this machine, and the length from which it is faster."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from hrf.features.base import FeatureMap
from hrf.integrations.transformers.attention import attend
from hrf.integrations.transformers.masks import AttentionCall

__all__ = ["Speed", "extrapolated", "measure_speed"]

_BUDGET = 2.0  # seconds
_CALLS = 3  # least number of calls per measurement


class Speed(NamedTuple):
    """Time of attention alone, in one layer, for one sequence.

    Attributes:
        length: number of tokens of the longest test sequence.
        ratio: time of linear attention over that of exact attention at that length.
        break_even: number of tokens from which linear attention is faster; ``math.inf`` if it never is, and
            ``math.nan`` if that takes too long to measure.
    """

    length: int
    ratio: float
    break_even: float

    def __str__(self) -> str:
        place = f"exact at {self.length:,} tokens on this machine"
        if self.ratio <= 1:
            return f"attention is {1 / self.ratio:.1f} times as fast as {place}"
        sentence = f"attention is slower than {place}: it takes {self.ratio:.1f} times as long; "
        if math.isfinite(self.break_even):
            return f"{sentence}it breaks even at about {float(f'{self.break_even:.2g}'):,.0f} tokens"
        unknown = "where it breaks even would take too long to measure"
        return sentence + (
            unknown if math.isnan(self.break_even) else "it gains nothing with the length, either"
        )


@torch.no_grad()
def measure_speed(call: AttentionCall, feature_map: FeatureMap, budget: float = _BUDGET) -> Speed:
    """Time both at the length of a call, and at 2, 4, … times that until linear attention wins or time is up."""
    begin, length = perf_counter(), call.key.shape[2]
    call = call._replace(query=call.query[:1], key=call.key[:1], value=call.value[:1], ignore=None)
    ratios: list[float] = []
    while not ratios or ratios[-1] > 1:
        longer = _repeated(call, 1 << len(ratios))
        start = perf_counter()
        ratios.append(_ratio(longer, feature_map))
        # Twice the length takes up to four times as long.
        if perf_counter() - begin + 4 * (perf_counter() - start) > budget:
            break
    return Speed(length, ratios[0], extrapolated(length, ratios))


def extrapolated(length: int, ratios: list[float]) -> float:
    """Return where the ratio is 1, given it at ``length``, 2 · ``length``, …, by a power law of the last two."""
    if ratios[0] <= 1:
        return length
    if len(ratios) == 1:
        return math.nan
    before, last = ratios[-2:]
    slope = math.log2(last / before)
    if slope >= 0:
        return math.inf
    return length * 2 ** (len(ratios) - 1 - math.log2(last) / slope)


def _ratio(call: AttentionCall, feature_map: FeatureMap) -> float:
    """Return the time of linear attention over that of exact attention: the shortest of several calls, in turns."""
    key, value = call.for_queries(call.key), call.for_queries(call.value)

    def exact() -> Tensor:
        causal = call.is_causal and key.shape[2] == call.query.shape[2]
        return F.scaled_dot_product_attention(call.query, key, value, is_causal=causal, scale=call.scale)

    calls: list[Callable[[], Tensor]] = [lambda: attend(call, feature_map), exact]
    shortest = [math.inf, math.inf]
    for _ in range(_CALLS):
        for index, function in enumerate(calls):
            start = perf_counter()
            function()
            shortest[index] = min(shortest[index], perf_counter() - start)
    return shortest[0] / shortest[1]


def _repeated(call: AttentionCall, times: int) -> AttentionCall:
    query, key, value = (u.repeat(1, 1, times, 1) for u in (call.query, call.key, call.value))
    return call._replace(query=query, key=key, value=value)

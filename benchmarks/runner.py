"""Timing: all cases of a group in alternation, so that other load on the machine hits them alike."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import torch

from benchmarks.cases import PEAK, Against, Case

__all__ = ["Ratio", "Timing", "choose", "measure", "ratios"]

WARM_UP = 2

Call = tuple[bool, int]  # whether it is timed, and the index of the case


@dataclass(frozen=True)
class Timing:
    """Times of one case.

    Attributes:
        case: the case.
        shape: shape of its output.
        seconds: one time per round.
    """

    case: Case
    shape: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the times, in seconds."""
        return median(self.seconds)

    @property
    def flops_per_second(self) -> float:
        """Operations of the matrix products per second, at the median."""
        return self.case.flops / self.median


@dataclass(frozen=True)
class Ratio:
    """One comparison, made round by round: times of one round were measured under the same load."""

    case: Case
    against: Against
    rounds: tuple[float, ...]
    of_medians: float

    @property
    def median(self) -> float:
        """Median of the ratios of the rounds."""
        return median(self.rounds)

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; ``None`` without a target."""
        return self.against.met(self.median)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and the third quartile."""
    if len(values) == 1:
        return values[0], values[0]
    first, _, third = quantiles(values, n=4, method="inclusive")
    return first, third


def choose(cases: Iterable[Case], pattern: str | None) -> list[Case]:
    """Return the cases with the pattern in ``group/name`` (``*`` and ``?`` allowed), and their baselines."""
    cases = list(cases)
    if pattern is None:
        return cases
    glob = f"*{pattern.lower()}*"
    chosen = [c for c in cases if fnmatchcase(f"{c.group}/{c.name}".lower(), glob)]
    baselines = {(c.group, against.baseline) for c in chosen for against in c.against}
    return [c for c in cases if c in chosen or (c.group, c.name) in baselines]


def measure(
    cases: Sequence[Case],
    rounds: int,
    track: Callable[[Sequence[Call]], Iterable[Call]] = lambda calls: calls,
) -> list[Timing]:
    """Time the cases of one group, and the peak, in alternation; the peak comes first in the result.

    Args:
        cases: the cases.
        rounds: rounds after the warm-up, or fewer if a case says so.
        track: wraps the list of calls, to show progress.
    """
    rounds = min([rounds, *(case.rounds for case in cases if case.rounds)])
    cases = [PEAK, *cases]
    shuffled, numbers = random.Random(0).sample, range(len(cases))
    # A new order every round, so that no case always follows the same case.
    calls = [(turn >= WARM_UP, i) for turn in range(WARM_UP + rounds) for i in shuffled(numbers, len(cases))]
    shapes: list[tuple[int, ...]] = [()] * len(cases)
    seconds: list[list[float]] = [[] for _ in cases]
    with torch.inference_mode():
        functions = [case.setup() for case in cases]
        gc.disable()
        try:
            for timed, i in track(calls):
                elapsed, shapes[i] = _time(functions[i])
                if timed:
                    seconds[i].append(elapsed)
        finally:
            gc.enable()
    return [Timing(*parts) for parts in zip(cases, shapes, map(tuple, seconds), strict=True)]


def _time(function: Callable[[], Any]) -> tuple[float, tuple[int, ...]]:
    start = perf_counter()
    output = function()  # allocated inside, as every user pays for it; freed after the clock stops
    elapsed = perf_counter() - start
    return elapsed, tuple(output.shape)


def ratios(timings: Sequence[Timing]) -> list[Ratio]:
    """Return all comparisons whose two sides were measured."""
    by_name = {timing.case.name: timing for timing in timings}
    found = []
    for mine in timings:
        for against in mine.case.against:
            if (other := by_name.get(against.baseline)) is not None:
                each = tuple(map(against.ratio, mine.seconds, other.seconds))
                found.append(Ratio(mine.case, against, each, against.ratio(mine.median, other.median)))
    return found

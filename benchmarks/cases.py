"""What a benchmark is: a `Case`, compared `Against` other cases of its group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import torch

__all__ = ["PEAK", "Against", "Case", "costs", "faster_than"]


@dataclass(frozen=True)
class Against:
    """A ratio to another case of the group, with the value aimed for if there is one.

    Attributes:
        baseline: name of the other case.
        measure: ``"speed-up"`` is its time over ours (larger is better), ``"cost"`` ours over its.
        target: the least speed-up or the largest cost aimed for.
    """

    baseline: str
    measure: Literal["speed-up", "cost"]
    target: float | None = None

    def ratio(self, seconds: float, baseline_seconds: float) -> float:
        """The ratio for one pair of times."""
        return baseline_seconds / seconds if self.measure == "speed-up" else seconds / baseline_seconds

    def met(self, ratio: float) -> bool | None:
        """Whether the target is reached; ``None`` where there is none."""
        if self.target is None:
            return None
        return ratio >= self.target if self.measure == "speed-up" else ratio <= self.target


def faster_than(baseline: str, at_least: float | None = None) -> Against:
    """Compare with a peer, by speed-up."""
    return Against(baseline, "speed-up", at_least)


def costs(baseline: str, at_most: float | None = None) -> Against:
    """Compare with a lower bound of the work, by cost."""
    return Against(baseline, "cost", at_most)


@dataclass(frozen=True)
class Case:
    """One thing to time.

    Attributes:
        name: unique within the group.
        group: cases of one group are timed in turns, so that their ratios are fair on a busy machine.
        setup: builds inputs and returns the function to time, which allocates its output and returns it.
        flops: operations of the matrix products in one call, for the share of the peak.
        rows: vectors that one call maps; 0 where that says nothing.
        against: the comparisons to print.
        size: the length of the sequence, where cases of the same name differ in it from group to group.
        rounds: the largest number of rounds for its group; ``None`` leaves it to the command line.
        requires: a module that only this case needs; without it the case is skipped.
    """

    name: str
    group: str
    setup: Callable[[], Callable[[], Any]]
    flops: float
    rows: int = 0
    against: tuple[Against, ...] = ()
    size: int = 0
    rounds: int | None = None
    requires: str | None = None

    def available(self) -> bool:
        """Whether the module it requires is installed."""
        return self.requires is None or find_spec(self.requires) is not None


def _square_product(n: int = 2048) -> Callable[[], Any]:
    a, b, out = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
    return lambda: torch.matmul(a, b, out=out)


# The one case whose output is allocated beforehand: it measures the arithmetic alone. Every group gets it.
PEAK = Case("matrix-multiply peak (2048³)", "", _square_product, flops=2 * 2048**3)

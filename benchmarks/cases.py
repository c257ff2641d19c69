"""Definition of a benchmark: a `Case`, compared `Against` other cases of its group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import torch

__all__ = ["PEAK", "Against", "Case", "costs", "faster_than"]


@dataclass(frozen=True)
class Against:
    """A ratio to another case of the group, with its target if there is one.

    Attributes:
        baseline: name of the other case.
        measure: ``"speed-up"`` is the baseline's time over ours (larger is better), ``"cost"`` our time over the
            baseline's.
        target: the smallest speed-up or the largest cost aimed for.
    """

    baseline: str
    measure: Literal["speed-up", "cost"]
    target: float | None = None

    def ratio(self, seconds: float, baseline_seconds: float) -> float:
        """Return the ratio for one pair of times."""
        return baseline_seconds / seconds if self.measure == "speed-up" else seconds / baseline_seconds

    def met(self, ratio: float) -> bool | None:
        """Return whether the target is reached; ``None`` without a target."""
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
        group: cases of one group are timed in alternation, so that their ratios are fair on a busy machine.
        setup: builds inputs and returns the function to time, which allocates its output and returns it.
        flops: operations of the matrix products per call, for the share of the peak.
        rows: vectors mapped per call; 0 where that is no useful number.
        against: the comparisons to print.
        size: length of the sequence, where cases of one name differ in it from group to group.
        rounds: the largest number of rounds for its group; ``None`` leaves it to the command line.
        requires: a module that only this case needs; without it the case is skipped.
        own: whether it times this library; false for peers and for lower bounds.
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
    own: bool = True

    def available(self) -> bool:
        """Return whether the module that the case requires is installed."""
        return self.requires is None or find_spec(self.requires) is not None


def _square_product(n: int = 2048) -> Callable[[], Any]:
    a, b, out = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
    return lambda: torch.matmul(a, b, out=out)


# The one case whose output is allocated beforehand: it measures the arithmetic alone. Every group gets it.
PEAK = Case("matrix-multiply peak (2048³)", "", _square_product, flops=2 * 2048**3, own=False)

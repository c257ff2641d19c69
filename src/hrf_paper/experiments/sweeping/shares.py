"""Delivered shares out of the parts: means and intervals of a method over its trainings."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from scipy import stats

from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.sweeping.measure import Settings, key

__all__ = ["Share", "curves", "method_parts", "share"]


class Share(NamedTuple):
    """A share of the balls in percent.

    Attributes:
        mean: over trainings.
        half_width: half of the 95 % interval of the mean; NaN for one training.
        values: one value per training: the mean over its episodes.
    """

    mean: float
    half_width: float
    values: list[float]

    @property
    def text(self) -> str:
        """The mean, with its interval if there is one."""
        spread = "" if math.isnan(self.half_width) else f" ± {self.half_width:.0f}"
        return f"{self.mean:.0f}{spread}"


def method_parts(settings: Settings, results: Results, method: str) -> list[dict[str, object]]:
    """Return the parts of a method, one per run and learning rate."""
    return [
        results[key(method, run, rate)] for run in range(settings.runs) for rate in settings.learning_rates
    ]


def share(settings: Settings, results: Results, method: str, quantity: str = "delivered") -> Share:
    """Return ``delivered``, ``lost`` or ``rewards`` of a method, in percent."""
    values = [
        100 * statistics.fmean(part[quantity])  # type: ignore[arg-type]
        for part in method_parts(settings, results, method)
    ]
    half = math.nan
    if (count := len(values)) > 1:
        half = float(stats.t.ppf(0.975, count - 1)) * statistics.stdev(values) / math.sqrt(count)
    return Share(statistics.fmean(values), half, values)


def curves(settings: Settings, results: Results, method: str) -> tuple[list[float], list[list[float]]]:
    """Return the steps of the judgements and, per training, the delivered shares in percent, 0 after a divergence."""
    steps = list(range(settings.training.judge_every, settings.training.steps + 1, settings.training.judge_every))
    found = []
    for part in method_parts(settings, results, method):
        seen = [100 * point["delivered"] for point in part["curve"]]  # type: ignore[attr-defined]
        found.append(seen + [0.0] * (len(steps) - len(seen)))
    return [float(step) for step in steps], found

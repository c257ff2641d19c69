"""Delivered shares out of the parts: means and intervals of a method over its trainings."""

from __future__ import annotations

import math
import statistics
from typing import Any, NamedTuple

from scipy import stats

from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.sweeping.measure import SCRATCH, Settings, key

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


def method_parts(settings: Settings, results: Results, method: str) -> list[dict[str, Any]]:
    """Return the parts of a method, one per run and learning rate."""
    return [
        results[key(method, run, rate)] for run in range(settings.runs) for rate in settings.learning_rates
    ]


def share(settings: Settings, results: Results, method: str, quantity: str = "delivered") -> Share:
    """Return ``delivered``, ``lost`` or ``rewards`` of a method, in percent."""
    values = [100 * statistics.fmean(part[quantity]) for part in method_parts(settings, results, method)]
    half = math.nan
    if (count := len(values)) > 1:
        half = float(stats.t.ppf(0.975, count - 1)) * statistics.stdev(values) / math.sqrt(count)
    return Share(statistics.fmean(values), half, values)


def curves(settings: Settings, results: Results, method: str) -> tuple[list[float], list[list[float]]]:
    """Return the steps of the judgements and, per training, the delivered shares in percent, 0 after a divergence.

    The curve of a method that took the place of exact attention begins where that of exact attention ends.
    """
    training = settings.training
    tuned = bool(settings.tuned_steps) and method not in SCRATCH
    first, last, every = 0, training.steps, training.judge_every
    if tuned:
        first, last, every = training.steps, training.steps + settings.tuned_steps, settings.tuned_steps
    steps = [float(step) for step in range(first + every, last + 1, every)]
    found = [_padded(_delivered(part), len(steps)) for part in method_parts(settings, results, method)]
    if tuned:
        ends = [_delivered(part)[-1:] for part in method_parts(settings, results, "exact")]
        return [float(first), *steps], [end + curve for end, curve in zip(ends, found, strict=True)]
    return steps, found


def _delivered(part: dict[str, Any]) -> list[float]:
    return [100 * point["delivered"] for point in part["curve"]]


def _padded(values: list[float], length: int) -> list[float]:
    return values + [0.0] * (length - len(values))

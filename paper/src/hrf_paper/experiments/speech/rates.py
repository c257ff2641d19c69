"""Word error rates out of the parts: means and intervals of a method at a stage and on a set."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import NamedTuple

from scipy import stats

from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.speech.settings import STAGES, key

__all__ = ["Rate", "methods_run", "rate"]


class Rate(NamedTuple):
    """A word error rate in percent.

    Attributes:
        mean: over runs and draws.
        half_width: half of the 95 % interval of the mean; NaN for one value.
        values: one value per run and draw.
    """

    mean: float
    half_width: float
    values: list[float]

    @property
    def text(self) -> str:
        """The mean, with its interval if there is one."""
        spread = "" if math.isnan(self.half_width) else f" ± {self.half_width:.1f}"
        return f"{self.mean:.1f}{spread}"


def rate(results: Results, stage: str, method: str, tested: str) -> Rate | None:
    """Return the word error rate of a method at a stage, on a set of test utterances; ``None`` if it was not run."""
    values: list[float] = []
    run = 0
    while (name := key(stage, method, run)) in results:
        values += [draw[tested]["wer"] for draw in results[name]["draws"]]
        run += 1
    if not values:
        return None
    half = math.nan
    if (count := len(values)) > 1:
        half = float(stats.t.ppf(0.975, count - 1)) * statistics.stdev(values) / math.sqrt(count)
    return Rate(statistics.fmean(values), half, values)


def methods_run(results: Results, stage: str, methods: Iterable[str]) -> list[str]:
    """Return the methods that were run at a stage."""
    assert stage in STAGES
    return [name for name in methods if key(stage, name, 0) in results]

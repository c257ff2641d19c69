"""Word error rates out of the parts: means and intervals of a method at a stage and length."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.speech.measure import SHORT, STAGES, Settings, key

__all__ = ["Rate", "judged_methods", "lengths", "rate"]

# Of Student's t at 95 %, by the number of runs; one run has no interval.
_QUANTILES = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}


class Rate(NamedTuple):
    """A word error rate in percent.

    Attributes:
        mean: over runs.
        half_width: half of the 95 % interval of the mean over runs; NaN for one run.
        runs: one value per run, each the mean over draws.
    """

    mean: float
    half_width: float
    runs: list[float]

    @property
    def text(self) -> str:
        """The mean, with its interval if there is one."""
        spread = "" if math.isnan(self.half_width) else f" ± {self.half_width:.1f}"
        return f"{self.mean:.1f}{spread}"


def rate(results: Results, stage: str, method: str, length: int) -> Rate | None:
    """Return the word error rate of a method at a stage; ``None`` if it was not run."""
    runs = []
    while (name := key(stage, method, len(runs))) in results:
        runs.append(statistics.fmean(draw[str(length)]["wer"] for draw in results[name]["draws"]))
    if not runs:
        return None
    half = math.nan
    if len(runs) > 1:
        half = _QUANTILES.get(len(runs), 2.0) * statistics.stdev(runs) / math.sqrt(len(runs))
    return Rate(statistics.fmean(runs), half, runs)


def judged_methods(results: Results, stage: str, methods: tuple[str, ...]) -> list[str]:
    """Return the methods that were run at a stage."""
    assert stage in STAGES
    return [name for name in methods if key(stage, name, 0) in results]


def lengths(settings: Settings) -> tuple[int, ...]:
    """Return all lengths of test utterances, single ones first."""
    return (SHORT, *settings.lengths)

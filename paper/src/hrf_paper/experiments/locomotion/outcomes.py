"""Outcomes of a method over its runs, and frames of an episode, out of the parts."""

from __future__ import annotations

import base64
import math
import statistics
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.locomotion.measure import FRAMES, Settings, key

__all__ = ["Frame", "Outcome", "curves", "frames", "outcome"]


class Outcome(NamedTuple):
    """A method after training.

    Attributes:
        returns: mean return over the unseen fields, one number per run that did not diverge.
        crossed: share of the unseen fields that were crossed, likewise.
        diverged: the number of runs that were not finite.
        flops: per decision.
        ranking_flops: per decision, of the ranking alone.
    """

    returns: list[float]
    crossed: list[float]
    diverged: int
    flops: int
    ranking_flops: int

    @property
    def mean(self) -> float:
        """The mean return over runs; NaN if all diverged."""
        return statistics.fmean(self.returns) if self.returns else math.nan

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of the mean return over runs; NaN for fewer than two runs."""
        if (n := len(self.returns)) < 2:
            return math.nan
        return float(stats.t.ppf(0.975, n - 1)) * statistics.stdev(self.returns) / math.sqrt(n)

    @property
    def text(self) -> str:
        """The mean return, with its interval if there is one."""
        if not self.returns:
            return "diverged"
        spread = "" if math.isnan(self.half_width) else f" ± {self.half_width:.2f}"
        return f"{self.mean:.2f}{spread}"

    @property
    def share(self) -> str:
        """The share of crossed fields over all runs."""
        return f"{statistics.fmean(self.crossed):.0%}" if self.crossed else "diverged"


def outcome(settings: Settings, results: Results, method: str) -> Outcome:
    """Collect the runs of a method."""
    found = [results[key(method, run)] for run in range(settings.runs)]
    whole = [part for part in found if not part["diverged"]]
    return Outcome(
        [statistics.fmean(part["returns"]) for part in whole],
        [statistics.fmean(part["crossed"]) for part in whole],
        len(found) - len(whole),
        found[0]["flops"],
        found[0]["ranking_flops"],
    )


def curves(settings: Settings, results: Results, method: str) -> NDArray[np.float64]:
    """Return the points of the curves, ``(runs, points, 2)``: iteration and return; diverged runs are left out."""
    found = [results[key(method, run)] for run in range(settings.runs)]
    return np.array([part["curve"] for part in found if not part["diverged"]])


class Frame(NamedTuple):
    """What a policy saw.

    Attributes:
        x: place of the trunk in metres.
        depth: images, ``(2, 24, 32)``.
        kept: which of their pixels were read out.
    """

    x: float
    depth: NDArray[np.float32]
    kept: NDArray[np.bool_]


def frames(results: Results) -> list[Frame]:
    """Return the stored frames."""
    part = results[FRAMES]
    shape = tuple(part["shape"])
    found = []
    for stored in part["frames"]:
        depth = np.frombuffer(base64.b64decode(stored["depth"]), np.uint8).reshape(shape) / 255
        bits = np.unpackbits(np.frombuffer(base64.b64decode(stored["kept"]), np.uint8))
        found.append(Frame(stored["x"], depth.astype(np.float32), bits.reshape(shape) == 1))
    return found

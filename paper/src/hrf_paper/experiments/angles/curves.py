"""Curves of relative errors over the angle, and questions about them: peaks, winners."""

from __future__ import annotations

from dataclasses import dataclass, fields

from hrf_paper.experiments.angles.measure import ANGLES, SAMPLED_ANGLES, Settings
from hrf_paper.experiments.experiment import Results

__all__ = ["ROUNDING", "TIE", "Curve", "Curves", "angle_text", "curves"]

# An error below this is rounding: the estimator is exact there.
ROUNDING = 1e-12
# Errors that differ by less than this share are equal.
TIE = 1e-9


@dataclass(frozen=True)
class Curve:
    """One estimator: its size, its cost and its relative errors.

    Attributes:
        name: the name of the estimator.
        fitted: whether it was fitted to these very pairs.
        n_projections: m.
        width: the number of features.
        flops: operations per vector.
        exact: errors at `Curves.angles`.
        empirical: errors at `Curves.sampled_angles`.
        standard_error: standard errors of the empirical errors.
    """

    name: str
    fitted: bool
    n_projections: int
    width: int
    flops: int
    exact: list[float]
    empirical: list[float]
    standard_error: list[float]

    @property
    def largest(self) -> float:
        """The maximum of the exact relative error over the angles."""
        return max(self.exact)

    @property
    def called(self) -> str:
        """The name as it stands in a sentence."""
        return f"the {self.name}" if "hybrid" in self.name else self.name


@dataclass(frozen=True)
class Curves:
    """All curves of a run, with angles in units of π."""

    settings: Settings
    curves: list[Curve]
    angles: list[float]
    sampled_angles: list[float]

    def exact_where_sampled(self, curve: Curve) -> list[float]:
        """Return the exact errors at the sampled angles."""
        return curve.exact[:: (len(self.angles) - 1) // (len(self.sampled_angles) - 1)]

    def peak(self, curve: Curve) -> float:
        """Return the angle at which a curve is largest."""
        return self.angles[curve.exact.index(curve.largest)]

    def winners(self) -> list[tuple[Curve, float, float]]:
        """Return ranges of angles, each with the curve that has the smallest exact error there.

        The two ends do not count: several estimators are exact there.
        """
        inner = range(1, len(self.angles) - 1)
        best = [min(self.curves, key=lambda curve: curve.exact[k]) for k in inner]
        ranges, start = [], 0.0
        for k in inner:
            if k == inner[-1] or best[k] is not best[k - 1]:  # best[k − 1] belongs to angle k
                end = 1.0 if k == inner[-1] else (self.angles[k] + self.angles[k + 1]) / 2
                ranges.append((best[k - 1], start, end))
                start = end
        return ranges


def curves(settings: Settings, results: Results) -> Curves:
    """Read the curves from the results of all parts."""
    names = [field.name for field in fields(Curve) if field.name != "name"]
    found = [Curve(name, *(part[key] for key in names)) for name, part in results.items()]
    return Curves(settings, found, ANGLES, SAMPLED_ANGLES)


def angle_text(share: float) -> str:
    """Format an angle in units of π, in at most five characters."""
    return {0.0: "0", 1.0: "π"}.get(share, f"{share:.2f}π")

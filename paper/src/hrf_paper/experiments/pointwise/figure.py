"""Bands of estimates and relative errors over the angle."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hrf.report import number
from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.pointwise.measure import STEPS, Settings, at, share_of_wins
from hrf_paper.experiments.shared.draws import fractions
from hrf_paper.experiments.shared.estimators import BASES, HYBRIDS
from hrf_paper.experiments.shared.plotting import COLOURS, GREY, angle_axis, bare, canvas, headline, log_axis

__all__ = ["figure"]

_MATCHING = "equal FLOPs"
_NAMES = (*BASES, *HYBRIDS)


def figure(settings: Settings, results: Results) -> Figure:
    """Draw one row per radius and one column per estimator, hybrids at equal FLOPs."""
    drawing = canvas(13, 3.1 * len(settings.radii) + 1)
    found = [at(results, radius, _MATCHING) for radius in settings.radii]
    best = min(_NAMES, key=lambda name: max(found[0][name]["exact"]))
    share = max(share_of_wins(estimators, "angular hybrid") for estimators in found)
    headline(
        drawing,
        f"Smallest largest error: {best}; the angular hybrid is the most accurate at up to {share:.0%} of angles",
        f"{settings.draws:,} estimates, d = {settings.dim}, bases with {settings.features} projections and hybrids "
        "with as many FLOPs\nGrey, left axis: the kernel and 5–95 % of its estimates. Colour, right axis: relative "
        "error, exact (line) and of the draws (dots)",
    )
    panels = drawing.subplots(len(settings.radii), len(_NAMES), squeeze=False)
    for row, radius, estimators in zip(panels, settings.radii, found, strict=True):
        _draw_row(row, settings, radius, estimators)
    for axes in panels.flat:
        angle_axis(axes, label=axes in panels[-1])
    return drawing


def _draw_row(row: Any, settings: Settings, radius: float, found: dict[str, dict[str, Any]]) -> None:
    top = 1.6 * max(max(part["exact"]) for part in found.values())
    bottom = min(value for part in found.values() for value in part["seen"][1:-1]) / 2
    for axes, (name, part) in zip(row, found.items(), strict=True):
        _draw_kernel(axes, settings, part)
        axes.set_ylim(*_kernel_limits(found))
        errors = axes.twinx()
        _draw_errors(errors, settings, part, COLOURS[name])
        errors.set_ylim(bottom, top)
        log_axis(errors)
        errors.set_ylim(bottom, top)
        title = f"{name}, r = {radius:g}\nm = {part['m']}, largest ε {number(max(part['exact']))}"
        errors.set_title(title, size=10)
        bare([axes, errors], grid=False)
        _label_outer(axes, "kernel", axes is row[0])
        _label_outer(errors, "relative error ε", axes is row[-1])


def _draw_kernel(axes: Axes, settings: Settings, part: dict[str, Any]) -> None:
    angles = fractions(settings.angles)
    axes.fill_between(angles, part["low"], part["high"], color="#cfcfcf", linewidth=0)
    axes.plot(angles, part["kernel"], color=GREY, linewidth=1.2)
    axes.axhline(0, color="#D62728", linewidth=0.8, linestyle=":")


def _draw_errors(axes: Axes, settings: Settings, part: dict[str, Any], colour: str) -> None:
    axes.plot(fractions(STEPS), [max(value, 1e-12) for value in part["exact"]], color=colour, linewidth=2)
    points = zip(fractions(settings.angles), part["seen"], strict=True)
    shown = [(angle, value) for angle, value in points if value > 1e-9]
    axes.plot(*zip(*shown, strict=True), "o", color=colour, markersize=3.5, mec="white", mew=0.4)


def _label_outer(axes: Axes, text: str, outer: bool) -> None:
    """Label an axis y at the edge of the figure, and remove the numbers of the other panels."""
    if outer:
        axes.set_ylabel(text)
    else:
        axes.set_yticklabels([])


def _kernel_limits(found: dict[str, dict[str, Any]]) -> tuple[float, float]:
    low = min(min(part["low"]) for part in found.values())
    high = max(max(part["high"]) for part in found.values())
    return low - 0.05 * (high - low), high + 0.05 * (high - low)

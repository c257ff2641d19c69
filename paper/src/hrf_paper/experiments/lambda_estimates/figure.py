"""Bands of estimated coefficients, and their second moments."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.lambda_estimates.claims import worst
from hrf_paper.experiments.lambda_estimates.measure import MOMENTS, NAMES, STEPS, Settings, key
from hrf_paper.experiments.shared.draws import CLOSE, fractions
from hrf_paper.experiments.shared.plotting import COLOURS, PALETTE, angle_axis, bare, canvas, headline

__all__ = ["figure"]

_DOTS: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 4, "mec": "white", "mew": 0.5}


def figure(settings: Settings, results: Results) -> Figure:
    """Draw the band of estimates, and second moments for every n."""
    drawing = canvas(12, 8)
    agree = max(worst(part) for part in results.values()) <= CLOSE
    headline(
        drawing,
        "Coefficients are unbiased, and their second moments are as derived"
        if agree
        else "Some moments are not as derived",
        f"‖x‖ = ‖y‖ = {settings.radius:g}, d = {settings.dim}, σ = {settings.sigma:g}, iid projections. "
        f"Lines: exact. Dots: {settings.draws:,} draws",
    )
    panels = drawing.subplots(2, 3)
    titles = ("λ and 5–95 % of its estimates", "E λ̂²", "E (1 − λ̂)²")
    for row, name in zip(panels, NAMES, strict=True):
        _draw_bands(row[0], settings, results, name)
        for axes, moment in zip(row[1:], MOMENTS[1:], strict=True):
            _draw_moment(axes, settings, results, name, moment)
        for axes, title in zip(row, titles, strict=True):
            axes.set_title(f"{name}: {title}", size=11)
            axes.legend(frameon=False, fontsize=9)
            angle_axis(axes, label=name == NAMES[-1])
    bare(panels.flat)
    return drawing


def _draw_bands(axes: Axes, settings: Settings, results: Results, name: str) -> None:
    angles, hybrid = fractions(settings.angles), COLOURS[f"{name} hybrid"]
    for place, n in enumerate(settings.n_projections[1:]):
        part = results[key(name, n)]
        shade = 0.2 + 0.25 * place
        axes.fill_between(
            angles, part["low"], part["high"], color=hybrid, alpha=shade, linewidth=0, label=f"n = {n}"
        )
        axes.plot(angles, part["mean"]["seen"], color=hybrid, **_DOTS)
    axes.plot(fractions(STEPS), part["mean"]["exact"], color="black", linewidth=1.2)


def _draw_moment(axes: Axes, settings: Settings, results: Results, name: str, moment: str) -> None:
    for n, colour in zip(settings.n_projections, PALETTE, strict=False):
        part = results[key(name, n)][moment]
        axes.plot(fractions(STEPS), part["exact"], color=colour, linewidth=1.8, label=f"n = {n}")
        axes.plot(fractions(settings.angles), part["seen"], color=colour, **_DOTS)

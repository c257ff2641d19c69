"""Shares of the bases' error over r, and the exact error over the printed bound."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.max_relative_error.measure import Settings, radii
from hrf_paper.experiments.shared.plotting import GREY, PALETTE, bare, canvas, headline, log_axis

__all__ = ["figure"]

_STYLES = {"exact": "-", "printed": "--", "corrected": ":", "tight": "-."}


def figure(settings: Settings, results: Results) -> Figure:
    """Draw shares over r with the three bounds, and the exact error over the printed bound."""
    numbers = settings.n_coefficient_projections
    failing = [n for n in numbers if results[f"n = {n}"]["crossing"] is not None]
    drawing = canvas(12, 5.6)
    headline(
        drawing,
        f"Theorem 3.5 fails for large r at every n up to {max(failing)}; a corrected bound holds"
        if failing
        else "Theorem 3.5 holds at all radii looked at",
        "Largest relative error of the angular hybrid on the sphere of radius r, exact",
    )
    left, right = drawing.subplots(1, 2)
    _draw_shares(left, settings, results)
    _draw_ratios(right, settings, results)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlim(1, radii(settings)[-1])
        axes.set_xticks([1, 2, 5, 10, 20, 30], ["1", "2", "5", "10", "20", "30"])
        axes.set_xlabel("radius r")
    log_axis(left)
    bare((left, right))
    return drawing


def _draw_shares(axes: Axes, settings: Settings, results: Results) -> None:
    numbers = settings.n_coefficient_projections
    for n, colour in zip((numbers[0], numbers[-2]), PALETTE, strict=False):
        for name, style in _STYLES.items():
            axes.plot(
                radii(settings),
                results[f"n = {n}"][name],
                style,
                color=colour,
                linewidth=2.4 if name == "exact" else 1.3,
                label=f"{'exact' if name == 'exact' else f'{name} bound'}, n = {n}",
            )
    axes.set_ylabel("share of the bases' largest error")
    axes.legend(frameon=False, fontsize=8.5, loc="lower left")


def _draw_ratios(axes: Axes, settings: Settings, results: Results) -> None:
    grid = radii(settings)
    for n, colour in zip(settings.n_coefficient_projections, PALETTE, strict=False):
        part = results[f"n = {n}"]
        ratio = [share / bound for share, bound in zip(part["exact"], part["printed"], strict=True)]
        crossing, label = part["crossing"], f"n = {n}"
        if crossing is not None and crossing > grid[-1]:
            label += f", violated from r = {crossing:.2f}"
        axes.plot(grid, ratio, color=colour, linewidth=2, label=label)
        if crossing is not None and crossing <= grid[-1]:
            _mark(axes, crossing, colour)
    axes.set_ylim(0.3, axes.get_ylim()[1])
    axes.axhspan(1, axes.get_ylim()[1], color="#D55E00", alpha=0.08, linewidth=0)
    axes.text(1.05, 1.02, "theorem violated", size=9, color="#a83a00", va="bottom")
    axes.axhline(1, color=GREY, linewidth=0.8)
    axes.set_ylabel("exact error / printed bound")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 0.9))


def _mark(axes: Axes, crossing: float, colour: str) -> None:
    axes.plot([crossing], [1], "o", color=colour, markersize=6, zorder=3)
    axes.annotate(
        f"{crossing:.2f}",
        (crossing, 1),
        (-4, 5),
        textcoords="offset points",
        ha="right",
        size=9,
        color=colour,
    )

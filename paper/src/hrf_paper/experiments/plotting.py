"""Style of the figures: colours, headlines, bare frames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

# Okabe and Ito's palette for all kinds of colour vision, without yellow, which is too pale on white.
COLOURS = {
    "trigonometric": "#0072B2",
    "FAVOR+": "#D55E00",
    "FAVOR++": "#E69F00",
    "FAVOR#": "#000000",
    "angular hybrid": "#009E73",
    "Gaussian hybrid": "#CC79A7",
    "nested hybrid": "#56B4E9",
}
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#555555"


def canvas(width: float, height: float) -> Figure:
    """Return an empty white figure of this size in inches."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def headline(drawing: Figure, finding: str, about: str) -> None:
    """Write the finding in bold, and below it in grey the subject of the figure, in a line or more."""
    lines = about.count("\n") + 1
    # Constrained layout makes room for the bold text with its blank lines; the grey text covers the blank lines.
    drawing.suptitle(finding + "\n" * lines, x=0.01, ha="left", size=15, weight="bold")
    top = 1 - 0.39 / drawing.get_figheight()
    drawing.text(0.01, top, about, ha="left", va="top", size=10.5, color=GREY, linespacing=1.35)


def bare(axes: Iterable[Axes], grid: bool = True) -> None:
    """Remove frames and ticks."""
    for panel in axes:
        panel.spines[:].set_visible(False)
        panel.tick_params(which="both", length=0, labelcolor=GREY)
        if grid:
            panel.grid(which="major", color="#e2e2e2", linewidth=0.7)
            panel.set_axisbelow(True)


def angle_axis(axes: Axes, label: bool = True) -> None:
    """Set up an axis x from 0 to π, in units of π."""
    axes.set_xlim(-0.01, 1.01)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "π/4", "π/2", "3π/4", "π"])
    if label:
        axes.set_xlabel("angle θ between x and y")


def note(
    axes: Axes, text: str, point: tuple[float, float], offset: tuple[float, float], colour: str, **style: Any
) -> None:
    """Write a text at an offset in points from a point of the data; ``style`` has its alignment."""
    axes.annotate(text, point, offset, textcoords="offset points", color=colour, size=9, **style)


def log_axis(axes: Axes) -> None:
    """Set up a logarithmic axis y with plain numbers at 1, 2 and 5."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1e3 else (1,)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())

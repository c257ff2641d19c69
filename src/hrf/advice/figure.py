"""A picture of advice: every map with its error on the left, error against cost on the right."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hrf.advice.result import Advice, Candidate, number

__all__ = ["figure"]

# Okabe and Ito's palette, told apart with every kind of colour vision.
_COLOURS = {"isotropic": "#0072B2", "hybrid": "#CC79A7", "fitted": "#E69F00", "clustered": "#009E73"}
_GREY, _PALE, _INK = "#666666", "#e6e6e6", "#222222"
_TITLES = {
    "attention": "relative error of the attention weights",
    "output": "relative error of the attention output",
    "kernel": "median relative error of the kernel",
}


def figure(advice: Advice) -> Figure:
    """The drawing; errors far beyond uniform attention are cut off and written out."""
    shown = [*advice.ranking, *advice.beyond]
    drawing = Figure(figsize=(13.5, 2.4 + 0.235 * len(shown)), layout="constrained", facecolor="white")
    ranks, plane = drawing.subplots(1, 2, width_ratios=[1, 1.05])
    limits = _limits(advice, shown)
    _draw_ranks(ranks, advice, limits)
    _draw_plane(plane, advice, shown, limits)
    for axes in (ranks, plane):
        axes.spines[:].set_visible(False)
        axes.tick_params(which="both", length=0, labelcolor=_GREY)
        axes.set_axisbelow(True)
    best, s = advice.ranking[0], advice.settings
    drawing.suptitle(
        f"Best at this budget: {best.name}, error {number(best.error)}", x=0.008, ha="left", weight="bold", size=15
    )
    families = [family for family in _COLOURS if any(c.family == family for c in shown)]
    handles = [
        Line2D([], [], marker="o", linestyle="", markersize=7, color=_COLOURS[family], label=family)
        for family in families
    ]
    handles.append(Line2D([], [], color=_GREY, linestyle=(0, (4, 3)), linewidth=1.2, label="uniform attention"))
    handles.append(
        Line2D([], [], marker="o", linestyle="", markersize=7, color=_GREY, markerfacecolor="white", label="needs more")
    )
    drawing.legend(handles=handles, loc="outside lower left", ncols=len(handles), frameon=False, handletextpad=0.4)
    ranks.set_title(
        f"{s.n_queries:,} queries (norm {s.query_norm:.1f}) and {s.n_keys:,} keys (norm {s.key_norm:.1f}), d = {s.dim}; "
        f"bars: 95 % over {s.n_redraws} draws",
        loc="left",
        size=9.5,
        color=_GREY,
    )
    plane.set_title("error against cost, down and left is better", loc="left", size=9.5, color=_GREY)
    return drawing


def _limits(advice: Advice, shown: list[Candidate]) -> tuple[float, float]:
    """From the smallest error to a few times that of uniform attention, or of the best map."""
    errors = [c.error for c in shown if c.error > 0]
    high = 4 * max(advice.uniform, advice.ranking[0].high, 0.02)
    low = min([*errors, high / 10])
    return low / 1.6, min(high, 1.6 * max([*errors, advice.uniform]))


def _draw_ranks(axes: Axes, advice: Advice, limits: tuple[float, float]) -> None:
    low, high = limits
    gap = 1 if advice.beyond else 0
    places = [*range(len(advice.ranking)), *(len(advice.ranking) + gap + k for k in range(len(advice.beyond)))]
    shown = [*advice.ranking, *advice.beyond]
    for place, c in zip(places, shown, strict=True):
        colour, outside = _COLOURS[c.family], c.error > high
        x = min(max(c.error, low), high)
        if not outside:
            axes.plot([max(c.low, low), min(c.high, high)], [place, place], color=colour, linewidth=2.2, alpha=0.45)
        face = "white" if place >= len(advice.ranking) else colour
        size = 9 if place == 0 else 6.5
        marker = ">" if outside else "o"
        axes.plot(x, place, marker, color=colour, markerfacecolor=face, markersize=size, clip_on=False, zorder=3)
        axes.annotate(
            number(c.error), (1, place), (8, 0), ("axes fraction", "data"), "offset points", va="center", size=8.5,
            color=_INK if place == 0 else _GREY, weight="bold" if place == 0 else "normal",
        )
    axes.axvline(advice.uniform, color=_GREY, linestyle=(0, (4, 3)), linewidth=1.2)
    axes.set_yticks(places, [c.name for c in shown], size=9)
    axes.get_yticklabels()[0].set_weight("bold")
    for label in axes.get_yticklabels():
        label.set_color(_INK)
    axes.set_ylim(places[-1] + 0.8, -0.8)
    _logarithmic(axes, "x", limits)
    axes.grid(axis="y", color=_PALE, linewidth=0.5)
    axes.set_xlabel(_TITLES[advice.settings.objective])


def _draw_plane(axes: Axes, advice: Advice, shown: list[Candidate], limits: tuple[float, float]) -> None:
    by_flops = advice.settings.unit != "flops"
    low, high = limits

    def cost(c: Candidate) -> float:
        return c.flops if by_flops else c.width

    inside = [c for c in shown if c.error <= high]
    for c in inside:
        colour = _COLOURS[c.family]
        y = max(c.error, low)
        axes.plot([cost(c)] * 2, [max(c.low, low), min(c.high, high)], color=colour, linewidth=1.6, alpha=0.4)
        face = "white" if c in advice.beyond else colour
        axes.plot(cost(c), y, "o", color=colour, markerfacecolor=face, markersize=11 if c is shown[0] else 7, zorder=3)
    axes.axhline(advice.uniform, color=_GREY, linestyle=(0, (4, 3)), linewidth=1.2)
    front, least = [], math.inf
    for c in sorted(advice.ranking, key=lambda c: (cost(c), c.error)):
        if c.error < least and c.error <= high:
            front.append(c)
            least = c.error
    axes.step([cost(c) for c in front], [max(c.error, low) for c in front], where="post", color=_INK, linewidth=0.8, alpha=0.5)
    costs = [cost(c) for c in shown]
    axes.set_xscale("log")
    left, right = min(costs) / 1.5, max(costs) * 1.5
    axes.set_xlim(left, right)
    _logarithmic(axes, "y", limits)
    axes.grid(axis="x", which="major", color=_PALE, linewidth=0.7)
    axes.xaxis.set_major_formatter(lambda value, _: _thousands(value))
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    axes.set_xlabel("FLOPs to map a vector" if by_flops else "active features of a vector")
    for c in _labelled(advice, front):
        middle = math.sqrt(left * right)
        side = 1 if cost(c) < middle else -1
        axes.annotate(
            c.name, (cost(c), max(c.error, low)), (9 * side, -10), textcoords="offset points",
            ha="left" if side > 0 else "right", va="center", size=9, color=_INK,
            weight="bold" if c is advice.ranking[0] else "normal",
        )


def _labelled(advice: Advice, front: list[Candidate]) -> list[Candidate]:
    """The maps that nothing beats at their cost, and the best of each family."""
    chosen = list(front)
    for family in _COLOURS:
        first = next((c for c in advice.ranking if c.family == family), None)
        if first is not None and first not in chosen:
            chosen.append(first)
    return chosen


def _logarithmic(axes: Axes, which: str, limits: tuple[float, float]) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    (axes.set_xlim if which == "x" else axes.set_ylim)(*limits)
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    few = math.log10(limits[1] / limits[0]) < 2
    axis.set_minor_formatter(lambda value, _: _minor(value) if few else "")
    axes.grid(axis=which, which="major", color=_PALE, linewidth=0.8)  # type: ignore[arg-type, unused-ignore]


def _minor(value: float) -> str:
    first = f"{value:e}"[0]
    return f"{value:g}" if first in "25" else ""


def _thousands(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"

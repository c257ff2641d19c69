"""Figure of advice: the error of every map on the left, error against cost on the right."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from hrf.advice.findings import Candidate, Findings, counts, headline, terms_of
from hrf.report import number

__all__ = ["figure"]

# Okabe and Ito's palette, told apart with every kind of colour vision.
_COLOURS = {"isotropic": "#0072B2", "hybrid": "#CC79A7", "fitted": "#E69F00", "clustered": "#009E73"}
_GREY, _PALE, _INK = "#666666", "#e6e6e6", "#222222"
_DASHES = (0, (4, 3))
_SMALLEST = 1e-12  # smaller errors are rounding, and are drawn at the edge
# Places for a name: right (1) or left (−1) of its dot, and how many points above it; the first that is free is used.
_SPOTS = ((-1, 0), (1, -10), (1, 10), (-1, -10), (1, 0), (-1, 10))


def figure(advice: Findings) -> Figure:
    """Draw the figure; errors far beyond uniform attention are cut off and written out."""
    shown = [*advice.ranking, *advice.beyond]
    height = 2.4 + 0.235 * len(shown)
    drawing = Figure(figsize=(13.5, height), layout="constrained", facecolor="white")
    ranks, plane = drawing.subplots(1, 2, width_ratios=[1, 1.05])
    for axes in (ranks, plane):
        axes.spines[:].set_visible(False)
        axes.tick_params(which="both", length=0, labelcolor=_GREY)
        axes.set_axisbelow(True)
    limits = _limits(advice, shown)
    _draw_ranks(ranks, advice, limits)
    labelled = _draw_plane(plane, advice, shown, limits)
    best, s = advice.ranking[0], advice.settings
    drawing.suptitle(headline(advice), x=0.008, ha="left", weight="bold", size=15)
    drawing.legend(
        handles=_legend(advice), loc="outside lower left", ncols=8, frameon=False, handletextpad=0.5
    )
    lengths = (
        f"norm {s.query_norm:.1f}" if s.for_machines else f"norms {s.query_norm:.1f} and {s.key_norm:.1f}"
    )
    about = f"{counts(s)}, {lengths}"
    ranks.set_title(about, loc="left", size=9.5, color=_GREY)
    plane.set_title("error against cost: down and left is better", loc="left", size=9.5, color=_GREY)
    drawing.draw_without_rendering()  # only then are places on the page known
    _write_labels(plane, labelled, best)
    return drawing


def _legend(advice: Findings) -> list[Line2D]:
    dot: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": 7}
    families = {c.family for c in advice.ranking}
    handles = [
        Line2D([], [], color=colour, label=name, **dot)
        for name, colour in _COLOURS.items()
        if name in families
    ]
    handles.append(Line2D([], [], color=_GREY, linewidth=2.2, alpha=0.45, label="95 % of draws"))
    handles.append(
        Line2D(
            [], [], color=_GREY, linestyle=_DASHES, linewidth=1.2, label=terms_of(advice.settings).reference
        )
    )
    if advice.beyond:
        handles.append(
            Line2D([], [], color=_GREY, markerfacecolor="white", label="more than features", **dot)
        )
    return handles


def _limits(advice: Findings, shown: list[Candidate]) -> tuple[float, float]:
    """Return the range from the smallest error to a few times the error of uniform attention, or of the best map."""
    uniform = [advice.uniform] if 0 < advice.uniform < math.inf else []
    errors = [c.error for c in shown if _SMALLEST < c.error < math.inf]
    best = advice.ranking[0].high
    high = 4 * max([*uniform, 0.02, *([best] if best < math.inf else [])])
    low = min([*errors, high / 10])
    return low / 1.6, min(high, 1.6 * max([*errors, *uniform, 2 * low]))


def _draw_ranks(axes: Axes, advice: Findings, limits: tuple[float, float]) -> None:
    low, high = limits
    gap = 1 if advice.beyond else 0
    places = [
        *range(len(advice.ranking)),
        *(len(advice.ranking) + gap + k for k in range(len(advice.beyond))),
    ]
    shown = [*advice.ranking, *advice.beyond]
    for place, c in zip(places, shown, strict=True):
        colour, outside = _COLOURS[c.family], c.error > high
        x = min(max(c.error, low), high)
        if not outside:
            axes.plot(
                [max(c.low, low), min(c.high, high)], [place, place], color=colour, linewidth=2.2, alpha=0.45
            )
        face = "white" if place >= len(advice.ranking) else colour
        size = 9 if place == 0 else 6.5
        marker = ">" if outside else "o"
        axes.plot(
            x, place, marker, color=colour, markerfacecolor=face, markersize=size, clip_on=False, zorder=3
        )
        axes.annotate(
            number(c.error),
            (1, place),
            (8, 0),
            ("axes fraction", "data"),
            "offset points",
            va="center",
            size=8.5,
            color=_INK if place == 0 else _GREY,
            weight="bold" if place == 0 else "normal",
        )
    axes.axvline(min(advice.uniform, high), color=_GREY, linestyle=_DASHES, linewidth=1.2)
    axes.set_yticks(places, [c.name for c in shown], size=9)
    axes.get_yticklabels()[0].set_fontweight("bold")
    for label in axes.get_yticklabels():
        label.set_color(_INK)
    axes.set_ylim(places[-1] + 0.8, -0.8)
    _logarithmic(axes, "x", limits)
    axes.grid(axis="y", color=_PALE, linewidth=0.5)
    # The axis of the objective "kernel" is a median over pairs.
    title = terms_of(advice.settings).error
    axes.set_xlabel("median relative error of the kernel" if advice.settings.objective == "kernel" else title)


def _draw_plane(
    axes: Axes, advice: Findings, shown: list[Candidate], limits: tuple[float, float]
) -> list[tuple[Candidate, float, float]]:
    """Draw the dots; return all maps with their places, the ones to label first."""
    by_flops = advice.settings.unit != "flops"
    low, high = limits
    places = {
        id(c): (float(c.flops if by_flops else c.width), max(c.error, low)) for c in shown if c.error <= high
    }
    inside = [c for c in shown if id(c) in places]
    for c in inside:
        x, y = places[id(c)]
        face = "white" if c in advice.beyond else _COLOURS[c.family]
        size = 11 if c is shown[0] else 7
        axes.plot(x, y, "o", color=_COLOURS[c.family], markerfacecolor=face, markersize=size, zorder=3)
    axes.axhline(min(advice.uniform, high), color=_GREY, linestyle=_DASHES, linewidth=1.2)
    front = _front([c for c in inside if c in advice.ranking], {key: x for key, (x, _) in places.items()})
    if front:
        steps = zip(*(places[id(c)] for c in front), strict=True)
        axes.step(*steps, where="post", color=_INK, linewidth=0.8, alpha=0.5)
    costs = [x for x, _ in places.values()] or [float(c.flops if by_flops else c.width) for c in shown]
    axes.set_xscale("log")
    axes.set_xlim(min(costs) / 1.6, max(costs) * 1.6)
    _logarithmic(axes, "y", limits)
    axes.grid(axis="x", which="major", color=_PALE, linewidth=0.8)
    axes.xaxis.set_major_formatter(lambda value, _: _thousands(value))
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    axes.set_xlabel("FLOPs per vector" if by_flops else "active features per vector")
    wanted = [c for c in _labelled(advice, front) if c in inside]
    return [(c, *places[id(c)]) for c in [*wanted, *(c for c in inside if c not in wanted)]]


def _front(candidates: list[Candidate], cost: dict[int, float]) -> list[Candidate]:
    """Return the candidates that no cheaper candidate beats, cheapest first."""
    front: list[Candidate] = []
    for c in sorted(candidates, key=lambda c: (cost[id(c)], c.error)):
        if not front or c.error < front[-1].error:
            front.append(c)
    return front


def _write_labels(axes: Axes, placed: list[tuple[Candidate, float, float]], best: Candidate) -> None:
    """Write names beside their dots where they cover neither dots nor names; a name without room is left out."""
    unit = axes.get_figure().dpi / 72  # type: ignore[union-attr]
    frame = axes.get_window_extent()
    dots = [axes.transData.transform((x, y)) for _, x, y in placed]
    taken = [(x - 6 * unit, y - 6 * unit, x + 6 * unit, y + 6 * unit) for x, y in dots]
    for (c, x, y), (px, py) in zip(placed, dots, strict=True):
        width, height = (5.8 if c is best else 5.2) * len(c.name) * unit, 11 * unit
        for side, up in _SPOTS:
            left = px + 9 * unit if side > 0 else px - 9 * unit - width
            box = (left, py + up * unit - height / 2, left + width, py + up * unit + height / 2)
            inside = frame.x0 <= box[0] and box[2] <= frame.x1 and frame.y0 <= box[1] and box[3] <= frame.y1
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                axes.annotate(
                    c.name,
                    (x, y),
                    (9 * side, up),
                    textcoords="offset points",
                    ha="left" if side > 0 else "right",
                    va="center",
                    size=9,
                    color=_INK if c is best else _GREY,
                    weight="bold" if c is best else "normal",
                    path_effects=[withStroke(linewidth=3, foreground="white")],
                )
                break


def _overlap(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    return first[0] < second[2] and second[0] < first[2] and first[1] < second[3] and second[1] < first[3]


def _labelled(advice: Findings, front: list[Candidate]) -> list[Candidate]:
    """Order maps by how much they need a label: the best, unranked maps, the front, the best per family, the rest."""
    firsts = [
        next((c for c in advice.ranking if c.family == family), advice.ranking[0]) for family in _COLOURS
    ]
    ordered = [advice.ranking[0], *advice.beyond, *reversed(front), *firsts, *advice.ranking]
    return list({id(c): c for c in ordered}.values())


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

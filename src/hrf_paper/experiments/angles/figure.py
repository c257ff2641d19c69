"""Tables, figures, JSON and plain words from the results of experiments; files appear whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hrf.report import png, write
from hrf_paper.experiments.angles.measure import Curve, Result
from hrf_paper.experiments.shared.plotting import COLOURS, GREY
from hrf_paper.experiments.shared.number_format import ROUNDING, TIE, angle_text, capital, number_text, sentences

__all__ = ["figure", "publish", "read", "table", "to_json"]

_TABLE_ANGLES = {0.0: "0", 0.25: "π/4", 0.5: "π/2", 0.75: "3π/4", 1.0: "π"}


def publish(result: Result, out: Path) -> None:
    """Save the figure and the numbers in the directory ``out``; print the table and what it says."""
    name = result.experiment
    files = {out / f"{name}.png": png(figure(result)), out / f"{name}.json": to_json(result).encode()}
    for path, content in files.items():
        write(path, content)
    console = Console(highlight=False)
    console.print(table(result), "")
    for sentence in sentences(result):
        console.print(sentence)
    console.print()
    for path in files:
        console.print(f"  {path}", soft_wrap=True, markup=False)


def to_json(result: Result) -> str:
    """The whole result, settings, seed and versions included. No times: a seed gives one text."""
    return json.dumps(result.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read(path: Path) -> Result:
    """The result in a file that `publish` wrote."""
    return Result.from_dict(json.loads(path.read_text(encoding="utf-8")))


# The table.


def table(result: Result) -> Table:
    """A row an estimator: size, cost, exact errors at five angles, the maximum and where it is."""
    s = result.settings
    places = [result.angles.index(angle) for angle in _TABLE_ANGLES]
    errors = [[*(curve.exact[k] for k in places), curve.largest] for curve in result.curves]
    smallest = [max(min(column) * (1 + TIE), ROUNDING) for column in zip(*errors, strict=True)]
    rows = [
        [
            Text(curve.name, style=_terminal_style(curve)),
            Text(f"{curve.width}"),
            Text(_short(curve.flops)),
            *(_marked(value, value <= best) for value, best in zip(row, smallest, strict=True)),
            Text(angle_text(result.peak(curve))),
        ]
        for curve, row in zip(result.curves, errors, strict=True)
    ]
    grid = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=0,
        title=f"Relative error ε = √MSE/K at radius {s.radius:g}, d = {s.dim}, feature width ≈ {s.features}",
        caption=f"exact, for independent projections (iid); * smallest of its column; seed {s.seed}",
    )
    names = (
        "estimator",
        "width",
        "FLOPs",
        *(f"{angle} " for angle in _TABLE_ANGLES.values()),
        "max ",
        "at θ",
    )
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        first = name == names[0]
        # On a narrow terminal names are broken, numbers never.
        least = None if first else max(len(name), *(len(cell) for cell in column))
        grid.add_column(name, justify="left" if first else "right", no_wrap=not first, min_width=least)
    for cells in rows:
        grid.add_row(*cells)
    return grid


def _short(count: int) -> str:
    return f"{count / 1e3:.1f}k" if count < 1e6 else f"{count / 1e6:.1f}M"


def _marked(value: float, best: bool) -> Text:
    return Text(
        f"{number_text(value)}*" if best else f"{number_text(value)} ", style="bold green" if best else ""
    )


def _terminal_style(curve: Curve) -> str:
    # Black does not show on a dark terminal.
    return "bold" if curve.name == "FAVOR#" else f"bold {COLOURS[curve.name]}"


# The figure.


def figure(result: Result) -> Figure:
    """Error over angle: lines are exact, dots come from draws; the strip below says who is best where."""
    s = result.settings
    drawing = Figure(figsize=(11, 6.6), layout="constrained", facecolor="white")
    axes, strip = drawing.subplots(2, 1, sharex=True, height_ratios=[22, 1])
    for curve in sorted(result.curves, key=lambda curve: -curve.largest):
        _draw_curve(axes, result, curve)
    axes.set_yscale("log")
    axes.set_ylim(*_limits(result))
    axes.set_ylabel("relative error  ε = √MSE / K")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(which="major", color="#e2e2e2", linewidth=0.7)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1.0, 1.02),
        frameon=False,
        title="by largest error",
        title_fontproperties={"weight": "bold"},
        alignment="left",
        labelspacing=0.8,
    )
    axes.text(1.02, 0.0, _note(result), transform=axes.transAxes, size=8.5, color=GREY, linespacing=1.4)
    axes.set_title(
        f"Softmax kernel, x and y of length {s.radius:g} in {s.dim} dimensions, feature width ≈ {s.features}",
        loc="left",
        size=10.5,
        color=GREY,
    )
    axes.annotate(
        _headline(result), (0, 1), (0, 26), "axes fraction", "offset points", weight="bold", size=15
    )
    _draw_strip(strip, result)
    for panel in (axes, strip):
        panel.spines[:].set_visible(False)
        panel.tick_params(which="both", length=0, labelcolor=GREY)
    return drawing


def _note(result: Result) -> str:
    lines = (
        "Lines: exact, iid projections.",
        f"Dots: {result.settings.draws:,} draws, ± one",
        "standard error. They lie below",
        "their line where rarer draws",
        "make up the error.",
        "An estimator is exact where",
        "its line leaves below.",
    )
    return "\n".join(lines)


def _draw_curve(axes: Axes, result: Result, curve: Curve) -> None:
    colour, fitted = COLOURS[curve.name], ", fitted" if curve.fitted else ""
    axes.plot(
        result.angles,
        [max(value, ROUNDING) for value in curve.exact],
        color=colour,
        linewidth=2.6 if "hybrid" in curve.name else 1.7,
        linestyle="--" if curve.fitted else "-",
        label=f"{curve.name}{fitted}\nm = {curve.n_projections}, max {number_text(curve.largest)}",
    )
    exact = result.exact_where_sampled(curve)
    columns = zip(result.sampled_angles, exact, curve.empirical, curve.standard_error, strict=True)
    seen = [(angle, value, bar) for angle, known, value, bar in columns if min(known, value) > ROUNDING]
    angles, values, bars = zip(*seen, strict=True)
    lower = [min(bar, 0.9 * value) for value, bar in zip(values, bars, strict=True)]  # a log scale has no 0
    axes.plot(angles, values, color=colour, linewidth=0.8, linestyle=":", alpha=0.8)
    axes.errorbar(
        angles,
        values,
        yerr=(lower, bars),
        fmt="o",
        color=colour,
        markersize=4.5,
        markeredgecolor="white",
        markeredgewidth=0.6,
        elinewidth=0.9,
        zorder=3,
    )


def _limits(result: Result) -> tuple[float, float]:
    """All of the dots, but not the way down of lines that end at 0."""
    inner = [value for curve in result.curves for value in curve.empirical[1:-1] if value > ROUNDING]
    return min(inner) / 2, 1.5 * max(max(inner), max(curve.largest for curve in result.curves))


def _draw_strip(strip: Axes, result: Result) -> None:
    for curve, start, end in result.winners():
        strip.axvspan(start, end, color=COLOURS[curve.name], linewidth=0)
        if end - start > 0.12:
            strip.text(
                (start + end) / 2,
                0.45,
                curve.name,
                color="white",
                size=9,
                weight="bold",
                ha="center",
                va="center",
            )
    strip.set_yticks([0.5], ["smallest ε"])
    strip.set_ylim(0, 1)
    strip.set_xlim(-0.01, 1.01)
    strip.set_xticks(
        [k / 8 for k in range(9)], ["0", "π/8", "π/4", "3π/8", "π/2", "5π/8", "3π/4", "7π/8", "π"]
    )
    strip.set_xlabel("angle θ between x and y")


def _headline(result: Result) -> str:
    names = {curve.name for curve, _, _ in result.winners()}
    if len(names) == 1:
        return f"{capital(names.pop())} is the most accurate at every angle"
    return "Which estimator is the most accurate depends on the angle"

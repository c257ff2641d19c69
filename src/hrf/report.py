"""Tables, figures, JSON and plain words from the results of experiments; files appear whole or not at all."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from hrf.experiments.angles import Curve, Progress, Result

__all__ = ["figure", "folder", "progress", "publish", "read", "sentences", "table", "to_json", "write"]

# Okabe and Ito's palette, told apart with every kind of colour vision; yellow is left out, too pale on white.
_COLOURS = {
    "trigonometric": "#0072B2",
    "FAVOR+": "#D55E00",
    "FAVOR++": "#E69F00",
    "FAVOR#": "#000000",
    "angular hybrid": "#009E73",
    "Gaussian hybrid": "#CC79A7",
    "nested hybrid": "#56B4E9",
}
_TABLE_ANGLES = {0.0: "0", 0.25: "π/4", 0.5: "π/2", 0.75: "3π/4", 1.0: "π"}
_GREY = "#555555"
# An error below this is rounding: the estimator is exact there.
_ROUNDING = 1e-12


def publish(result: Result, out: Path) -> None:
    """Save the figure and the numbers in the directory ``out``; print the table and what it says."""
    name = result.experiment
    files = {out / f"{name}.png": _png(figure(result)), out / f"{name}.json": to_json(result).encode()}
    for path, content in files.items():
        write(path, content)
    console = Console(highlight=False)
    console.print(table(result))
    for sentence in sentences(result):
        console.print(sentence)
    console.print()
    for path in files:
        console.print(f"  {path}", soft_wrap=True, markup=False)


@contextmanager
def progress() -> Iterator[Progress]:
    """A bar on stderr for as long as the block runs; yields what moves it."""
    columns = (
        TextColumn("{task.description:<15}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("draws"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda name, done, total: bar.update(task, description=name, completed=done, total=total)


# Files.


def folder(path: Path) -> Path:
    """The directory, made if it is missing, after a look whether files can be written there."""
    with _named(path):
        path.mkdir(parents=True, exist_ok=True)
    write(path / ".writable", b"")
    (path / ".writable").unlink()
    return path


def write(path: Path, content: bytes) -> None:
    """Write a file beside its place and move it there, so that nobody ever sees half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with _named(path):
        try:
            draft.write_bytes(content)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of the file system as a sentence that names the path."""
    try:
        yield
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror or error}") from error


def to_json(result: Result) -> str:
    """The whole result, settings, seed and versions included. No times: a seed gives one text."""
    return json.dumps(result.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read(path: Path) -> Result:
    """The result in a file that `publish` wrote."""
    return Result.from_dict(json.loads(path.read_text(encoding="utf-8")))


def _png(drawing: Figure) -> bytes:
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=160)
    return buffer.getvalue()


# What the numbers say.


def sentences(result: Result) -> list[str]:
    """Which estimator is best where, and how far the draws can be trusted."""
    return [_about_maxima(result), _about_ranges(result), _about_draws(result)]


def _about_maxima(result: Result) -> str:
    ordered = sorted(result.curves, key=lambda curve: curve.largest)
    best, (free, second) = ordered[0], [curve for curve in ordered if not curve.fitted][:2]
    text = f"{_capital(_called(best))} has the smallest maximal error, {_peak(result, best)}"
    if best.fitted:
        text += (
            f", but it was fitted to these very pairs; of the estimators that see no data, {_called(free)} "
            f"has the smallest, {_peak(result, free)}"
        )
    return (
        f"{text}, with {free.flops:,} FLOPs a vector; {_called(second)} follows with "
        f"{_number(second.largest)} and {second.flops:,}."
    )


def _about_ranges(result: Result) -> str:
    ranges = result.winners()
    if len(ranges) == 1:
        return f"{_capital(_called(ranges[0][0]))} has the smallest error at every angle between 0 and π."
    parts = [f"{_called(curve)} from {_angle(start)} to {_angle(end)}" for curve, start, end in ranges]
    return f"The smallest error by angle: {', '.join(parts)}."


def _about_draws(result: Result) -> str:
    draws = f"{result.settings.draws:,}"
    step = (len(result.angles) - 1) // (len(result.sampled_angles) - 1)
    ratios = [
        (empirical / exact, curve, angle)
        for curve in result.curves
        for angle, exact, empirical in zip(
            result.sampled_angles, curve.exact[::step], curve.empirical, strict=True
        )
        if exact > _ROUNDING
    ]
    ratio, curve, angle = min(ratios, key=lambda entry: entry[0])
    if ratio > 0.8:
        return f"The errors seen in {draws} draws agree with the exact ones."
    return (
        f"In {draws} draws the error of {_called(curve)} at θ={_angle(angle)} looks {ratio:.0%} as large as it "
        "is: the rest comes from estimates too rare to be seen."
    )


def _called(curve: Curve) -> str:
    """The name as it stands in a sentence."""
    return f"the {curve.name}" if "hybrid" in curve.name else curve.name


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _angle(share: float) -> str:
    """An angle in units of π, in words of at most five characters."""
    return {0.0: "0", 1.0: "π"}.get(share, f"{share:.2f}π")


def _peak(result: Result, curve: Curve) -> str:
    return f"{_number(curve.largest)} at θ={_angle(result.peak(curve))}"


def _number(value: float) -> str:
    """Two to three digits in at most six characters."""
    if value <= _ROUNDING:
        return "0"
    if 0.00995 <= value < 9999.5:
        decimals = 3 if value < 0.9995 else 2 if value < 9.995 else 1 if value < 99.95 else 0
        return f"{value:.{decimals}f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


# The table.


def table(result: Result) -> Table:
    """A row an estimator: size, cost, exact errors at five angles, the maximum and where it is."""
    s = result.settings
    places = [result.angles.index(angle) for angle in _TABLE_ANGLES]
    errors = [[*(curve.exact[k] for k in places), curve.largest] for curve in result.curves]
    smallest = [max(min(column), _ROUNDING) for column in zip(*errors, strict=True)]
    rows = [
        [
            Text(curve.name, style=_terminal_style(curve)),
            Text(f"{curve.width}"),
            Text(f"{curve.flops / 1000:.1f}k"),
            *(_marked(value, value <= best) for value, best in zip(row, smallest, strict=True)),
            Text(_angle(result.peak(curve))),
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
        # On a narrow terminal names are cut, never numbers.
        least = None if first else max(len(name), *(len(cell) for cell in column))
        grid.add_column(name, justify="left" if first else "right", no_wrap=True, min_width=least)
    for cells in rows:
        grid.add_row(*cells)
    return grid


def _marked(value: float, best: bool) -> Text:
    return Text(f"{_number(value)}*" if best else f"{_number(value)} ", style="bold green" if best else "")


def _terminal_style(curve: Curve) -> str:
    # Black does not show on a dark terminal.
    return "bold" if curve.name == "FAVOR#" else f"bold {_COLOURS[curve.name]}"


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
    axes.text(1.02, 0.0, _note(result), transform=axes.transAxes, size=8.5, color=_GREY, linespacing=1.4)
    axes.set_title(
        f"Softmax kernel, x and y of length {s.radius:g} in {s.dim} dimensions, feature width ≈ {s.features}",
        loc="left",
        size=10.5,
        color=_GREY,
    )
    axes.annotate(
        _headline(result), (0, 1), (0, 26), "axes fraction", "offset points", weight="bold", size=15
    )
    _draw_strip(strip, result)
    for panel in (axes, strip):
        panel.spines[:].set_visible(False)
        panel.tick_params(which="both", length=0, labelcolor=_GREY)
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
    colour, fitted = _COLOURS[curve.name], ", fitted" if curve.fitted else ""
    axes.plot(
        result.angles,
        [max(value, _ROUNDING) for value in curve.exact],
        color=colour,
        linewidth=2.6 if "hybrid" in curve.name else 1.7,
        linestyle="--" if curve.fitted else "-",
        label=f"{curve.name}{fitted}\nm = {curve.n_projections}, max {_number(curve.largest)}",
    )
    seen = [
        (angle, value, bar)
        for angle, value, bar in zip(
            result.sampled_angles, curve.empirical, curve.standard_error, strict=True
        )
        if value > _ROUNDING
    ]
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
    inner = [value for curve in result.curves for value in curve.empirical[1:-1] if value > _ROUNDING]
    return min(inner) / 2, 1.5 * max(max(inner), max(curve.largest for curve in result.curves))


def _draw_strip(strip: Axes, result: Result) -> None:
    for curve, start, end in result.winners():
        strip.axvspan(start, end, color=_COLOURS[curve.name], linewidth=0)
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
        return f"{_capital(names.pop())} is the most accurate at every angle"
    return "Which estimator is the most accurate depends on the angle"

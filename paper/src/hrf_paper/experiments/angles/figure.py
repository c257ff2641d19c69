"""Figure of relative errors over the angle."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hrf.report import number
from hrf_paper.experiments.angles.curves import ROUNDING, Curve, Curves, curves
from hrf_paper.experiments.angles.measure import Settings
from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.shared.plotting import COLOURS, GREY, bare, canvas

__all__ = ["draw", "figure"]


def figure(settings: Settings, results: Results) -> Figure:
    """Draw errors over angles: lines are exact, dots come from draws; the strip below names the best estimators."""
    return draw(curves(settings, results))


def draw(found: Curves) -> Figure:
    """Draw the curves."""
    s = found.settings
    drawing = canvas(11, 6.6)
    axes, strip = drawing.subplots(2, 1, sharex=True, height_ratios=[22, 1])
    for curve in sorted(found.curves, key=lambda curve: -curve.largest):
        _draw_curve(axes, found, curve)
    _style(axes, found)
    axes.set_title(
        f"Softmax kernel, x and y of length {s.radius:g} in {s.dim} dimensions, feature width ≈ {s.features}",
        loc="left",
        size=10.5,
        color=GREY,
    )
    axes.annotate(_headline(found), (0, 1), (0, 26), "axes fraction", "offset points", weight="bold", size=15)
    _draw_strip(strip, found)
    bare((axes, strip), grid=False)
    return drawing


def _style(axes: Axes, found: Curves) -> None:
    axes.set_yscale("log")
    axes.set_ylim(*_limits(found))
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
    axes.text(1.02, 0.0, _note(found), transform=axes.transAxes, size=8.5, color=GREY, linespacing=1.4)


def _note(found: Curves) -> str:
    lines = (
        "Lines: exact, iid projections.",
        f"Dots: {found.settings.draws:,} draws, ± one",
        "standard error. They lie below",
        "their line where rarer draws",
        "make up the error.",
        "An estimator is exact where",
        "its line leaves below.",
    )
    return "\n".join(lines)


def _draw_curve(axes: Axes, found: Curves, curve: Curve) -> None:
    colour, fitted = COLOURS[curve.name], ", fitted" if curve.fitted else ""
    axes.plot(
        found.angles,
        [max(value, ROUNDING) for value in curve.exact],
        color=colour,
        linewidth=2.6 if "hybrid" in curve.name else 1.7,
        linestyle="--" if curve.fitted else "-",
        label=f"{curve.name}{fitted}\nm = {curve.n_projections}, max {number(curve.largest)}",
    )
    exact = found.exact_where_sampled(curve)
    columns = zip(found.sampled_angles, exact, curve.empirical, curve.standard_error, strict=True)
    seen = [(angle, value, bar) for angle, known, value, bar in columns if min(known, value) > ROUNDING]
    angles, values, bars = zip(*seen, strict=True)
    # A log scale has no 0.
    lower = [min(bar, 0.9 * value) for value, bar in zip(values, bars, strict=True)]
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


def _limits(found: Curves) -> tuple[float, float]:
    """Return limits that show all dots, but not the descent of lines that end at 0."""
    inner = [value for curve in found.curves for value in curve.empirical[1:-1] if value > ROUNDING]
    return min(inner) / 2, 1.5 * max(max(inner), max(curve.largest for curve in found.curves))


def _draw_strip(strip: Axes, found: Curves) -> None:
    for curve, start, end in found.winners():
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


def _headline(found: Curves) -> str:
    names = {curve.name for curve, _, _ in found.winners()}
    if len(names) == 1:
        name = names.pop()
        return f"{name[0].upper()}{name[1:]} is the most accurate at every angle"
    return "Which estimator is the most accurate depends on the angle"

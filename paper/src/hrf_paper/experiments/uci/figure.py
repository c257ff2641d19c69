"""MSE over the length of the vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.shared.estimators import MATCHINGS
from hrf_paper.experiments.shared.plotting import GREY, bare, canvas, headline, log_axis
from hrf_paper.experiments.uci.claims import wins
from hrf_paper.experiments.uci.measure import HYBRIDS, KINDS, SCALINGS, Settings, all_cases, case_key
from hrf_paper.experiments.uci.printed import PRINTED, UNIT

__all__ = ["figure"]

_COLOURS = {
    "HRF-ort": "#009E73",
    "HRF-iid": "#56B4E9",
    "ORF-reg": "#0072B2",
    "ORF-Had": "#CC79A7",
    "Halton-R": "#D55E00",
}
_SCALING = next(iter(SCALINGS))
_MARKS = {"--": "o", ":": "s"}  # for estimators without a closed form


def figure(settings: Settings, results: Results) -> Figure:
    """Draw the MSE over r for vectors of one length; baselines are trigonometric (dashed) and positive (dotted)."""
    drawing = canvas(13, 6)
    count = {kind: len(wins(settings, results, kind, MATCHINGS[0])) for kind in KINDS}
    headline(
        drawing,
        f"Hybrids win {count['positive']} of {len(all_cases(settings))} settings against positive baselines, "
        f"{count['trigonometric']} against trigonometric baselines",
        f"MSE on {settings.pairs} pairs, m·n = {settings.features} or {settings.features} rows; data {_SCALING} r. "
        f"Lines: exact; solid: hybrids, dashed: trigonometric, dotted: positive baselines.\nMarks: means of "
        f"{settings.draws} draws where no closed form is known; discs: trigonometric, squares: positive. "
        "Diamonds: Table 1",
    )
    panels = drawing.subplots(1, 2, sharey=True)
    for axes, name in zip(panels, PRINTED, strict=True):
        for key in _COLOURS:
            styles = {"-": MATCHINGS[0]} if key in HYBRIDS else {"--": "trigonometric", ":": "positive"}
            for style, label in styles.items():
                cases = results[f"{key}, {label}"]
                _draw_line(
                    axes, settings, key, style, [cases[case_key(name, _SCALING, r)] for r in settings.radii]
                )
        ticks = dict(zip(settings.radii, [f"{r:g}" for r in settings.radii], strict=True))
        ticks[_draw_printed(axes, settings, PRINTED[name])] = "Table 1"
        axes.set_title(name, size=12)
        axes.set_xlabel("length r of the vectors")
        axes.set_xticks([*ticks], [*ticks.values()])
    log_axis(panels[0])
    panels[0].set_ylabel("MSE, in 10⁻³")
    bare(panels)
    handles, labels = panels[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, labelcolor=GREY)
    return drawing


def _draw_line(axes: Axes, settings: Settings, key: str, style: str, found: list[dict[str, Any]]) -> None:
    known = "exact" in found[0]
    axes.plot(
        settings.radii,
        [part["exact" if known else "mean"] / UNIT for part in found],
        style if known else _MARKS[style],
        color=_COLOURS[key],
        linewidth=2.6 if key in HYBRIDS else 1.7,
        markersize=6,
        mec="white",
        label=key if style in "-:" else None,
    )


def _draw_printed(axes: Axes, settings: Settings, printed: Mapping[str, Sequence[float]]) -> float:
    """Mark the values of Table 1 side by side, right of the longest vectors; return the place of their middle."""
    first, last = settings.radii[0], settings.radii[-1]
    places = [last + (last - first) * (0.1 + 0.04 * index) for index in range(len(_COLOURS))]
    for place, (key, colour) in zip(places, _COLOURS.items(), strict=True):
        axes.plot([place], [printed[key][0]], "D", color=colour, markersize=6, mec="white")
    return places[len(places) // 2]

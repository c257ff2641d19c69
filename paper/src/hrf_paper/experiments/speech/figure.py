"""Word error rate against the FLOPs of attention, stage by stage."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.shared.plotting import GREY, bare, canvas, headline
from hrf_paper.experiments.speech.rates import Rate, methods_run, rate
from hrf_paper.experiments.speech.settings import LEVELS, Settings, judged, key, turns_set
from hrf_paper.speech.methods import METHODS

__all__ = ["figure"]

_COLOURS = {
    "HRF-C": "#009E73",
    "HRF-A": "#56B4E9",
    "FAVOR+": "#D55E00",
    "Trig": "#0072B2",
    "FAVOR++": "#E69F00",
    "FAVOR#": "#000000",
    "shifted": "#CC79A7",
    "separable": "#CC79A7",
    "summarised": "#AA3377",
}
_LINE = 0.04  # of the height of a panel, as far as labels of levels are apart at least
_SIZE = 8.5  # of labels, in points
_STEPS = 12  # of four points, as far as a label is moved up or down
_GAP = 7.0  # between a dot and its label, in points
_ASIDE = 1.03  # factor between the places of methods with the same FLOPs
_HALO = withStroke(linewidth=2.5, foreground="white")  # keeps lines out of labels
_TOP = 1.7  # rates above so many times that without attention are drawn at the top


def figure(settings: Settings, results: Results) -> Figure:
    """Draw one panel per stage that was run and set of test utterances that it is judged by."""
    drawn = [pair for pair in judged(settings) if methods_run(results, pair[0], METHODS)]
    tested = turns_set(settings)
    drawing = canvas(12.0, 1.6 + 4.6 * len(drawn))
    exact = _swapped(results, "exact", tested)
    maps = [name for name in METHODS if name not in LEVELS]
    best = min(maps, key=lambda name: _swapped(results, name, tested).mean)
    headline(
        drawing,
        f"Swapped in untrained, {best} has the lowest rate: {_swapped(results, best, tested).mean:.1f} % WER, "
        f"exact {exact.mean:.1f} %",
        f"AN4; test utterances, single or joined to about {settings.lengths[0]} frames, in turns of changing speakers; "
        f"runs: {settings.swapped_runs} swapped, {settings.tuned_runs} fine-tuned, {settings.scratch_runs} from "
        "scratch\n"
        "FLOPs of attention per frame and head, equal ones side by side; bars: smallest and largest of all runs and "
        "draws; rates beyond the top are drawn there",
    )
    top = _TOP * _swapped(results, "none", tested).mean
    panels = drawing.subplots(len(drawn), 1, squeeze=False, sharex=True)[:, 0]
    bare(panels)
    for panel, (stage, tested) in zip(panels, drawn, strict=True):
        dots = _draw(panel, results, stage, tested, top)
        panel.set_title(f"{stage} ({tested})", size=11)
        panel.set_ylabel("word error rate, %")
        panel.margins(x=0.12)
        drawing.draw_without_rendering()
        _label(panel, dots)
    panels[-1].set_xlabel("FLOPs")
    drawing.align_ylabels(panels)
    return drawing


class _Dot(NamedTuple):
    """A dot with its bar and its label; ``x`` are its FLOPs, moved aside where another dot has the same."""

    x: float
    low: float
    height: float
    high: float
    text: str
    colour: str


def _draw(axes: Axes, results: Results, stage: str, tested: str, top: float) -> list[_Dot]:
    """Draw all methods of a stage: means as dots, ranges of the values as lines."""
    axes.set_xscale("log")
    found = {name: r for name in METHODS if (r := rate(results, stage, name, tested)) is not None}
    levels = {name: found.pop(name).mean for name in LEVELS if name in found}
    for level in levels.values():
        axes.axhline(level, color=GREY, linewidth=1, linestyle=":")
    dots, seen = [], Counter[float]()
    for name, r in found.items():
        flops = results[key("swapped", name, 0)]["flops"]
        x = flops * _ASIDE ** seen[flops]
        seen[flops] += 1
        colour = _COLOURS[max((kind for kind in _COLOURS if name.startswith(kind)), key=len)]
        low, height, high = (min(top, value) for value in (min(r.values), r.mean, max(r.values)))
        axes.plot([x, x], [low, high], color=colour, linewidth=1.5)
        axes.plot([x], [height], "o", color=colour, markersize=7)
        text = name if r.mean <= top else f"{name}: {r.mean:.0f} %"
        dots.append(_Dot(x, low, height, high, text, colour))
    bottom, ceiling = axes.get_ylim()
    for name, height in _apart(levels, _LINE * (ceiling - bottom)).items():
        text = f"{name} {levels[name]:.1f}"
        place = axes.get_yaxis_transform()
        axes.text(1.01, height, text, transform=place, color=GREY, size=9, va="center")
    return dots


def _label(axes: Axes, dots: list[_Dot]) -> None:
    """Write each label beside its dot, at the nearest height where it covers no dot, no other label and no bar.

    Where there is no such height, it may cover bars.
    """
    point = axes.figure.dpi / 72
    lows, middles, highs = (
        axes.transData.transform([(dot.x, height) for dot, height in zip(dots, heights, strict=True)]) / point
        for heights in zip(*((dot.low, dot.height, dot.high) for dot in dots), strict=True)
    )
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in middles]
    bars = [
        Bbox.from_extents(x - 1, low, x + 1, high) for (x, low), (_, high) in zip(lows, highs, strict=True)
    ]
    for dot, (x, y) in sorted(zip(dots, middles, strict=True), key=lambda pair: -pair[1][1]):
        width = 0.68 * _SIZE * len(dot.text)
        sides = product(sorted(range(-_STEPS, _STEPS + 1), key=abs), (True, False))
        boxes = {
            (rise, right): Bbox.from_bounds(
                x + _GAP if right else x - _GAP - width, y + 4 * rise - _SIZE / 2, width, _SIZE
            )
            for rise, right in sides
        }
        free = [side for side, box in boxes.items() if not any(box.overlaps(other) for other in taken)]
        clear = [side for side in free if not any(boxes[side].overlaps(bar) for bar in bars)]
        rise, right = (*clear, *free, (0, True))[0]
        box = boxes[rise, right]
        taken.append(box)
        axes.annotate(
            dot.text,
            (dot.x, dot.height),
            xytext=(_GAP if right else -_GAP, 4 * rise),
            textcoords="offset points",
            ha="left" if right else "right",
            va="center",
            color=dot.colour,
            size=_SIZE,
            path_effects=[_HALO],
            arrowprops={"arrowstyle": "-", "color": dot.colour, "linewidth": 0.6} if abs(rise) > 2 else None,
        )


def _apart(heights: dict[str, float], least: float) -> dict[str, float]:
    """Move heights up until each is at least so far above the one below."""
    found: dict[str, float] = {}
    for name, height in sorted(heights.items(), key=lambda item: item[1]):
        found[name] = max(height, *(other + least for other in found.values())) if found else height
    return found


def _swapped(results: Results, name: str, tested: str) -> Rate:
    found = rate(results, "swapped", name, tested)
    assert found is not None
    return found

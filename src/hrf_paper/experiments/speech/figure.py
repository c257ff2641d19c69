"""Word error rate against the FLOPs of attention, swapped and fine-tuned."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.shared.plotting import GREY, bare, canvas, headline
from hrf_paper.experiments.speech.measure import STAGES, Settings, judged_set, key
from hrf_paper.experiments.speech.rates import Rate, rate
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
_LEVELS = ("exact", "uniform", "none")
_NEAR = 1.55  # times the FLOPs of a dot, as far as its label reaches
_LINE = 0.006  # of the highest rate, about as high as a label
_TOP = 1.7  # rates above so many times that without attention are drawn at the top


def figure(settings: Settings, results: Results) -> Figure:
    """Draw one panel per stage that was run."""
    stages = [s for s in STAGES if any(rate(results, s, n, judged_set(settings, s)) for n in METHODS)]
    tested = judged_set(settings, "swapped")
    drawing = canvas(max(12.0, 8.2 * len(stages)), 7.4)
    exact = _swapped(results, "exact", tested)
    maps = [name for name in METHODS if name not in _LEVELS]
    best = min(maps, key=lambda name: _swapped(results, name, tested).mean)
    headline(
        drawing,
        f"Swapped in untrained, {best} has the lowest rate: {_swapped(results, best, tested).mean:.1f} % WER, "
        f"exact {exact.mean:.1f} %",
        f"AN4, test utterances of changing speakers, joined to about {settings.lengths[0]} frames; "
        f"runs × draws: {settings.swapped_runs} × {settings.draws}; bars: smallest and largest\n"
        "FLOPs of attention per frame and head; higher rates are drawn at the top, with their values",
    )
    top = _TOP * _swapped(results, "none", tested).mean
    panels = drawing.subplots(1, len(stages), squeeze=False, sharex=True, sharey=True)[0]
    for panel, stage in zip(panels, stages, strict=True):
        tested = judged_set(settings, stage)
        _draw(panel, results, stage, tested, top)
        panel.set_title(f"{stage} ({tested})", size=11)
    panels[0].set_ylabel("word error rate, %")
    bare(panels)
    return drawing


def _draw(axes: Axes, results: Results, stage: str, tested: str, top: float) -> None:
    """Draw all methods of a stage; a label stands on the right of its dot, or on the left of a dot close by."""
    axes.set_xscale("log")
    axes.set_xlabel("FLOPs")
    found = {name: r for name in METHODS if (r := rate(results, stage, name, tested)) is not None}
    for name in (name for name in _LEVELS if name in found):
        axes.axhline(found[name].mean, color=GREY, linewidth=1, linestyle=":")
        axes.text(
            1.01,
            found[name].mean,
            f"{name} {found[name].mean:.1f}",
            transform=axes.get_yaxis_transform(),
            color=GREY,
            size=9,
            va="center",
        )
    flops = {name: results[key("swapped", name, 0)]["flops"] for name in found if name not in _LEVELS}
    order = sorted(flops, key=lambda name: (flops[name], found[name].mean))
    for place, name in enumerate(order):
        crowded = any(
            flops[other] < _NEAR * flops[name] and abs(found[other].mean - found[name].mean) < _LINE * top
            for other in order[place + 1 :]
        )
        _draw_method(axes, name, flops[name], found[name], top, right=not crowded)


def _draw_method(axes: Axes, name: str, flops: float, found: Rate, top: float, *, right: bool) -> None:
    """Draw the mean as a dot, and the range of the values as a line."""
    kind = max((kind for kind in _COLOURS if name.startswith(kind)), key=len)
    low, height, high = (min(top, value) for value in (min(found.values), found.mean, max(found.values)))
    axes.plot([flops, flops], [low, high], color=_COLOURS[kind], linewidth=1.5)
    axes.plot([flops], [height], "o", color=_COLOURS[kind], markersize=7)
    label = name if found.mean <= top else f"{name}: {found.mean:.0f} %"
    axes.annotate(
        label,
        (flops, height),
        xytext=(7 if right else -7, 0),
        textcoords="offset points",
        ha="left" if right else "right",
        va="center",
        color=_COLOURS[kind],
        size=8.5,
    )


def _swapped(results: Results, name: str, tested: str) -> Rate:
    found = rate(results, "swapped", name, tested)
    assert found is not None
    return found

"""Word error rate against the FLOPs of attention, swapped and fine-tuned."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.shared.plotting import GREY, bare, canvas, headline
from hrf_paper.experiments.speech.measure import STAGES, Settings, key
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
_WORST = 105.0  # percent: rates above are drawn here


def figure(settings: Settings, results: Results) -> Figure:
    """Draw one panel per stage that was run."""
    length = settings.lengths[0]
    stages = [s for s in STAGES if any(rate(results, s, name, length) for name in METHODS)]
    drawing = canvas(6.8 * len(stages), 7)
    exact, best = (
        _swapped(results, "exact", length),
        min(
            (name for name in METHODS if name not in _LEVELS), key=lambda n: _swapped(results, n, length).mean
        ),
    )
    headline(
        drawing,
        f"Swapped in untrained, {best} comes closest: {_swapped(results, best, length).mean:.1f} % WER, "
        f"exact {exact.mean:.1f} %",
        f"AN4, utterances of the test set joined to about {length} frames; {settings.runs} "
        f"{'runs' if settings.runs > 1 else 'run'}; bars: smallest and largest draw\n"
        "FLOPs of attention per frame and head; rates above 100 % are drawn at the top",
    )
    panels = drawing.subplots(1, len(stages), squeeze=False, sharey=True)[0]
    for panel, stage in zip(panels, stages, strict=True):
        _draw(panel, results, stage, length)
        panel.set_title(stage, size=11)
    panels[0].set_ylabel("word error rate, %")
    bare(panels)
    return drawing


def _draw(axes: Axes, results: Results, stage: str, length: int) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axes.yaxis.set_minor_formatter(StrMethodFormatter("{x:.0f}"))
    axes.set_xlabel("FLOPs")
    for name in METHODS:
        found = rate(results, stage, name, length)
        if found is None:
            continue
        if name in _LEVELS:
            axes.axhline(found.mean, color=GREY, linewidth=1, linestyle=":")
            axes.annotate(
                f"{name} {found.mean:.1f}",
                (0.01, found.mean),
                xycoords=("axes fraction", "data"),
                color=GREY,
                size=9,
                va="bottom",
            )
            continue
        flops = results[key("swapped", name, 0)]["flops"]
        colour = next(
            _COLOURS[kind] for kind in sorted(_COLOURS, key=len, reverse=True) if name.startswith(kind)
        )
        low, high = (min(_WORST, end(found.values)) for end in (min, max))
        height = min(_WORST, found.mean)
        axes.plot([flops, flops], [low, high], color=colour, linewidth=1.5)
        axes.plot([flops], [height], "o", color=colour, markersize=7)
        axes.annotate(
            name, (flops, height), xytext=(6, 3), textcoords="offset points", color=colour, size=8.5
        )


def _swapped(results: Results, name: str, length: int) -> Rate:
    found = rate(results, "swapped", name, length)
    assert found is not None
    return found

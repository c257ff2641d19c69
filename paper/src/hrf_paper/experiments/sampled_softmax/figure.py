"""Perplexity over epochs, and all runs after the last epoch."""

from __future__ import annotations

import statistics

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.sampled_softmax.measure import (
    LONGER,
    MAPS,
    RADIUS,
    SAMPLERS,
    Settings,
    last_perplexities,
    mean_perplexity,
    perplexities,
)
from hrf_paper.experiments.shared.plotting import COLOURS, bare, canvas, headline, log_axis

__all__ = ["figure"]

_COLOURS = COLOURS | {"uniform": "#7F7F7F", "exact": "#000000", LONGER: "#E69F00"}


def figure(settings: Settings, results: Results) -> Figure:
    """Draw perplexity over epochs, and the runs after the last epoch."""
    drawing = canvas(13, 6.4)
    ranked = sorted(SAMPLERS, key=lambda name: mean_perplexity(settings, results, name))
    means = [mean_perplexity(settings, results, name) for name in MAPS]
    headline(
        drawing,
        f"{max(means) / min(means) - 1:.1%} between the paper's four maps; lowest perplexity: {ranked[0]}",
        f"LSTM with {settings.training.width} units on {settings.training.title}, {settings.k} words "
        f"drawn per target, {settings.seeds} runs per sampler; validation perplexity of the full softmax\n"
        f"Bands and bars: one deviation over runs. Maps with D = {settings.features} at vectors of length "
        f"{RADIUS:g}, except where r is given",
    )
    over, after = drawing.subplots(1, 2, width_ratios=[1.4, 1])
    _draw_epochs(over, settings, results)
    _draw_runs(after, settings, results, ranked)
    bare([over, after])
    for label in after.get_yticklabels():
        label.set_color(_COLOURS[label.get_text()])
    return drawing


def _draw_epochs(axes: Axes, settings: Settings, results: Results) -> None:
    epochs = range(1, settings.training.epochs + 1)
    for name in SAMPLERS:
        values = [perplexities(settings, results, name, epoch) for epoch in epochs]
        middle, spread = [statistics.fmean(v) for v in values], [statistics.stdev(v) for v in values]
        low, high = ([m + sign * s for m, s in zip(middle, spread, strict=True)] for sign in (-1, 1))
        axes.fill_between(epochs, low, high, color=_COLOURS[name], alpha=0.15, linewidth=0)
        axes.plot(epochs, middle, color=_COLOURS[name], linewidth=1.8, label=name)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("validation perplexity", size=11)
    log_axis(axes)


def _draw_runs(axes: Axes, settings: Settings, results: Results, ranked: list[str]) -> None:
    for place, name in enumerate(reversed(ranked)):
        runs, colour = last_perplexities(settings, results, name), _COLOURS[name]
        mean, spread = statistics.fmean(runs), statistics.stdev(runs)
        axes.errorbar(mean, place, xerr=spread, fmt="o", color=colour, markersize=8)
        axes.plot(runs, [place] * len(runs), "|", color=colour, markersize=10)
    axes.set_yticks(range(len(ranked)), [*reversed(ranked)])
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_title(f"after epoch {settings.training.epochs}, from the lowest", size=11)

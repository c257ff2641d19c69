"""Training and lengths of a language model, and distances of its estimated distributions."""

from __future__ import annotations

import statistics
from typing import Any

from matplotlib.figure import Figure

from hrf.report import number
from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.shared.estimators import BASES, HYBRIDS, MATCHINGS
from hrf_paper.experiments.shared.plotting import COLOURS, GREY, bare, canvas, headline, log_axis
from hrf_paper.experiments.softmax_metrics.claims import PAIRS, best_of, in_redraws, mean_of
from hrf_paper.experiments.softmax_metrics.distances import metric_means
from hrf_paper.experiments.softmax_metrics.measure import FITTED, UNIFORM, Settings, epoch_key
from hrf_paper.experiments.softmax_metrics.printed import METRICS, PRINTED, SIZES

__all__ = ["figure"]

_COLOURS = COLOURS | {"fitted": "#56B4E9", "clustered": "#8C564B", "separable": "#7F7F7F"}


def figure(settings: Settings, results: Results) -> Figure:
    """Draw the training and the lengths above, the three metrics over D below."""
    drawing = canvas(13, 9)
    D = max(settings.features)
    names = (*BASES, *HYBRIDS, *FITTED)
    best = {metric: best_of(results, names, D, metric)[1] for metric in PAIRS}
    ranked = sorted((*BASES, *HYBRIDS), key=lambda name: mean_of(results, name, D, "wasserstein"))
    nearest = (
        f"Nearest to the softmax at D = {D}: {best['wasserstein']}"
        if len(set(best.values())) == 1
        else f"Nearest to the softmax at D = {D}: {best['wasserstein']} (Wasserstein), {best['ks']} (KS)"
    )
    perplexity = number(results["model"]["test perplexity"], grouped=True)
    headline(
        drawing,
        f"{nearest}; of the paper's four, {ranked[0]}",
        f"LSTM with {settings.training.width} units on {settings.training.title}, "
        f"{settings.training.epochs} epochs, test perplexity {perplexity}; "
        f"{settings.queries} queries, {settings.redraws} redraws\n"
        f"Bands: range over redraws. Hollow circles: the paper's. Dotted: the uniform distribution. Hybrids with "
        f"{MATCHINGS[0]};\nfitted maps (dashed) have D projections, the separable one D clusters",
    )
    halves: Any = drawing.subfigures(2, 1, height_ratios=[1, 1.8])
    above, below = halves
    top = above.subplots(1, 3)
    _draw_training(top[0], settings, results)
    for axes, side, colour in zip(top[1:], ("queries", "keys"), ("#0072B2", "#D55E00"), strict=True):
        _draw_lengths(axes, results["model"][side], side, colour)
    bottom = below.subplots(1, 3)
    for axes, metric in zip(bottom, METRICS, strict=True):
        _draw_metric(axes, settings, results, metric, names)
    bare([*top, *bottom])
    handles, labels = bottom[0].get_legend_handles_labels()
    below.legend(
        handles, labels, loc="outside lower center", ncols=len(names), frameon=False, labelcolor=GREY
    )
    return drawing


def _draw_training(axes: Any, settings: Settings, results: Results) -> None:
    epochs = range(1, settings.training.epochs + 1)
    axes.plot(
        epochs, [results[epoch_key(e)]["perplexity"] for e in epochs], "o-", color="#009E73", markersize=4
    )
    axes.set_title("validation perplexity by epoch", size=11)
    axes.xaxis.get_major_locator().set_params(integer=True)
    log_axis(axes)


def _draw_lengths(axes: Any, found: dict[str, Any], side: str, colour: str) -> None:
    axes.stairs(found["counts"], found["edges"], fill=True, color=colour, alpha=0.8)
    axes.axvline(found["mean"], color=GREY, linewidth=1)
    axes.set_title(f"lengths of {side}, mean {found['mean']:.2f}", size=11)
    axes.set_yticks([])


def _draw_metric(
    axes: Any, settings: Settings, results: Results, metric: str, names: tuple[str, ...]
) -> None:
    printed = PRINTED[settings.training.text].get(metric, {})
    for name in names:
        found = [in_redraws(results, name, D, metric) for D in settings.features]
        if metric == "negative" and not any(map(any, found)):
            continue
        _draw_estimator(axes, settings, name, found)
        if name in printed:
            values = zip(SIZES, printed[name], strict=True)
            theirs = [(D, value) for D, (value, _) in values if D in settings.features]
            colour = _COLOURS[name]
            axes.plot(*zip(*theirs, strict=True), "o", mfc="none", mec=colour, markersize=8, alpha=0.8)
    if metric == "negative":
        axes.set_ylim(bottom=0)
    else:
        axes.axhline(metric_means(results[UNIFORM])[metric], color=GREY, linewidth=1.2, linestyle=":")
        log_axis(axes)
    axes.set_xscale("log", base=2)
    axes.set_xticks(settings.features, [f"{D}" for D in settings.features])
    axes.set_xlabel("D")
    axes.set_title(METRICS[metric], size=11)


def _draw_estimator(axes: Any, settings: Settings, name: str, found: list[list[float]]) -> None:
    """Draw the means over redraws as a line, their range as a band."""
    axes.plot(
        settings.features,
        [statistics.fmean(values) for values in found],
        marker="o",
        color=_COLOURS[name],
        markersize=4,
        linewidth=2.4 if name in HYBRIDS else 1.6,
        linestyle="--" if name in FITTED else "-",
        label=name,
    )
    low, high = ([end(values) for values in found] for end in (min, max))
    axes.fill_between(settings.features, low, high, color=_COLOURS[name], alpha=0.2, linewidth=0)

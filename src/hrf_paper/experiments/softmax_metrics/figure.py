"""Softmax distributions of a language model, estimated: our numbers beside the paper's."""

from __future__ import annotations

import statistics
from typing import Any

from matplotlib.figure import Figure

from hrf_paper.experiments.shared.estimators import BASES, HYBRIDS, MATCHINGS
from hrf_paper.experiments.experiment import Experiment, Results, Table
from hrf_paper.experiments.shared.plotting import COLOURS, GREY, bare, canvas, headline, log_axis
from hrf_paper.experiments.shared.scaled_down import scaled_down
from hrf_paper.experiments.softmax_metrics.claims import PAIRS, best_of, claims, in_redraws, mean_of
from hrf_paper.experiments.softmax_metrics.measure import (
    FITTED,
    UNIFORM,
    Settings,
    epoch_key,
    key,
    metric_means,
    parts,
)
from hrf_paper.experiments.softmax_metrics.printed import METRICS, PRINTED, SIZES
from hrf_paper.experiments.shared.number_format import digits

__all__ = ["experiment"]

_OTHERS = {"fitted": "#56B4E9", "clustered": "#8C564B", "separable": "#7F7F7F"}


def experiment(
    name: str, title: str, source: str, *, full: Settings, scaled: Settings, quick: Settings
) -> Experiment[Settings]:
    """The experiment on one text."""

    def all_tables(settings: Settings, results: Results) -> list[Table]:
        return [*tables(settings, results), *scaled_down(settings, full)]

    return Experiment(
        name=name,
        title=title,
        source=source,
        full=full,
        scaled=scaled,
        quick=quick,
        parts=parts,
        tables=all_tables,
        claims=claims,
        figure=figure,
    )


def _spread(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _with_spread(values: list[float]) -> str:
    return f"{digits(statistics.fmean(values))} ± {digits(_spread(values))}"


# Tables.


def tables(settings: Settings, results: Results) -> list[Table]:
    """The paper's table beside ours; all estimators and matchings; the training."""
    printed = PRINTED[settings.training.text]
    beside = []
    for metric, rows in printed.items():
        for name, values in rows.items():
            theirs = dict(zip(SIZES, values, strict=True))
            for label, texts in (
                (
                    "paper",
                    [
                        f"{theirs[D][0]:g} ± {theirs[D][1]:g}" if D in theirs else ""
                        for D in settings.features
                    ],
                ),
                ("ours", [_with_spread(in_redraws(results, name, D, metric)) for D in settings.features]),
            ):
                beside.append((METRICS[metric], name, label, *texts))
    header = ("metric", "estimator", "", *(f"D = {D}" for D in settings.features))
    everything = []
    for name in (*BASES, *HYBRIDS, *FITTED):
        for matching in MATCHINGS if name in HYBRIDS else ("",):
            for features in settings.features:
                part = results[key(name, features, matching)]
                texts = [_with_spread(part[metric]) for metric in METRICS]
                rest = (f"{part['width']:,}", f"{part['flops']:,}", f"{metric_means(part)['hopeless']:.1%}")
                everything.append((name, matching, f"{features}", *texts, *rest))
    uniform = metric_means(results[UNIFORM])
    everything.append((UNIFORM, "", "", *(digits(uniform[metric]) for metric in METRICS), "", "", ""))
    long = (
        "estimator",
        "matching",
        "D",
        *METRICS.values(),
        "width",
        "FLOPs",
        "rows without a positive estimate",
    )
    epochs = [
        (f"{epoch}", digits(results[epoch_key(epoch)]["perplexity"]))
        for epoch in range(1, settings.training.epochs + 1)
    ]
    return [
        Table(f"The paper's table beside ours, hybrids with {MATCHINGS[0]}", header, beside),
        Table("All estimators", long, everything, long=True),
        Table("Training", ("epoch", "validation perplexity"), epochs, long=True),
    ]


# The figure.


def figure(settings: Settings, results: Results) -> Figure:
    """Above the training and the lengths, below the three metrics over D."""
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
    headline(
        drawing,
        f"{nearest}; of the paper's four, {ranked[0]}",
        f"LSTM with {settings.training.width} units on {settings.training.text.replace('_', ' ')}, "
        f"{settings.training.epochs} epochs, test perplexity {digits(results['model']['test perplexity'])}; "
        f"{settings.queries} queries, {settings.redraws} redraws\n"
        f"Bands: range over redraws. Hollow circles: the paper's. Dotted: the uniform distribution. Hybrids with "
        f"{MATCHINGS[0]};\nfitted maps (dashed) have D projections, the separable one D clusters",
    )
    halves: Any = drawing.subfigures(2, 1, height_ratios=[1, 1.8])
    above, below = halves
    top = above.subplots(1, 3)
    _draw_training(top[0], settings, results)
    for axes, side, colour in zip(top[1:], ("queries", "keys"), ("#0072B2", "#D55E00"), strict=True):
        found = results["model"][side]
        axes.stairs(found["counts"], found["edges"], fill=True, color=colour, alpha=0.8)
        axes.axvline(found["mean"], color=GREY, linewidth=1)
        axes.set_title(f"lengths of {side}, mean {found['mean']:.2f}", size=11)
        axes.set_yticks([])
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


def _draw_metric(
    axes: Any, settings: Settings, results: Results, metric: str, names: tuple[str, ...]
) -> None:
    printed = PRINTED[settings.training.text].get(metric, {})
    for name in names:
        colour = (COLOURS | _OTHERS)[name]
        found = [in_redraws(results, name, D, metric) for D in settings.features]
        means = [statistics.fmean(values) for values in found]
        if metric == "negative" and not any(means):
            continue
        axes.plot(
            settings.features,
            means,
            marker="o",
            color=colour,
            markersize=4,
            linewidth=2.4 if name in HYBRIDS else 1.6,
            linestyle="--" if name in FITTED else "-",
            label=name,
        )
        low, high = ([end(values) for values in found] for end in (min, max))
        axes.fill_between(settings.features, low, high, color=colour, alpha=0.2, linewidth=0)
        if name in printed:
            theirs = [
                (D, v) for D, (v, _) in zip(SIZES, printed[name], strict=True) if D in settings.features
            ]
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

"""Tables of the paper beside ours; all estimators; the training."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from hrf.report import number
from hrf_paper.experiments.experiment import Results, Table
from hrf_paper.experiments.shared.estimators import BASES, HYBRIDS, MATCHINGS
from hrf_paper.experiments.softmax_metrics.claims import in_redraws
from hrf_paper.experiments.softmax_metrics.distances import metric_means
from hrf_paper.experiments.softmax_metrics.measure import FITTED, UNIFORM, Settings, epoch_key, key
from hrf_paper.experiments.softmax_metrics.printed import METRICS, PRINTED, SIZES

__all__ = ["tables"]

_LONG = (
    "estimator",
    "matching",
    "D",
    *METRICS.values(),
    "width",
    "FLOPs",
    "rows without a positive estimate",
)


def tables(settings: Settings, results: Results) -> list[Table]:
    """Show the paper's table beside ours, all estimators and matchings, and the training."""
    header = ("metric", "estimator", "", *(f"D = {D}" for D in settings.features))
    epochs = [
        (f"{epoch}", number(results[epoch_key(epoch)]["perplexity"], grouped=True))
        for epoch in range(1, settings.training.epochs + 1)
    ]
    beside = list(_beside(settings, results))
    everything = list(_everything(settings, results))
    return [
        Table(f"The paper's table beside ours, hybrids with {MATCHINGS[0]}", header, beside),
        Table("All estimators", _LONG, everything, long=True),
        Table("Training", ("epoch", "validation perplexity"), epochs, long=True),
    ]


def _beside(settings: Settings, results: Results) -> Iterator[tuple[str, ...]]:
    for metric, rows in PRINTED[settings.training.text].items():
        for name, values in rows.items():
            printed = dict(zip(SIZES, values, strict=True))
            theirs = [
                f"{printed[D][0]:g} ± {printed[D][1]:g}" if D in printed else "" for D in settings.features
            ]
            ours = [_with_spread(in_redraws(results, name, D, metric)) for D in settings.features]
            yield (METRICS[metric], name, "paper", *theirs)
            yield (METRICS[metric], name, "ours", *ours)


def _everything(settings: Settings, results: Results) -> Iterator[tuple[str, ...]]:
    for name in (*BASES, *HYBRIDS, *FITTED):
        for matching in MATCHINGS if name in HYBRIDS else ("",):
            for features in settings.features:
                part = results[key(name, features, matching)]
                texts = [_with_spread(part[metric]) for metric in METRICS]
                rest = (f"{part['width']:,}", f"{part['flops']:,}", f"{metric_means(part)['hopeless']:.1%}")
                yield (name, matching, f"{features}", *texts, *rest)
    uniform = metric_means(results[UNIFORM])
    yield (UNIFORM, "", "", *(number(uniform[metric], grouped=True) for metric in METRICS), "", "", "")


def _with_spread(values: list[float]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{number(statistics.fmean(values), grouped=True)} ± {number(spread, grouped=True)}"

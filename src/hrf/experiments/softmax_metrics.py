"""Softmax distributions of a language model, estimated: our numbers beside the paper's, and what holds of its words."""

from __future__ import annotations

import statistics
from typing import Any

from matplotlib.figure import Figure

from hrf.experiments.estimators import BASES, HYBRIDS, MATCHINGS
from hrf.experiments.experiment import Claim, Experiment, Results, Table
from hrf.experiments.plotting import COLOURS, GREY, bare, canvas, headline, log_axis
from hrf.experiments.scale import scaled_down
from hrf.experiments.softmax_metrics_measure import (
    FITTED,
    UNIFORM,
    Settings,
    epoch_key,
    key,
    metric_means,
    parts,
)
from hrf.experiments.softmax_metrics_table import METRICS, PRINTED, PRINTED_PERPLEXITY, SIZES
from hrf.experiments.words import number_text

__all__ = ["experiment"]

_OTHERS = {"fitted": "#56B4E9", "clustered": "#8C564B", "separable": "#7F7F7F"}
_PAIRS = ("wasserstein", "ks")
_CLEAR = 0.998  # of the other's distance: less of a gap is called none
_NOTE = (
    "Fitted is short for positive features with a fitted matrix about the means, clustered for features of the "
    "residuals of cluster centres, separable for D clusters a side and no randomness."
)


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


def _found(
    results: Results, name: str, features: int, metric: str, matching: str = MATCHINGS[0]
) -> list[float]:
    """A metric in all redraws."""
    found: list[float] = results[key(name, features, matching)][metric]
    return found


def _mean(results: Results, name: str, features: int, metric: str, matching: str = MATCHINGS[0]) -> float:
    return statistics.fmean(_found(results, name, features, metric, matching))


def _spread(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _text(value: float) -> str:
    """With all digits before the point, where there are many."""
    return f"{value:,.0f}" if value >= 9999.5 else number_text(value)


def _with_spread(values: list[float]) -> str:
    return f"{_text(statistics.fmean(values))} ± {_text(_spread(values))}"


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
                ("ours", [_with_spread(_found(results, name, D, metric)) for D in settings.features]),
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
    everything.append((UNIFORM, "", "", *(_text(uniform[metric]) for metric in METRICS), "", "", ""))
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
        (f"{epoch}", _text(results[epoch_key(epoch)]["perplexity"]))
        for epoch in range(1, settings.training.epochs + 1)
    ]
    return [
        Table(f"The paper's table beside ours, hybrids with {MATCHINGS[0]}", header, beside),
        Table("All estimators", long, everything, long=True),
        Table("Training", ("epoch", "validation perplexity"), epochs, long=True),
    ]


# Claims.


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Of Section 4.3 and the appendix on language modelling."""
    text = settings.training.text
    found = [
        *(_most_accurate(settings, results, matching) for matching in MATCHINGS),
        _order(settings, results),
        _numbers(settings, results),
    ]
    if "negative" in PRINTED[text]:
        found.append(_negative(settings, results))
    if text in PRINTED_PERPLEXITY:
        found.append(_perplexity(settings, results, PRINTED_PERPLEXITY[text]))
    others = _against_uniform, _concentrated, _beyond
    return [*found, *(claim(settings, results) for claim in others)]


def _best(
    results: Results, names: Any, features: int, metric: str, matching: str = MATCHINGS[0]
) -> tuple[float, str]:
    return min((_mean(results, name, features, metric, matching), name) for name in names)


def _most_accurate(settings: Settings, results: Results, matching: str) -> Claim:
    wins = {
        metric: [
            _best(results, HYBRIDS, D, metric, matching)[0] < _CLEAR * _best(results, BASES, D, metric)[0]
            for D in settings.features
        ]
        for metric in _PAIRS
    }
    count = {metric: sum(found) for metric, found in wins.items()}
    total = len(settings.features)
    ours = ", ".join(f"{METRICS[metric]}: {number} of {total}" for metric, number in count.items())
    gaps = [
        _best(results, HYBRIDS, D, metric, matching)[0] / _best(results, BASES, D, metric)[0]
        for metric in _PAIRS
        for D in settings.features
    ]
    return Claim(
        claim="Hybrids give the most accurate softmax distributions, more than FAVOR+ and trigonometric features.",
        paper="at all sizes",
        ours=ours,
        verdict="holds" if sum(count.values()) == 2 * total else "partly" if any(count.values()) else "fails",
        matching=matching,
        sentence=f"With {matching} the better hybrid beats both bases by 0.2 % or more in Wasserstein distance at "
        f"{count['wasserstein']} and in KS at {count['ks']} of {total} sizes; it has {_text(min(gaps))} to "
        f"{_text(max(gaps))} of "
        "the better base's distance.",
    )


def _order(settings: Settings, results: Results) -> Claim:
    names = (*BASES, *HYBRIDS)
    found = [{name: _mean(results, name, D, "wasserstein") for name in names} for D in settings.features]
    best, worst = 0, 0
    for means in found:
        best += means["angular hybrid"] < _CLEAR * min(means[n] for n in names if n != "angular hybrid")
        worst += max(means[n] for n in names if n != "FAVOR+") < _CLEAR * means["FAVOR+"]
    total = len(found)
    printed = PRINTED[settings.training.text]["wasserstein"]
    theirs = sum(
        printed["angular hybrid"][k][0] == min(row[k][0] for row in printed.values())
        for k in range(len(SIZES))
    )
    ranked = sorted(names, key=found[-1].__getitem__)
    return Claim(
        claim="By Wasserstein distance the angular hybrid is the best and FAVOR+ the worst of the four.",
        paper=f"best at {theirs} of {len(SIZES)} sizes, worst at all",
        ours=f"best at {best}, worst at {worst} of {total}",
        verdict="holds" if best == worst == total else "partly" if best or worst else "fails",
        matching=MATCHINGS[0],
        sentence=f"By 0.2 % or more, the angular hybrid is the best of the four at {best} of {total} sizes and FAVOR+ "
        f"the worst at {worst}; at D = {settings.features[-1]} the order is "
        f"{', '.join(f'{name} ({_text(found[-1][name])})' for name in ranked)}, from the best.",
    )


def _numbers(settings: Settings, results: Results) -> Claim:
    printed = PRINTED[settings.training.text]
    cells = [
        (_mean(results, name, D, metric) / value, abs(_mean(results, name, D, metric) - value) <= 2 * error)
        for metric, rows in printed.items()
        for name, values in rows.items()
        for D, (value, error) in zip(SIZES, values, strict=True)
        if D in settings.features
    ]
    inside = sum(near for _, near in cells)
    ratios = sorted(ratio for ratio, _ in cells)
    return Claim(
        claim="The printed numbers, each a mean over 10 runs.",
        paper=f"{sum(len(row) for rows in printed.values() for row in rows.values())} numbers",
        ours=f"{inside} of {len(cells)} within two printed deviations",
        verdict="holds" if inside == len(cells) else "partly" if inside else "fails",
        matching=MATCHINGS[0],
        sentence=f"Of {len(cells)} numbers {inside} lie within two printed deviations; ours are {_text(ratios[0])} "
        f"to {_text(ratios[-1])} of theirs, {_text(statistics.median(ratios))} in the middle. They depend on "
        "the trained model and on the order of the words, neither of which was published.",
    )


def _negative(settings: Settings, results: Results) -> Claim:
    pairs = [
        (_mean(results, name, D, "negative"), _mean(results, "trigonometric", D, "negative"))
        for D in settings.features
        for name in HYBRIDS
    ]
    wins = sum(hybrid < base for hybrid, base in pairs)
    hybrids, bases = zip(*pairs, strict=True)
    return Claim(
        claim="Fewer estimates of hybrids than of trigonometric features are negative.",
        paper="0.15 to 0.16 against 0.26",
        ours=f"{min(hybrids):.3f} to {max(hybrids):.3f} against {min(bases):.3f} to {max(bases):.3f}",
        verdict="holds" if wins == len(pairs) else "partly" if wins else "fails",
        matching=MATCHINGS[0],
        sentence=f"A share of {min(hybrids):.3f} to {max(hybrids):.3f} of the hybrids' estimates is negative, and "
        f"{min(bases):.3f} to {max(bases):.3f} of the trigonometric ones: fewer in {wins} of {len(pairs)} cases.",
    )


def _perplexity(settings: Settings, results: Results, printed: float) -> Claim:
    ours = results["model"]["test perplexity"]
    lengths = {name: results["model"][name]["mean"] for name in ("queries", "keys")}
    return Claim(
        claim="With lengths near 1 and a temperature, the model still has a good perplexity (test text, 50 epochs).",
        paper=f"{printed:g}",
        ours=_text(ours),
        verdict="holds" if ours <= 1.1 * printed else "partly" if ours <= 2 * printed else "fails",
        sentence=f"After {settings.training.epochs} epochs the perplexity of the test text is {_text(ours)}, where "
        f"the paper has {printed:g}; the mean length is {lengths['queries']:.2f} for queries and "
        f"{lengths['keys']:.2f} for keys.",
    )


def _against_uniform(settings: Settings, results: Results) -> Claim:
    uniform = metric_means(results[UNIFORM])
    names = (*BASES, *HYBRIDS)
    better = [
        name
        for name in names
        if all(
            _mean(results, name, D, metric) < uniform[metric] for D in settings.features for metric in _PAIRS
        )
    ]
    return Claim(
        claim="What the distances mean: the uniform distribution, which knows no query, as a yardstick.",
        paper="not looked at",
        ours=f"{_text(uniform['wasserstein'])} and {_text(uniform['ks'])} (uniform)",
        verdict="beyond",
        matching=MATCHINGS[0],
        sentence=f"The uniform distribution has a Wasserstein distance of {_text(uniform['wasserstein'])} and a KS "
        f"of {_text(uniform['ks'])}; of the paper's four estimators "
        f"{', '.join(better) if better else 'none'} {'are' if len(better) > 1 else 'is'} nearer than that at all sizes "
        "and in both.",
    )


def _concentrated(settings: Settings, results: Results) -> Claim:
    D = max(settings.features)
    exact = results["model"]["largest"]
    shares = {name: _mean(results, name, D, "largest") for name in (*BASES, *HYBRIDS)}
    listed = ", ".join(f"{share:.2f} ({name})" for name, share in shares.items())
    return Claim(
        claim="Where the weight goes: the probability of the likeliest word, in the mean.",
        paper="not looked at",
        ours=f"{exact:.2f} (softmax); {listed}",
        verdict="beyond",
        matching=MATCHINGS[0],
        sentence=f"The softmax gives {exact:.2f} to its likeliest word, estimates with D = {D} {listed}. Trigonometric "
        "features, and those of hybrids, grow with exp(‖k‖²/2): where that share is near 1, the longest keys get "
        "nearly all weight, whatever the query, and distances say where these words stand in the order, not how good an "
        "estimate is.",
    )


def _beyond(settings: Settings, results: Results) -> Claim:
    D = max(settings.features)
    texts, wins = [], []
    for metric in _PAIRS:
        ours, name = _best(results, FITTED, D, metric)
        theirs, rival = min(
            _best(results, BASES, D, metric), *(_best(results, HYBRIDS, D, metric, m) for m in MATCHINGS)
        )
        wins.append(ours < theirs)
        texts.append(f"{METRICS[metric]} {_text(ours)} ({name}) against {_text(theirs)} ({rival})")
    outcome = {
        2: "Maps fitted to the model win in both",
        1: "Fitted maps win in one",
        0: "Fitted maps win in neither",
    }
    return Claim(
        claim="Maps that are fitted to queries and keys: FAVOR++, FAVOR#, a fitted matrix, clusters.",
        paper="none",
        ours="; ".join(texts),
        verdict="beyond",
        matching=f"D = {D}, hybrids at any",
        sentence=f"{outcome[sum(wins)]}, at D = {D} against the best of bases and hybrids: {'; '.join(texts)}. "
        f"{_NOTE}",
    )


# The figure.


def figure(settings: Settings, results: Results) -> Figure:
    """Above the training and the lengths, below the three metrics over D."""
    drawing = canvas(13, 9)
    D = max(settings.features)
    names = (*BASES, *HYBRIDS, *FITTED)
    best = {metric: _best(results, names, D, metric)[1] for metric in _PAIRS}
    ranked = sorted((*BASES, *HYBRIDS), key=lambda name: _mean(results, name, D, "wasserstein"))
    nearest = (
        f"Nearest to the softmax at D = {D}: {best['wasserstein']}"
        if len(set(best.values())) == 1
        else f"Nearest to the softmax at D = {D}: {best['wasserstein']} (Wasserstein), {best['ks']} (KS)"
    )
    headline(
        drawing,
        f"{nearest}; of the paper's four, {ranked[0]}",
        f"LSTM with {settings.training.width} units on {settings.training.text.replace('_', ' ')}, "
        f"{settings.training.epochs} epochs, test perplexity {_text(results['model']['test perplexity'])}; "
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
        found = [_found(results, name, D, metric) for D in settings.features]
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

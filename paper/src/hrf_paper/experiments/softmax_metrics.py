"""Softmax distributions of a language model, estimated: shared by ptb-metrics and wikitext2-metrics.

For a query q the true distribution over the words is p ∝ exp(τ qᵀk). Estimates of the kernel below 0 are set to 0 and
the row is divided by its sum; a row without any estimate above 0 counts as uniform. With distribution functions F and
F̂ over the words in the order of their first appearance in the text, as in the authors' programs,

    Wasserstein = Σ |F − F̂|,   Kolmogorov–Smirnov = max |F − F̂|,   negative fraction = share of estimates < 0.

Queries and keys are scaled by √τ for every estimator alike: kernel and estimates see exp(τ qᵀk). (The published
WikiText-2 numbers compare hybrids on inputs scaled by d^{−1/4} with bases on unscaled inputs.)
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from matplotlib.figure import Figure

from hrf.report import number
from hrf_paper.experiments.estimators import BASES, HYBRIDS, MATCHINGS
from hrf_paper.experiments.experiment import Claim, Experiment, Results, Table
from hrf_paper.experiments.language_model import Draws, Training
from hrf_paper.experiments.plotting import COLOURS, GREY, bare, canvas, headline, log_axis
from hrf_paper.experiments.softmax_metrics_measure import (
    FITTED,
    METRICS,
    PRINTED,
    PRINTED_PERPLEXITY,
    SIZES,
    UNIFORM,
    SoftmaxMetricsSettings,
    epoch_key,
    key,
    metric_means,
    parts,
)

# Tables of the paper beside ours; all estimators; the training.

_LONG = (
    "estimator",
    "matching",
    "D",
    *METRICS.values(),
    "width",
    "FLOPs",
    "rows without a positive estimate",
)


def tables(settings: SoftmaxMetricsSettings, results: Results) -> list[Table]:
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


def _beside(settings: SoftmaxMetricsSettings, results: Results) -> Iterator[tuple[str, ...]]:
    for metric, rows in PRINTED[settings.training.text].items():
        for name, values in rows.items():
            printed = dict(zip(SIZES, values, strict=True))
            theirs = [
                f"{printed[D][0]:g} ± {printed[D][1]:g}" if D in printed else "" for D in settings.features
            ]
            ours = [_with_spread(in_redraws(results, name, D, metric)) for D in settings.features]
            yield (METRICS[metric], name, "paper", *theirs)
            yield (METRICS[metric], name, "ours", *ours)


def _everything(settings: SoftmaxMetricsSettings, results: Results) -> Iterator[tuple[str, ...]]:
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


# Statements of Section 4.3 and its appendix on softmax distributions of language models.

PAIRS = ("wasserstein", "ks")
_CLEAR = 0.998  # share of the other distance below which a distance is smaller; between them is a tie
_GOOD = 1.1  # share of the printed perplexity up to which a perplexity reproduces it
_NOTE = (
    "Fitted is short for positive features with a fitted matrix about the means, clustered for features of the "
    "residuals of cluster centres, separable for D clusters per side and no randomness."
)


def in_redraws(
    results: Results, name: str, features: int, metric: str, matching: str = MATCHINGS[0]
) -> list[float]:
    """Return a metric in all redraws."""
    found: list[float] = results[key(name, features, matching)][metric]
    return found


def mean_of(results: Results, name: str, features: int, metric: str, matching: str = MATCHINGS[0]) -> float:
    """Return the mean of a metric over all redraws."""
    return statistics.fmean(in_redraws(results, name, features, metric, matching))


def claims(settings: SoftmaxMetricsSettings, results: Results) -> list[Claim]:
    """Judge Section 4.3 and the appendix on language modelling."""
    text = settings.training.text
    found = [
        *(_most_accurate(settings, results, matching) for matching in MATCHINGS),
        _best(settings, results),
        _worst(settings, results),
        _numbers(settings, results),
    ]
    if "negative" in PRINTED[text]:
        found.append(_negative(settings, results))
    if text in PRINTED_PERPLEXITY:
        found.append(_perplexity(settings, results, PRINTED_PERPLEXITY[text]))
    beyond = _against_uniform, _concentrated, _fitted_maps
    return [*found, *(claim(settings, results) for claim in beyond)]


def best_of(
    results: Results, names: Any, features: int, metric: str, matching: str = MATCHINGS[0]
) -> tuple[float, str]:
    """Return the least mean of these estimators, and the name of its estimator."""
    return min((mean_of(results, name, features, metric, matching), name) for name in names)


def _most_accurate(settings: SoftmaxMetricsSettings, results: Results, matching: str) -> Claim:
    wins = {
        metric: [
            best_of(results, HYBRIDS, D, metric, matching)[0] < _CLEAR * best_of(results, BASES, D, metric)[0]
            for D in settings.features
        ]
        for metric in PAIRS
    }
    count, total = {metric: sum(found) for metric, found in wins.items()}, len(settings.features)
    ours = ", ".join(f"{METRICS[metric]}: {number} of {total}" for metric, number in count.items())
    gaps = [
        best_of(results, HYBRIDS, D, metric, matching)[0] / best_of(results, BASES, D, metric)[0]
        for metric in PAIRS
        for D in settings.features
    ]
    return Claim(
        claim="Hybrids give the most accurate softmax distributions, more than FAVOR+ and trigonometric features.",
        paper="at all sizes",
        ours=ours,
        hits=[hit for found in wins.values() for hit in found],
        cases="distances",
        criterion="smaller by 0.2% or more",
        matching=matching,
        sentence=f"With {matching} the better hybrid beats both bases by 0.2 % or more in Wasserstein distance at "
        f"{count['wasserstein']} and in KS at {count['ks']} of {total} sizes; it has {_text(min(gaps))} to "
        f"{_text(max(gaps))} of "
        "the better base's distance.",
    )


def _best(settings: SoftmaxMetricsSettings, results: Results) -> Claim:
    found = _wasserstein(settings, results)
    hits = [
        means["angular hybrid"] < _CLEAR * min(m for name, m in means.items() if name != "angular hybrid")
        for means in found
    ]
    best = sum(hits)
    printed = PRINTED[settings.training.text]["wasserstein"]
    theirs = sum(
        printed["angular hybrid"][k][0] == min(row[k][0] for row in printed.values())
        for k in range(len(SIZES))
    )
    ranked = sorted(found[-1], key=found[-1].__getitem__)
    return Claim(
        claim="By Wasserstein distance the angular hybrid is the best of the four.",
        paper=f"at {theirs} of {len(SIZES)} sizes",
        ours=f"at {best} of {len(found)}",
        hits=hits,
        cases="sizes",
        criterion="by 0.2% or more",
        matching=MATCHINGS[0],
        sentence=f"By 0.2 % or more, the angular hybrid is the best of the four at {best} of {len(found)} sizes; at "
        f"D = {settings.features[-1]} the order is "
        f"{', '.join(f'{name} ({_text(found[-1][name])})' for name in ranked)}, from the best.",
    )


def _worst(settings: SoftmaxMetricsSettings, results: Results) -> Claim:
    found = _wasserstein(settings, results)
    hits = [
        max(m for name, m in means.items() if name != "FAVOR+") < _CLEAR * means["FAVOR+"] for means in found
    ]
    worst = sum(hits)
    return Claim(
        claim="By Wasserstein distance FAVOR+ is the worst of the four.",
        paper="at all sizes",
        ours=f"at {worst} of {len(found)}",
        hits=hits,
        cases="sizes",
        criterion="by 0.2% or more",
        matching=MATCHINGS[0],
        sentence=f"By 0.2 % or more, FAVOR+ is the worst of the four at {worst} of {len(found)} sizes.",
    )


def _wasserstein(settings: SoftmaxMetricsSettings, results: Results) -> list[dict[str, float]]:
    """Return the mean Wasserstein distance of each of the four estimators, per size."""
    names = (*BASES, *HYBRIDS)
    return [{name: mean_of(results, name, D, "wasserstein") for name in names} for D in settings.features]


def _numbers(settings: SoftmaxMetricsSettings, results: Results) -> Claim:
    printed = PRINTED[settings.training.text]
    cells = [
        (
            mean_of(results, name, D, metric) / value,
            abs(mean_of(results, name, D, metric) - value) <= 2 * error,
        )
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
        hits=[near for _, near in cells],
        cases="printed numbers",
        criterion="within two printed deviations",
        matching=MATCHINGS[0],
        sentence=f"Of {len(cells)} numbers {inside} lie within two printed deviations; ours are {_text(ratios[0])} "
        f"to {_text(ratios[-1])} of theirs, {_text(statistics.median(ratios))} in the middle. They depend on "
        "the trained model and on the order of the words, neither of which was published.",
    )


def _negative(settings: SoftmaxMetricsSettings, results: Results) -> Claim:
    pairs = [
        (mean_of(results, name, D, "negative"), mean_of(results, "trigonometric", D, "negative"))
        for D in settings.features
        for name in HYBRIDS
    ]
    wins = sum(hybrid < base for hybrid, base in pairs)
    hybrids, bases = zip(*pairs, strict=True)
    return Claim(
        claim="Fewer estimates of hybrids than of trigonometric features are negative.",
        paper="0.15 to 0.16 against 0.26",
        ours=f"{min(hybrids):.3f} to {max(hybrids):.3f} against {min(bases):.3f} to {max(bases):.3f}",
        hits=[hybrid < base for hybrid, base in pairs],
        cases="comparisons",
        matching=MATCHINGS[0],
        sentence=f"A share of {min(hybrids):.3f} to {max(hybrids):.3f} of the hybrids' estimates is negative, and "
        f"{min(bases):.3f} to {max(bases):.3f} of the trigonometric estimates: fewer in {wins} of {len(pairs)} cases.",
    )


def _perplexity(settings: SoftmaxMetricsSettings, results: Results, printed: float) -> Claim:
    ours = results["model"]["test perplexity"]
    lengths = {name: results["model"][name]["mean"] for name in ("queries", "keys")}
    return Claim(
        claim="With lengths near 1 and a temperature, the model still has a good perplexity (test text, 50 epochs).",
        paper=f"{printed:g}",
        ours=_text(ours),
        hits=[ours <= _GOOD * printed],
        cases="perplexity",
        criterion=f"at most {_GOOD:g} times the printed value",
        sentence=f"After {settings.training.epochs} epochs the perplexity of the test text is {_text(ours)}, where "
        f"the paper has {printed:g}; the mean length is {lengths['queries']:.2f} for queries and "
        f"{lengths['keys']:.2f} for keys.",
    )


def _against_uniform(settings: SoftmaxMetricsSettings, results: Results) -> Claim:
    uniform = metric_means(results[UNIFORM])
    names = (*BASES, *HYBRIDS)
    better = [
        name
        for name in names
        if all(
            mean_of(results, name, D, metric) < uniform[metric] for D in settings.features for metric in PAIRS
        )
    ]
    return Claim(
        claim="How large are the distances? The uniform distribution, which ignores queries, as a yardstick.",
        paper="not looked at",
        ours=f"{_text(uniform['wasserstein'])} and {_text(uniform['ks'])} (uniform)",
        matching=MATCHINGS[0],
        sentence=f"The uniform distribution has a Wasserstein distance of {_text(uniform['wasserstein'])} and a KS "
        f"of {_text(uniform['ks'])}; of the paper's four estimators "
        f"{', '.join(better) if better else 'none'} {'are' if len(better) > 1 else 'is'} nearer than that at all sizes "
        "and in both.",
    )


def _concentrated(settings: SoftmaxMetricsSettings, results: Results) -> Claim:
    D = max(settings.features)
    exact = results["model"]["largest"]
    shares = {name: mean_of(results, name, D, "largest") for name in (*BASES, *HYBRIDS)}
    listed = ", ".join(f"{share:.2f} ({name})" for name, share in shares.items())
    return Claim(
        claim="How concentrated are estimates? The mean probability of the likeliest word.",
        paper="not looked at",
        ours=f"{exact:.2f} (softmax); {listed}",
        matching=MATCHINGS[0],
        sentence=f"The softmax gives {exact:.2f} to its likeliest word, estimates with D = {D} {listed}. Features of "
        "trigonometric maps and of hybrids grow with exp(‖k‖²/2): where that share is near 1, the longest keys get "
        "nearly all weight, whatever the query, and distances say where these words stand in the order, not how good "
        "an estimate is.",
    )


def _fitted_maps(settings: SoftmaxMetricsSettings, results: Results) -> Claim:
    D = max(settings.features)
    texts, wins = [], []
    for metric in PAIRS:
        ours, name = best_of(results, FITTED, D, metric)
        theirs, rival = min(
            best_of(results, BASES, D, metric), *(best_of(results, HYBRIDS, D, metric, m) for m in MATCHINGS)
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
        matching=f"D = {D}, hybrids at any",
        sentence=f"{outcome[sum(wins)]}, at D = {D} against the best of bases and hybrids: {'; '.join(texts)}. "
        f"{_NOTE}",
    )


def _text(value: float) -> str:
    return number(value, grouped=True)


# Training and lengths of a language model, and distances of its estimated distributions.

_COLOURS = COLOURS | {"fitted": "#56B4E9", "clustered": "#8C564B", "separable": "#7F7F7F"}


def figure(settings: SoftmaxMetricsSettings, results: Results) -> Figure:
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


def _draw_training(axes: Any, settings: SoftmaxMetricsSettings, results: Results) -> None:
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
    axes: Any, settings: SoftmaxMetricsSettings, results: Results, metric: str, names: tuple[str, ...]
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


def _draw_estimator(axes: Any, settings: SoftmaxMetricsSettings, name: str, found: list[list[float]]) -> None:
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


_SHARED: dict[str, Any] = {
    "parts": parts,
    "tables": tables,
    "claims": claims,
    "figure": figure,
    "needs": ("sklearn",),
}


# Softmax distributions of a language model on Penn Treebank, beside the paper's table.

_QUICK_PENN_TREEBANK = Training(
    "penn_treebank",
    width=32,
    epochs=2,
    learning_rate=3e-3,
    words=10_000,
    judged_words=2_000,
    dropout=0.2,
)

PENN_TREEBANK = Experiment(
    name="ptb-metrics",
    title="Softmax distributions of a language model on Penn Treebank",
    source="Section 4.3, Appendix on language modelling",
    # The paper does not say how long it trained on this text: as long as on WikiText-2.
    full=SoftmaxMetricsSettings(Training("penn_treebank", width=200, epochs=50), queries=1024),
    scaled=SoftmaxMetricsSettings(Training("penn_treebank", width=200, epochs=8, learning_rate=2e-3)),
    quick=SoftmaxMetricsSettings(_QUICK_PENN_TREEBANK, features=(64, 128), queries=32, fitted=256, redraws=3),
    **_SHARED,
)


# Softmax distributions of a language model on WikiText-2 with lengths near 1, beside the paper's table.
#
# The full softmax over 33,278 words takes hours per epoch on a CPU, so the scaled-down training draws words.

_COMMON: dict[str, Any] = {"temperature": 6.0, "length_penalty": 2.0}
_SCALED = Training(
    "wikitext2",
    width=650,
    epochs=2,
    words=1_000_000,
    judged_words=20_000,
    draws=Draws("log-uniform", k=100),
    **_COMMON,
)
_QUICK_WIKITEXT2 = Training(
    "wikitext2",
    width=32,
    epochs=2,
    learning_rate=3e-3,
    words=10_000,
    judged_words=2_000,
    dropout=0.2,
    draws=Draws("log-uniform"),
    **_COMMON,
)

WIKITEXT2 = Experiment(
    name="wikitext2-metrics",
    title="Softmax distributions of a language model on WikiText-2",
    source="Appendix on language modelling",
    full=SoftmaxMetricsSettings(Training("wikitext2", width=650, epochs=50, **_COMMON), queries=1024),
    scaled=SoftmaxMetricsSettings(_SCALED, queries=128),
    quick=SoftmaxMetricsSettings(_QUICK_WIKITEXT2, features=(64, 128), queries=16, fitted=256, redraws=3),
    **_SHARED,
)

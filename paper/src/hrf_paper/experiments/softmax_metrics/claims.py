"""Statements of Section 4.3 and its appendix on softmax distributions of language models."""

from __future__ import annotations

import statistics
from typing import Any

from hrf.report import number
from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.shared.estimators import BASES, HYBRIDS, MATCHINGS
from hrf_paper.experiments.softmax_metrics.distances import metric_means
from hrf_paper.experiments.softmax_metrics.measure import FITTED, UNIFORM, Settings, key
from hrf_paper.experiments.softmax_metrics.printed import METRICS, PRINTED, PRINTED_PERPLEXITY, SIZES
from hrf_paper.experiments.verdicts import Claim

__all__ = ["PAIRS", "best_of", "claims", "in_redraws", "mean_of"]

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


def claims(settings: Settings, results: Results) -> list[Claim]:
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


def _most_accurate(settings: Settings, results: Results, matching: str) -> Claim:
    wins = {
        metric: [
            best_of(results, HYBRIDS, D, metric, matching)[0] < _CLEAR * best_of(results, BASES, D, metric)[0]
            for D in settings.features
        ]
        for metric in PAIRS
    }
    count = {metric: sum(found) for metric, found in wins.items()}
    total = len(settings.features)
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
        matched=sum(count.values()),
        total=len(PAIRS) * total,
        cases="distances",
        criterion="smaller by 0.2% or more",
        matching=matching,
        sentence=f"With {matching} the better hybrid beats both bases by 0.2 % or more in Wasserstein distance at "
        f"{count['wasserstein']} and in KS at {count['ks']} of {total} sizes; it has {_text(min(gaps))} to "
        f"{_text(max(gaps))} of "
        "the better base's distance.",
    )


def _best(settings: Settings, results: Results) -> Claim:
    found = _wasserstein(settings, results)
    best = sum(
        means["angular hybrid"] < _CLEAR * min(m for name, m in means.items() if name != "angular hybrid")
        for means in found
    )
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
        matched=best,
        total=len(found),
        cases="sizes",
        criterion="by 0.2% or more",
        matching=MATCHINGS[0],
        sentence=f"By 0.2 % or more, the angular hybrid is the best of the four at {best} of {len(found)} sizes; at "
        f"D = {settings.features[-1]} the order is "
        f"{', '.join(f'{name} ({_text(found[-1][name])})' for name in ranked)}, from the best.",
    )


def _worst(settings: Settings, results: Results) -> Claim:
    found = _wasserstein(settings, results)
    worst = sum(
        max(m for name, m in means.items() if name != "FAVOR+") < _CLEAR * means["FAVOR+"] for means in found
    )
    return Claim(
        claim="By Wasserstein distance FAVOR+ is the worst of the four.",
        paper="at all sizes",
        ours=f"at {worst} of {len(found)}",
        matched=worst,
        total=len(found),
        cases="sizes",
        criterion="by 0.2% or more",
        matching=MATCHINGS[0],
        sentence=f"By 0.2 % or more, FAVOR+ is the worst of the four at {worst} of {len(found)} sizes.",
    )


def _wasserstein(settings: Settings, results: Results) -> list[dict[str, float]]:
    """Return the mean Wasserstein distance of each of the four estimators, per size."""
    names = (*BASES, *HYBRIDS)
    return [{name: mean_of(results, name, D, "wasserstein") for name in names} for D in settings.features]


def _numbers(settings: Settings, results: Results) -> Claim:
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
        matched=inside,
        total=len(cells),
        cases="printed numbers",
        criterion="within two printed deviations",
        matching=MATCHINGS[0],
        sentence=f"Of {len(cells)} numbers {inside} lie within two printed deviations; ours are {_text(ratios[0])} "
        f"to {_text(ratios[-1])} of theirs, {_text(statistics.median(ratios))} in the middle. They depend on "
        "the trained model and on the order of the words, neither of which was published.",
    )


def _negative(settings: Settings, results: Results) -> Claim:
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
        matched=wins,
        total=len(pairs),
        cases="comparisons",
        matching=MATCHINGS[0],
        sentence=f"A share of {min(hybrids):.3f} to {max(hybrids):.3f} of the hybrids' estimates is negative, and "
        f"{min(bases):.3f} to {max(bases):.3f} of the trigonometric estimates: fewer in {wins} of {len(pairs)} cases.",
    )


def _perplexity(settings: Settings, results: Results, printed: float) -> Claim:
    ours = results["model"]["test perplexity"]
    lengths = {name: results["model"][name]["mean"] for name in ("queries", "keys")}
    return Claim(
        claim="With lengths near 1 and a temperature, the model still has a good perplexity (test text, 50 epochs).",
        paper=f"{printed:g}",
        ours=_text(ours),
        matched=int(ours <= _GOOD * printed),
        total=1,
        cases="perplexity",
        criterion=f"at most {_GOOD:g} times the printed value",
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


def _concentrated(settings: Settings, results: Results) -> Claim:
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


def _fitted_maps(settings: Settings, results: Results) -> Claim:
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

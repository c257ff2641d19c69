"""Statements of the appendix on language modelling with hybrids, and what better draws can gain."""

from __future__ import annotations

import math
import statistics
from itertools import combinations

from hrf.report import number
from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.sampled_softmax.measure import (
    DISTANCES,
    LONGER,
    MAPS,
    RADIUS,
    WIDE,
    Settings,
    last_perplexities,
    mean_perplexity,
)
from hrf_paper.experiments.verdicts import Claim

__all__ = ["claims"]

_CLEAR = 3.0  # standard errors: smaller differences do not count
_ALIKE = 0.02  # relative difference up to which perplexities are alike, however clear it is


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Judge the appendix on language modelling with hybrids."""
    judged = (_alike, _over_trigonometric, _over_uniform, _exact, _maps, _radius)
    return [claim(settings, results) for claim in judged]


def _gap(settings: Settings, results: Results, first: str, second: str) -> tuple[float, float]:
    """Return how much larger the first sampler's perplexity is, and the standard error; runs share seeds."""
    sides = (last_perplexities(settings, results, name) for name in (first, second))
    gaps = [a - b for a, b in zip(*sides, strict=True)]
    return statistics.fmean(gaps), statistics.stdev(gaps) / math.sqrt(len(gaps))


def _is_clear(settings: Settings, results: Results, first: str, second: str) -> bool:
    gap, error = _gap(settings, results, first, second)
    return abs(gap) > _CLEAR * error


def _alike(settings: Settings, results: Results) -> Claim:
    means = {name: mean_perplexity(settings, results, name) for name in MAPS}
    pairs = list(combinations(MAPS, 2))
    clear = [(a, b) for a, b in pairs if _is_clear(settings, results, a, b)]
    apart = [(a, b) for a, b in clear if abs(means[a] - means[b]) > _ALIKE * min(means[a], means[b])]
    spread = max(means.values()) / min(means.values()) - 1
    listed = ", ".join(f"{_text(value)} ({name})" for name, value in means.items())
    named = "; ".join(f"{a} and {b}" for a, b in clear) or "no two of them"
    return Claim(
        claim="The difference between hybrids and other random features in this task is not very significant.",
        paper="not very significant",
        ours=f"{spread:.1%} between the best and the worst map",
        matched=len(pairs) - len(apart),
        total=len(pairs),
        cases="pairs of maps",
        criterion=f"within {_ALIKE:.0%} or {_CLEAR:g} standard errors",
        matching="m·n = D",
        sentence=f"After {settings.training.epochs} epochs the mean perplexities of {settings.seeds} runs are {listed}"
        f": {spread:.1%} from the best to the worst. More than {_CLEAR:g} standard errors lie between {named}.",
    )


def _over_trigonometric(settings: Settings, results: Results) -> Claim:
    rivals = [name for name in MAPS if name != "trigonometric"]
    return _better(
        settings,
        results,
        rivals,
        "trigonometric",
        claim="FAVOR+ and hybrids are better than trigonometric features.",
        than="trigonometric features",
    )


def _over_uniform(settings: Settings, results: Results) -> Claim:
    return _better(
        settings,
        results,
        list(MAPS),
        "uniform",
        claim="All random features are better than uniform draws.",
        than="uniform draws",
    )


def _better(
    settings: Settings, results: Results, names: list[str], rival: str, *, claim: str, than: str
) -> Claim:
    """Judge whether each of these samplers has a clearly lower perplexity than a rival."""
    gaps = {name: _gap(settings, results, name, rival) for name in names}
    better = [name for name, (gap, error) in gaps.items() if gap < -_CLEAR * error]
    return Claim(
        claim=claim,
        paper="so, over 25 runs of 80 epochs",
        ours=f"better: {_listed(better)}",
        matched=len(better),
        total=len(names),
        cases="maps",
        criterion=f"by more than {_CLEAR:g} standard errors",
        matching="m·n = D",
        sentence=f"By more than {_CLEAR:g} standard errors of {settings.seeds} runs, the perplexity is lower than with "
        f"{than} for: {_listed(better)}.",
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _text(value: float) -> str:
    return number(value, grouped=True)


def _compared(settings: Settings, results: Results, first: str, second: str) -> str:
    gap, error = _gap(settings, results, first, second)
    means = [_text(mean_perplexity(settings, results, name)) for name in (first, second)]
    word = "lower" if gap < 0 else "higher"
    clear = "clearly" if abs(gap) > _CLEAR * error else "not clearly"
    return f"{means[0]} against {means[1]}, {_text(abs(gap))} ± {_text(error)} {word}, {clear} so"


def _exact(settings: Settings, results: Results) -> Claim:
    text = _compared(settings, results, "exact", "uniform")
    return Claim(
        claim="How much can better draws gain? The softmax itself against uniform draws.",
        paper="drawn in a figure",
        ours=text,
        sentence=f"Words drawn from the softmax give a perplexity of {text}: as much as better draws can gain here, "
        f"with {settings.k} words per target. A perplexity above 10,000, the number of words, is worse than that of a "
        "uniform guess.",
    )


def _maps(settings: Settings, results: Results) -> Claim:
    best = min(MAPS, key=lambda name: mean_perplexity(settings, results, name))
    text = _compared(settings, results, best, "uniform")
    near = results[DISTANCES][f"r = {RADIUS:g}"]["uniform"]
    return Claim(
        claim="Random features at the paper's length 1 against uniform draws.",
        paper="drawn in a figure",
        ours=f"{best}: {text}",
        matching="m·n = D",
        sentence=f"The best map, {best}, has a perplexity of {text}. Vectors of length 1 make the proposal exp(cos θ), "
        f"which is within {near:.1%} of uniform draws in total variation, whatever estimates it.",
    )


def _radius(settings: Settings, results: Results) -> Claim:
    text = _compared(settings, results, LONGER, "FAVOR+")
    found = results[DISTANCES]
    near = [found[f"r = {radius:g}"]["softmax"] for radius in (RADIUS, WIDE)]
    return Claim(
        claim=f"Longer vectors, r = {WIDE:g}, for draws nearer to the softmax.",
        paper="r = 1 only",
        ours=text,
        sentence=f"With r = {WIDE:g} instead of r = {RADIUS:g} FAVOR+ has a perplexity of {text}. The total "
        f"variation between proposal and softmax goes from {near[0]:.3f} to {near[1]:.3f}; uniform draws have "
        f"{found['uniform']['softmax']:.3f}.",
    )

"""The order of the paper's table, judged at every stage that was run, and what the task itself can tell."""

from __future__ import annotations

import statistics
from itertools import product

from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.speech.printed import GROUPS, ORDER, printed_rate
from hrf_paper.experiments.speech.rates import Rate, methods_run, rate
from hrf_paper.experiments.speech.settings import (
    LEVELS,
    SINGLE,
    SINGLE_SET,
    STAGES,
    Settings,
    judged,
    key,
    set_names,
    turns_set,
)
from hrf_paper.experiments.verdicts import Claim
from hrf_paper.speech.beam import BEAM
from hrf_paper.speech.methods import METHODS

__all__ = ["claims"]

_ABOUT = {
    "swapped": "swapped into a model trained with exact attention, without training",
    "fine-tuned": "after fine-tuning with the map",
    "from scratch": "trained from scratch with the map",
}


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Judge the order of the table's four kinds of maps, and say what the task tells apart."""
    found = []
    for (stage, tested), kinds in product(judged(settings), ORDER):
        pairs = list(product(*(methods_run(results, stage, GROUPS[kind]) for kind in kinds)))
        if pairs:
            found.append(_order(results, stage, tested, kinds, pairs))
    return [
        *found,
        _needs_attention(settings, results),
        _best(settings, results),
        _recognises(settings, results),
    ]


def _order(
    results: Results, stage: str, tested: str, kinds: tuple[str, str], pairs: list[tuple[str, ...]]
) -> Claim:
    """Judge whether one kind of map has lower error rates than another."""
    better, worse = kinds
    rates = {name: _rate(results, stage, name, tested) for pair in pairs for name in pair}
    won = [(a, b) for a, b in pairs if rates[a].mean < rates[b].mean]
    clear = [(a, b) for a, b in won if max(rates[a].values) < min(rates[b].values)]
    several = all(len(r.values) > 1 for r in rates.values())
    ranges = (
        f" In {len(clear)} of the {len(pairs)} pairs the ranges of runs and draws are apart."
        if several
        else ""
    )
    listed = "; ".join(f"{name} {r.text} %" for name, r in rates.items())
    printed = [_interval([f"{printed_rate(name)}" for name in GROUPS[kind]]) for kind in kinds]
    return Claim(
        claim=f"{better} has lower word error rates than {worse} ({_ABOUT[stage]}; {tested}).",
        paper=f"{printed[0]} % against {printed[1]} %",
        ours=f"{_range(rates, better)} % against {_range(rates, worse)} %",
        matched=len(won),
        total=len(pairs),
        cases="pairs of rows",
        criterion="the mean is lower",
        sentence=f"Test utterances ({tested}): {listed}.{ranges}",
    )


def _recognises(settings: Settings, results: Results) -> Claim:
    found = _rate(results, SINGLE, "exact", SINGLE_SET)
    runs = [results[key(SINGLE, "exact", run)] for run in range(settings.runs)]
    minutes = ", ".join(f"{run['timings']['training CPU seconds'] / 60:.1f}" for run in runs)
    searched = ", ".join(f"{run['searched']:.2f}" for run in runs)
    listed = ", ".join(f"{value:.2f}" for value in found.values)
    return Claim(
        claim="How well does the model recognise single utterances with exact attention?",
        paper="not asked",
        ours=f"word error rate {statistics.fmean(run['searched'] for run in runs):.1f} %, greedily {found.mean:.1f} %",
        sentence=f"Word error rate on the test utterances, run by run: {searched} % with a beam of {BEAM}, {listed} % "
        f"decoded greedily, as in all other numbers; after {minutes} CPU minutes of training.",
        measured=True,
    )


def _needs_attention(settings: Settings, results: Results) -> Claim:
    """Say how much worse uniform and no attention are than exact attention."""
    gaps = {}
    for stage, tested in product(STAGES, set_names(settings)):
        if methods_run(results, stage, LEVELS) == [*LEVELS]:
            exact, *others = (_rate(results, stage, name, tested).mean for name in LEVELS)
            gaps[stage, tested] = (exact, *(other - exact for other in others))
    text = "; ".join(
        f"{stage}, {tested}: exact {exact:.1f} %, uniform {uniform:+.1f}, none {none:+.1f}"
        for (stage, tested), (exact, uniform, none) in gaps.items()
    )
    turns = turns_set(settings)
    _, uniform, none = gaps["swapped", turns]
    return Claim(
        claim="Does the task need attention: how much do uniform weights and none at all lose?",
        paper="not asked",
        ours=f"uniform {uniform:+.1f} and none {none:+.1f} points (swapped; {turns})",
        sentence=f"Word error rates of exact attention, and points by which uniform and none are worse: {text}.",
    )


def _best(settings: Settings, results: Results) -> Claim:
    """Name the maps that lose least to exact attention."""
    tested = turns_set(settings)
    rates = {name: _rate(results, "swapped", name, tested).mean for name in METHODS}
    maps = sorted((name for name in METHODS if name not in LEVELS), key=rates.__getitem__)
    listed = ", ".join(f"{name} {rates[name]:.1f} %" for name in maps)
    return Claim(
        claim="Which attention can take the place of exact attention without any training?",
        paper="not asked",
        ours=f"{maps[0]}: {rates[maps[0]]:.1f} % against {rates['exact']:.1f} % with exact attention",
        sentence=f"Test utterances ({tested}), from the lowest word error rate: {listed}; "
        f"exact {rates['exact']:.1f} %.",
    )


def _rate(results: Results, stage: str, method: str, tested: str) -> Rate:
    found = rate(results, stage, method, tested)
    assert found is not None, f"{method} was not run at the stage {stage}"
    return found


def _range(rates: dict[str, Rate], kind: str) -> str:
    return _interval([f"{mean:.1f}" for mean in sorted(rates[n].mean for n in GROUPS[kind] if n in rates)])


def _interval(ascending: list[str]) -> str:
    """Return the first and the last number, or one if they are alike."""
    low, high = ascending[0], ascending[-1]
    return low if low == high else f"{low} to {high}"

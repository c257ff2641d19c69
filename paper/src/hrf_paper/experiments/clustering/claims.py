"""Statements of Appendix H."""

from __future__ import annotations

from itertools import pairwise

from hrf.report import number
from hrf_paper.experiments.clustering.measure import Settings
from hrf_paper.experiments.clustering.printed import ESTIMATORS, PRINTED, SETS
from hrf_paper.experiments.clustering.tables import ALL_ESTIMATORS, Cell, cells, inside
from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.verdicts import Claim

__all__ = ["claims"]

_HYBRID, *_RIVALS = ESTIMATORS
_MATCHING = "equal number of features m"


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Judge Appendix H."""
    judged = (_ranges, _gains, _other_rules, _not_monotonic)
    return [claim(settings, results) for claim in judged]


def _short(name: str) -> str:
    return name.split(",")[0]


def _over_data(results: Results) -> dict[str, list[dict[str, float]]]:
    """Return the exact errors m · MSE of all estimators by set, for every draw of the data."""
    return {
        name: [results[f"{name}, exact"]["m · MSE"], *results[f"{name}, other data"]["m · MSE"]]
        for name in SETS
    }


def _ranges(settings: Settings, results: Results) -> Claim:
    found = cells(settings, results)
    good = sum(cell.holds for cell in found)
    outside = [_outside(cell) for cell in found if not cell.holds]
    return Claim(
        claim=f"Minimal and maximal MSE over {settings.repetitions} repetitions (table of Appendix H.3).",
        paper=f"{len(found)} ranges",
        ours=f"our mean lies in {good} of them ({good / len(found):.0%})",
        matched=good,
        total=len(found),
        cases="printed ranges",
        criterion="our mean inside",
        matching=_MATCHING,
        sentence=f"With queries of norm 0.1 and keys of norm 1 our mean MSE lies in {good} of the "
        f"{len(found)} printed ranges"
        + (f"; outside: {'; '.join(outside)}." if outside else ".")
        + f" {_about_data(settings, results)}",
    )


def _outside(cell: Cell) -> str:
    low, high = cell.printed
    return f"{cell.estimator} at m = {cell.m} of {cell.data} ({cell.ours['mean']:.4f}, printed [{low:.4f}, {high:.4f}])"


def _about_data(settings: Settings, results: Results) -> str:
    """Say how much the error of the paper's rule depends on the draw of the data."""
    errors = {name: [e[_HYBRID] for e in found] for name, found in _over_data(results).items()}
    spans = [
        f"from {number(min(found))} to {number(max(found))} ({_short(name)})"
        for name, found in errors.items()
    ]
    hits = [
        inside(PRINTED[name][m][0], error / m)
        for name, found in errors.items()
        for error in found
        for m in settings.sizes
    ]
    return (
        f"The paper's rule depends on the data: over {settings.data_draws} draws of each set its m · MSE runs "
        f"{', '.join(spans)}; it is large where a coordinate of a centre is near 0. Of its cells, "
        f"{sum(hits) / len(hits):.0%} are inside over these draws."
    )


def _gains(settings: Settings, results: Results) -> Claim:
    drawn = [results[f"{name}, m = {m}"] for name in SETS for m in settings.sizes]
    wins = [part[_HYBRID]["mean"] < min(part[rival]["mean"] for rival in _RIVALS) for part in drawn]
    exact = [errors for found in _over_data(results).values() for errors in found]
    better = sum(errors[_HYBRID] < min(errors[rival] for rival in _RIVALS) for errors in exact)
    gains = {rival: [errors[rival] / errors[_HYBRID] for errors in exact] for rival in _RIVALS}
    spans = [f"{number(min(gain))} to {number(max(gain))}" for gain in gains.values()]
    return Claim(
        claim="Estimators adapted to clusters consistently provide notable accuracy gains (Appendix H.1).",
        paper="for all variants",
        ours=f"in {sum(wins)} of {len(wins)} cases; for {better} of {len(exact)} draws of data",
        matched=sum(wins) + better,
        total=len(wins) + len(exact),
        cases="cases and draws of data",
        matching=_MATCHING,
        sentence=f"The hybrid has the smaller mean MSE in {sum(wins)} of {len(wins)} cases. Over {len(exact)} draws of "
        f"data it has the smallest exact MSE of the three in {better}; the MSE of FAVOR+ is {spans[0]} times as large, "
        f"the MSE of trigonometric features {spans[1]} times.",
    )


def _other_rules(settings: Settings, results: Results) -> Claim:
    exact = {name: results[f"{name}, exact"]["m · MSE"] for name in SETS}
    best = {name: min(ALL_ESTIMATORS, key=errors.__getitem__) for name, errors in exact.items()}
    texts = [
        f"{best[name]} on {_short(name)} ({number(errors[best[name]])} against {number(errors[_HYBRID])} of the "
        "paper's rule)"
        for name, errors in exact.items()
    ]
    return Claim(
        claim="Real diagonal A from the centres of clusters (Appendix H.3), or another rule?",
        paper="—",
        ours=", ".join(f"{_short(name)}: {best[name]}" for name in SETS),
        matching=_MATCHING,
        sentence=f"The smallest exact m · MSE of all six: {', '.join(texts)}.",
    )


def _not_monotonic(settings: Settings, results: Results) -> Claim:
    means = [[results[f"{name}, m = {m}"]["FAVOR+"]["mean"] for m in settings.sizes] for name in SETS]
    rises = [after > before for row in means for before, after in pairwise(row)]
    return Claim(
        claim="The empirical error of FAVOR+ is not perfectly monotonic in m (Figure 6).",
        paper="not monotonic",
        ours=f"{sum(rises)} rises in {len(rises)} steps",
        matched=int(any(rises)),
        total=1,
        cases="statement",
        criterion="one rise is enough",
        sentence=f"The mean MSE of FAVOR+ over {settings.repetitions} repetitions rises in {sum(rises)} of "
        f"{len(rises)} steps from one m to the next, by chance: its exact MSE is proportional to 1/m.",
    )

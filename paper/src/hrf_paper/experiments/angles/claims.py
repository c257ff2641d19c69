"""Statements of the paper on relative errors over the angle, and which estimator is best where."""

from __future__ import annotations

import math

from hrf.report import number
from hrf_paper.experiments.angles.curves import ROUNDING, TIE, Curve, Curves, angle_text, curves
from hrf_paper.experiments.angles.measure import Settings
from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.verdicts import Claim

__all__ = ["claims", "sentences"]

# Whether an estimator is exact at θ = 0 and at θ = π.
_EXACT = {"trigonometric": (True, False), "FAVOR+": (False, True), "angular hybrid": (True, True)}
_RIVALS = ("trigonometric", "FAVOR+", "Gaussian hybrid")
# An empirical error within this share of the exact error shows it.
_NEAR = 0.2


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Judge Section 3 of the paper."""
    found = curves(settings, results)
    return [_ends(found), _smallest(found), _ranges(found), _draws(found)]


def sentences(found: Curves) -> list[str]:
    """Say which estimator is best where, and how far the draws can be trusted."""
    return [_about_maxima(found), _about_ranges(found), _about_draws(found)]


def _ends(found: Curves) -> Claim:
    named = {curve.name: curve for curve in found.curves}
    zeros = {name: (named[name].exact[0] <= ROUNDING, named[name].exact[-1] <= ROUNDING) for name in _EXACT}
    hits = [zero == said for name in _EXACT for zero, said in zip(zeros[name], _EXACT[name], strict=True)]
    texts = [f"{name}: {_where(*zeros[name])}" for name in _EXACT]
    return Claim(
        claim="Trigonometric features are exact at θ = 0, FAVOR+ at θ = π, and the angular hybrid at both (Section 3).",
        paper="zero at one end, at both for the hybrid",
        ours=", ".join(texts),
        matched=sum(hits),
        total=len(hits),
        cases="ends",
        sentence=f"The exact relative error is zero where the paper says in {sum(hits)} of {len(hits)} cases "
        f"({'; '.join(texts)}).",
    )


def _where(at_zero: bool, at_pi: bool) -> str:
    ends = [end for end, zero in (("0", at_zero), ("π", at_pi)) if zero]
    return " and ".join(ends) or "neither end"


def _smallest(found: Curves) -> Claim:
    largest = {curve.name: curve.largest for curve in found.curves}
    wins = [largest["angular hybrid"] < largest[name] for name in _RIVALS]
    texts = ", ".join(f"{number(largest[name])} ({name})" for name in ("angular hybrid", *_RIVALS))
    return Claim(
        claim="The angular hybrid has a smaller largest relative error than the other estimators (Section 4.1).",
        paper="smallest",
        ours=texts,
        matched=sum(wins),
        total=len(wins),
        cases="comparisons",
        matching="equal width",
        sentence=_about_maxima(found),
    )


def _ranges(found: Curves) -> Claim:
    names = list(dict.fromkeys(curve.name for curve, _, _ in found.winners()))
    return Claim(
        claim="Which estimator is the most accurate at which angle, maps that came after the paper included?",
        paper="—",
        ours=", ".join(names),
        matching="equal width",
        sentence=_about_ranges(found),
    )


def _draws(found: Curves) -> Claim:
    ratios = [ratio for ratio, _, _ in _ratios(found)]
    near = sum(abs(ratio - 1) <= _NEAR for ratio in ratios)
    return Claim(
        claim=f"Empirical errors of {found.settings.draws:,} draws show the exact errors (as in Figures 2 and 5).",
        paper="shown as the errors",
        ours=f"{min(ratios):.2f} to {max(ratios):.2f} of the exact errors",
        matched=near,
        total=len(ratios),
        cases="errors",
        criterion=f"within {_NEAR:.0%}",
        sentence=_about_draws(found),
    )


# Sentences.


def _about_maxima(found: Curves) -> str:
    ordered = sorted(found.curves, key=lambda curve: curve.largest)
    best, (free, second) = ordered[0], [curve for curve in ordered if not curve.fitted][:2]
    text = f"{_capital(best.called)} has the smallest maximal error, {_peak(found, best)}"
    if best.fitted:
        text += (
            f", but it was fitted to these very pairs; of the estimators that see no data, {free.called} "
            f"has the smallest, {_peak(found, free)}"
        )
    tie = math.isclose(free.largest, second.largest, rel_tol=TIE)
    rival = "has the same" if tie else f"follows with {number(second.largest)}"
    return f"{text}, with {free.flops:,} FLOPs per vector; {second.called} {rival} and {second.flops:,}."


def _about_ranges(found: Curves) -> str:
    ranges = found.winners()
    if len(ranges) == 1:
        return f"{_capital(ranges[0][0].called)} has the smallest error at every angle between 0 and π."
    texts = [f"{curve.called} from {angle_text(start)} to {angle_text(end)}" for curve, start, end in ranges]
    return f"The smallest error by angle: {', '.join(texts)}."


def _about_draws(found: Curves) -> str:
    draws = f"{found.settings.draws:,} draws"
    ratios = _ratios(found)
    ratio, name, angle = min(ratios)
    if ratio > 1 - _NEAR:
        largest = max(abs(ratio - 1) for ratio, _, _ in ratios)
        return f"The errors seen in {draws} lie within {largest:.0%} of the exact errors."
    share = f"{ratio:.0%}" if ratio > 0.01 else "less than 1%"
    return (
        f"In {draws} the error of {name} at θ={angle} looks {share} as large as it is: "
        "the rest comes from estimates too rare to be seen."
    )


def _ratios(found: Curves) -> list[tuple[float, str, str]]:
    """Return empirical over exact error, estimator and angle, wherever the estimator is not exact."""
    return [
        (empirical / exact, curve.called, angle_text(angle))
        for curve in found.curves
        for angle, exact, empirical in zip(
            found.sampled_angles, found.exact_where_sampled(curve), curve.empirical, strict=True
        )
        if exact > ROUNDING
    ]


def _capital(text: str) -> str:
    """Put the first letter in upper case and leave the rest as it is."""
    return text[0].upper() + text[1:]


def _peak(found: Curves, curve: Curve) -> str:
    return f"{number(curve.largest)} at θ={angle_text(found.peak(curve))}"

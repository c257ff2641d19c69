"""What a result says, in sentences that are computed from its numbers."""

from __future__ import annotations

import math

from hrf_paper.experiments.angles.measure import Curve, Result

__all__ = ["ROUNDING", "TIE", "angle_text", "capital", "digits", "number_text", "sentences"]

# An error below this is rounding: the estimator is exact there.
ROUNDING = 1e-12
# Errors that differ by less than this share are equal.
TIE = 1e-9


def sentences(result: Result) -> list[str]:
    """Which estimator is best where, and how far the draws can be trusted."""
    return [_about_maxima(result), _about_ranges(result), _about_draws(result)]


def _about_maxima(result: Result) -> str:
    ordered = sorted(result.curves, key=lambda curve: curve.largest)
    best, (free, second) = ordered[0], [curve for curve in ordered if not curve.fitted][:2]
    text = f"{capital(_called(best))} has the smallest maximal error, {_peak(result, best)}"
    if best.fitted:
        text += (
            f", but it was fitted to these very pairs; of the estimators that see no data, {_called(free)} "
            f"has the smallest, {_peak(result, free)}"
        )
    tie = math.isclose(free.largest, second.largest, rel_tol=TIE)
    rival = "has the same" if tie else f"follows with {number_text(second.largest)}"
    return f"{text}, with {free.flops:,} FLOPs a vector; {_called(second)} {rival} and {second.flops:,}."


def _about_ranges(result: Result) -> str:
    ranges = result.winners()
    if len(ranges) == 1:
        return f"{capital(_called(ranges[0][0]))} has the smallest error at every angle between 0 and π."
    parts = [
        f"{_called(curve)} from {angle_text(start)} to {angle_text(end)}" for curve, start, end in ranges
    ]
    return f"The smallest error by angle: {', '.join(parts)}."


def _about_draws(result: Result) -> str:
    draws = f"{result.settings.draws:,} draws"
    ratios = [
        (empirical / exact, _called(curve), angle_text(angle))
        for curve in result.curves
        for angle, exact, empirical in zip(
            result.sampled_angles, result.exact_where_sampled(curve), curve.empirical, strict=True
        )
        if exact > ROUNDING
    ]
    ratio, name, angle = min(ratios)
    if ratio > 0.8:
        largest = max(abs(ratio - 1) for ratio, _, _ in ratios)
        return f"The errors seen in {draws} lie within {largest:.0%} of the exact ones."
    share = f"{ratio:.0%}" if ratio > 0.01 else "less than 1%"
    return (
        f"In {draws} the error of {name} at θ={angle} looks {share} as large as it is: "
        "the rest comes from estimates too rare to be seen."
    )


def _called(curve: Curve) -> str:
    """The name as it stands in a sentence."""
    return f"the {curve.name}" if "hybrid" in curve.name else curve.name


def capital(text: str) -> str:
    """The text with its first letter in upper case, the others as they are."""
    return text[0].upper() + text[1:]


def angle_text(share: float) -> str:
    """An angle in units of π, in words of at most five characters."""
    return {0.0: "0", 1.0: "π"}.get(share, f"{share:.2f}π")


def _peak(result: Result, curve: Curve) -> str:
    return f"{number_text(curve.largest)} at θ={angle_text(result.peak(curve))}"


def number_text(value: float) -> str:
    """Two to three digits in at most six characters."""
    if value <= ROUNDING:
        return "0"
    if 0.00995 <= value < 9999.5:
        decimals = 3 if value < 0.9995 else 2 if value < 9.995 else 1 if value < 99.95 else 0
        return f"{value:.{decimals}f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def digits(value: float) -> str:
    """The same, but with all digits before the point where there are many."""
    return f"{value:,.0f}" if value >= 9999.5 else number_text(value)

"""Statements of Section 3 on the largest relative error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.max_relative_error.measure import BOUNDS, LARGEST, SMALL_ANGLE, Settings
from hrf_paper.experiments.shared.draws import CLOSE
from hrf_paper.experiments.verdicts import Claim

__all__ = ["claims"]

_SLOPE = -0.95  # slopes below count as −1
_LIMIT = 1e-3  # share of the limit within which a ratio reaches it


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Judge Section 3."""
    judged = (_smaller, _bound, _slope, _limits, _closed_forms)
    return [claim(settings, results) for claim in judged]


def _by_n(settings: Settings, results: Results) -> dict[int, dict[str, Any]]:
    return {n: results[f"n = {n}"] for n in settings.n_coefficient_projections}


def _largest_ratio(settings: Settings, results: Results, bound: str) -> float:
    """Return the largest ratio of the exact error and a bound, over all n and radii."""
    return max(
        share / limit
        for part in _by_n(settings, results).values()
        for share, limit in zip(part["exact"], part[bound], strict=True)
    )


def _smaller(settings: Settings, results: Results) -> Claim:
    shares = [share for part in _by_n(settings, results).values() for share in part["exact"]]
    return Claim(
        claim="The angular hybrid has a smaller largest error than either base (Section 3).",
        paper="smaller",
        ours=f"at most {max(shares):.3f} of theirs",
        matched=sum(share < 1 for share in shares),
        total=len(shares),
        cases="radii and n",
        matching="equal m",
        sentence=f"For r from 1 to {settings.largest_radius:g} and n of {_listed(settings.n_coefficient_projections)} "
        f"the largest error of the hybrid is at most {max(shares):.3f} of the largest error of its bases at equal m.",
    )


def _bound(settings: Settings, results: Results) -> Claim:
    found = _by_n(settings, results)
    failing = {n: part["crossing"] for n, part in found.items() if part["crossing"] is not None}
    where = ", ".join(f"{r:.2f} (n = {n})" for n, r in failing.items())
    if failing:
        sentence = (
            f"The exact error exceeds the printed bound from r = {where} on, by a factor of up to "
            f"{_largest_ratio(settings, results, 'printed'):.2f} for r ≤ {settings.largest_radius:g}; "
            "the proof drops a factor r."
        )
    else:
        sentence = f"The exact error stays below the printed bound up to r = {LARGEST:g}."
    return Claim(
        claim="The largest error is at most (W/(r√2m)) √(1/π − 1/(nπ) + 1/(n√π)) for r ≥ 1 (Theorem 3.5).",
        paper="for every r and n",
        ours=f"false from r = {where}" if failing else f"true up to r = {LARGEST:g}",
        matched=len(found) - len(failing),
        total=len(found),
        cases="values of n",
        criterion=f"up to r = {LARGEST:g}",
        matching="equal m",
        sentence=sentence,
    )


def _slope(settings: Settings, results: Results) -> Claim:
    slopes = {n: part["slope"] for n, part in _by_n(settings, results).items()}
    top = settings.largest_radius
    return Claim(
        claim="The largest error scales as e^{2r²}/r in r (Section 3).",
        paper="slope −1",
        ours=", ".join(f"{slope:.2f} (n = {n})" for n, slope in slopes.items()),
        matched=sum(slope < _SLOPE for slope in slopes.values()),
        total=len(slopes),
        cases="slopes",
        criterion=f"below {_SLOPE:g}",
        matching="equal m",
        sentence=f"Between r = {top / 2:g} and {top:g} the share of the bases' error falls like "
        f"r to the power {_listed(f'{slope:.2f}' for slope in slopes.values())} for n of {_listed(slopes)}: "
        "like 1/√r at a fixed n; 1/r would need an n that grows with r.",
    )


def _limits(settings: Settings, results: Results) -> Claim:
    gaps = [abs(value - 1) for part in _by_n(settings, results).values() for value in part["limits"]]
    return Claim(
        claim="ε/√θ tends to W(r)/√(2πmn) as θ → 0, and ε/√(π − θ) as θ → π (Theorem 3.5).",
        paper="W(r)/√(2πmn)",
        ours=f"the same to {max(gaps):.0e}",
        matched=sum(gap < _LIMIT for gap in gaps),
        total=len(gaps),
        cases="limits",
        criterion=f"within {_LIMIT:g} of the limit",
        sentence=f"At {SMALL_ANGLE:g} from either end, and r = 1.5, the ratio differs from the limit by "
        f"{max(gaps):.0e} of it.",
    )


def _closed_forms(settings: Settings, results: Results) -> Claim:
    gaps = [value for r in settings.drawn_radii for value in results[f"draws, r = {r:g}"]["deviations"]]
    ratios = {name: _largest_ratio(settings, results, name) for name in BOUNDS}
    return Claim(
        claim="The exact errors are the errors of the estimator (draws against closed forms).",
        paper="Theorem 3.1, Lemma 3.2",
        ours=f"within {max(gaps):.1f} standard errors",
        matched=sum(gap <= CLOSE for gap in gaps),
        total=len(gaps),
        cases="errors",
        criterion=f"within {CLOSE:g} standard errors",
        sentence=f"In {settings.draws:,} draws at each of the radii {_listed(f'{r:g}' for r in settings.drawn_radii)} "
        f"the errors at 17 angles lie within {max(gaps):.1f} standard errors of the closed form. "
        f"The error never exceeds the corrected bound (largest ratio {ratios['corrected']:.3f}), nor the tight bound "
        f"({ratios['tight']:.3f}).",
    )


def _listed(values: Iterable[Any]) -> str:
    texts = [str(value) for value in values]
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else texts[0]

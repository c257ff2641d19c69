"""Statements of Section 4.1 and Appendix G."""

from __future__ import annotations

from hrf.report import number
from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.pointwise.measure import STEPS, Settings, at, share_of_wins, wins
from hrf_paper.experiments.shared.estimators import BASES, HYBRIDS, MATCHINGS
from hrf_paper.experiments.verdicts import Claim

__all__ = ["claims"]

_SIMILAR = 0.8  # share of the angular hybrid's gain from which on a gain is similar
_NEAR = 0.1  # share of the exact error within which an empirical error shows it


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Judge Section 4.1 and Appendix G."""
    return [
        *(_largest(settings, results, matching) for matching in MATCHINGS),
        _everywhere(settings, results),
        _gaussian(settings, results),
        _draws(settings, results),
    ]


def _largest(settings: Settings, results: Results, matching: str) -> Claim:
    texts, hits = [], []
    for radius in settings.radii:
        found = {name: max(part["exact"]) for name, part in at(results, radius, matching).items()}
        hybrid = found.pop("angular hybrid")
        rival = min(found.values())
        hits.append(hybrid < rival)
        texts.append(f"{number(hybrid)} against {number(rival)} (r = {radius:g})")
    return Claim(
        claim="The angular hybrid has a smaller largest relative error than the other estimators (Section 4.1).",
        paper="smallest",
        ours=", ".join(texts),
        matched=sum(hits),
        total=len(hits),
        cases="radii",
        matching=matching,
        sentence=f"With {matching} the exact largest error of the angular hybrid against the best of the "
        f"other estimators is {', '.join(texts)}.",
    )


def _everywhere(settings: Settings, results: Results) -> Claim:
    found = [at(results, radius, matching) for matching in MATCHINGS for radius in settings.radii]
    shares = [share_of_wins(estimators, "angular hybrid") for estimators in found]
    hits = [hit for estimators in found for hit in wins(estimators, "angular hybrid")]
    return Claim(
        claim="The angular hybrid most accurately approximates the softmax kernel (Section 4.1).",
        paper="most accurate",
        ours=f"at {min(shares):.0%} to {max(shares):.0%} of the angles",
        matched=sum(hits),
        total=len(hits),
        cases="angles",
        matching="all three",
        sentence=f"It has the smallest exact error of the four at {min(shares):.0%} to {max(shares):.0%} of the "
        "angles, depending on the matching and r; elsewhere another estimator has.",
    )


def _gaussian(settings: Settings, results: Results) -> Claim:
    gains = []
    for radius in settings.radii:
        largest = {name: max(part["exact"]) for name, part in at(results, radius, "equal FLOPs").items()}
        base = min(largest[name] for name in BASES)
        gains.append([base / largest[name] for name in HYBRIDS])
    texts = [f"{a:.1f} and {g:.1f} (r = {r:g})" for (a, g), r in zip(gains, settings.radii, strict=True)]
    return Claim(
        claim="Similar gains as for the angular hybrid are obtained by the Gaussian hybrid (Figure 2).",
        paper="similar",
        ours=f"factors {', '.join(texts)}",
        matched=sum(gaussian > _SIMILAR * angular for angular, gaussian in gains),
        total=len(gains),
        cases="radii",
        criterion=f"at least {_SIMILAR:.0%} of the gain",
        matching="equal FLOPs",
        sentence=f"At equal FLOPs and σ = {settings.sigma:g} the largest error of the bases is divided by these "
        f"factors, for the angular and the Gaussian hybrid: {', '.join(texts)}.",
    )


def _draws(settings: Settings, results: Results) -> Claim:
    bounded = [
        value for key, part in results.items() if "trigonometric" in key for value in part["deviations"]
    ]
    step = STEPS // settings.angles
    ratios = [
        (empirical / exact, key, k / settings.angles)
        for key, part in results.items()
        for k, (exact, empirical) in enumerate(zip(part["exact"][::step], part["seen"], strict=True))
        if exact > 1e-9
    ]
    low, key, angle = min(ratios)
    high = max(ratios)[0]
    return Claim(
        claim=f"Empirical relative errors of {settings.draws:,} estimates show the errors (Figures 2 and 5).",
        paper="shown as the errors",
        ours=f"{low:.2f} to {high:.2f} of the exact errors",
        matched=sum(abs(ratio - 1) < _NEAR for ratio, _, _ in ratios),
        total=len(ratios),
        cases="errors",
        criterion=f"within {_NEAR:.0%}",
        sentence=f"The errors seen are between {low:.2f} and {high:.2f} of the exact errors, least for {key} at "
        f"θ = {angle:.2f}π, where estimates too rare to be seen make up the rest; bounded trigonometric estimates lie "
        f"within {max(bounded):.1f} standard errors.",
    )

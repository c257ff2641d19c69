"""Statements of Lemma 3.2 and Theorem F.1."""

from __future__ import annotations

from typing import Any

from hrf.report import number
from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.lambda_estimates.measure import MOMENTS, NAMES, STEPS, Settings, key
from hrf_paper.experiments.shared.draws import CLOSE
from hrf_paper.experiments.verdicts import Claim

__all__ = ["claims", "worst"]

_LEMMAS = {
    "angular": "E λ̂ = θ/π and E λ̂² = (θ/π)(θ/π − θ/(nπ) + 1/n) (Lemma 3.2).",
    "Gaussian": "E λ̂² and E(1 − λ̂)² of the Gaussian coefficient (Theorem F.1).",
}


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Judge Lemma 3.2 and Theorem F.1."""
    return [
        *(_agreement(settings, results, name) for name in NAMES),
        _no_variance(settings, results),
        _orthogonal(settings, results),
    ]


def worst(part: dict[str, Any]) -> float:
    """Return the largest deviation of all moments, in standard errors."""
    return max(value for moment in MOMENTS for value in part[moment]["deviations"])


def _agreement(settings: Settings, results: Results, name: str) -> Claim:
    gaps = [
        value
        for part_name, part in results.items()
        if part_name.startswith(f"{name}, ")
        for moment in MOMENTS
        for value in part[moment]["deviations"]
    ]
    return Claim(
        claim=_LEMMAS[name],
        paper="closed form",
        ours=f"within {max(gaps):.1f} standard errors",
        matched=sum(gap <= CLOSE for gap in gaps),
        total=len(gaps),
        cases="moments",
        criterion=f"within {CLOSE:g} standard errors",
        sentence=f"All {len(gaps)} moments of the {name} coefficient over {settings.draws:,} draws, iid and "
        f"orthogonal, lie within {max(gaps):.1f} standard errors of the closed forms.",
    )


def _no_variance(settings: Settings, results: Results) -> Claim:
    large = settings.n_projections[-1]
    ends = {name: [results[key(name, large)]["variance"][k] for k in (0, -1)] for name in NAMES}
    angular, gaussian = ([number(value) for value in ends[name]] for name in NAMES)
    return Claim(
        claim="The angular coefficient has no variance at θ = 0 and at θ = π (Section 3).",
        paper="0 at both ends",
        ours=f"{angular[0]} and {angular[1]}",
        matched=sum(value == 0 for value in ends["angular"]),
        total=2,
        cases="ends",
        sentence=f"The variance of the angular coefficient is {angular[0]} at 0 and {angular[1]} at π; the variance of "
        f"the Gaussian coefficient with n = {large} is {gaussian[0]} at 0 and {gaussian[1]} at π.",
    )


def _orthogonal(settings: Settings, results: Results) -> Claim:
    small, large = settings.n_projections[0], settings.n_projections[-1]
    middle = STEPS // 2
    gains = {
        name: results[key(name, large, "orthogonal")]["variance"][middle]
        / results[key(name, large)]["variance"][middle]
        for name in NAMES
    }
    outside = results[key("Gaussian", small)]["outside"]
    return Claim(
        claim="Orthogonal projections for the coefficients too, as in HRF-ort (Section 4.1)?",
        paper="—",
        ours=f"variance × {gains['angular']:.2f} (angular), {gains['Gaussian']:.2f} (Gaussian)",
        matching=f"n = {large}",
        sentence=f"At θ = π/2 and n = {large} orthogonal rows multiply the variance by {gains['angular']:.2f} for "
        f"the angular and by {gains['Gaussian']:.2f} for the Gaussian coefficient; with n = {small} the "
        f"Gaussian estimate lies outside [0, 1] in {outside:.0%} of the draws, the angular estimate never.",
    )

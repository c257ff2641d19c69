"""Statements of Figure 1."""

from __future__ import annotations

from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.mse_surface.measure import NAMES, Settings, ends
from hrf_paper.experiments.shared.draws import CLOSE
from hrf_paper.experiments.verdicts import Claim

__all__ = ["called", "claims"]

# Whether the MSE vanishes at θ = 0 and at θ = π.
_PAPER = {"trigonometric": (True, False), "FAVOR+": (False, True), "angular hybrid": (True, True)}


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Judge Figure 1."""
    return [_ends(settings, results), _between(settings, results), _closed_forms(settings, results)]


def _ends(settings: Settings, results: Results) -> Claim:
    found = {name: ends(results, name) for name in NAMES}
    hits = [
        seen == said
        for name in NAMES
        for row in found[name]
        for seen, said in zip(row, _PAPER[name], strict=True)
    ]
    where = {name: _where(*(all(column) for column in zip(*found[name], strict=True))) for name in NAMES}
    return Claim(
        claim="Only the angular hybrid's MSE goes to zero at both θ = 0 and θ = π (Figure 1).",
        paper="zero at both ends",
        ours=", ".join(f"{name}: {where[name]}" for name in NAMES),
        matched=sum(hits),
        total=len(hits),
        cases="ends",
        matching="equal m",
        sentence=f"At all {settings.n_radii} lengths up to {settings.largest_radius:g} the exact MSE is zero "
        + "; ".join(f"{where[name]} for {called(name)}" for name in NAMES)
        + ".",
    )


def _between(settings: Settings, results: Results) -> Claim:
    below, between = _compared(results)
    n = settings.n_coefficient_projections
    return Claim(
        claim="Is the hybrid better than both of its bases away from the ends?",
        paper="—",
        ours=f"below both bases on {below:.0%} of the grid",
        matching="equal m",
        sentence=f"With n = {n} its MSE lies between the MSEs of the bases on {between:.0%} of the grid and below "
        f"both on {below:.0%}"
        + (": it averages their MSEs with weights θ/π and 1 − θ/π." if n == 1 else "."),
    )


def _compared(results: Results) -> tuple[float, float]:
    """Return the shares of the grid, ends aside, where the hybrid's MSE is below both bases, and between them."""
    below = between = count = 0
    for rows in zip(*(results[name]["exact"] for name in NAMES), strict=True):
        for trigonometric, positive, hybrid in list(zip(*rows, strict=True))[1:-1]:
            low, high = sorted((trigonometric, positive))
            count += 1
            below += hybrid < low * (1 - 1e-9)
            between += low * (1 - 1e-9) <= hybrid <= high * (1 + 1e-9)
    return below / count, between / count


def _closed_forms(settings: Settings, results: Results) -> Claim:
    light = f"{settings.drawn_radii[0]:g}"
    gaps = [value for name in NAMES for value in results[name]["drawn"][light]["deviations"]]
    return Claim(
        claim="The exact MSEs are the MSEs of the estimators (draws against closed forms).",
        paper="Lemma 2.2, Theorem 3.1",
        ours=f"within {max(gaps):.1f} standard errors",
        matched=sum(gap <= CLOSE for gap in gaps),
        total=len(gaps),
        cases="MSEs",
        criterion=f"within {CLOSE:g} standard errors",
        sentence=f"In {settings.draws:,} draws at r = {light} the MSEs of all three lie within {max(gaps):.1f} "
        "standard errors of the closed forms; at larger r a few rare draws dominate the MSE of positive features.",
    )


def called(name: str) -> str:
    """Return the name as it stands in a sentence."""
    return {"trigonometric": "trigonometric features", "FAVOR+": "FAVOR+"}.get(name, f"the {name}")


def _where(at_zero: bool, at_pi: bool) -> str:
    texts = {(True, True): "at both ends", (True, False): "at 0 only", (False, True): "at π only"}
    return texts.get((at_zero, at_pi), "at neither end")

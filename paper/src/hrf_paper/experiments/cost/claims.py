"""Statements of Section 3 and the appendices on cost."""

from __future__ import annotations

from hrf_paper.experiments.cost.measure import PAIRED_DIMS, PAIRS, Settings, by_size, paired_shares
from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.verdicts import Claim

__all__ = ["claims"]

_FORMULA = "2d(m + n) + 8m + n + 4mn"
_SIMILAR = (0.8, 1.25)  # of the base's FLOPs


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Judge Section 3 and the appendices."""
    return [_operations(settings, results), _similar(results), _gains(settings, results)]


def _operations(settings: Settings, results: Results) -> Claim:
    found = by_size(settings, results).values()
    exact = [part["flops"]["hybrid"] == part["formula"] for part in found]
    ratios = [part["flops"]["base"] / part["flops"]["hybrid"] for part in found]
    return Claim(
        claim="Θ(mn)-wide features take O(nd + md + mn) by the hybrid, O(mnd) by a base (Section 3).",
        paper="O(nd + md + mn)",
        ours=_FORMULA if all(exact) else "another count",
        matched=sum(exact),
        total=len(exact),
        cases="sizes",
        matching="equal width",
        sentence=f"The hybrid takes {_FORMULA} operations per vector, {min(ratios):.1f} to "
        f"{max(ratios):.1f} times fewer than a base of the same width for d of {settings.dims[0]} to "
        f"{settings.dims[-1]} and m = n of {settings.sizes[0]} to {settings.sizes[-1]}.",
    )


def _similar(results: Results) -> Claim:
    shares = paired_shares(results)
    similar = [_SIMILAR[0] < share < _SIMILAR[1] for share in shares]
    return Claim(
        claim="Hybrids of (m, n) = (D/8, 8) have a similar number of FLOPS as bases with D features (Section 4).",
        paper="similar",
        ours=f"{min(shares):.2f} to {max(shares):.2f} of them",
        matched=sum(similar),
        total=len(similar),
        cases="sizes",
        criterion=f"between {_SIMILAR[0]:g} and {_SIMILAR[1]:g} of the FLOPs",
        matching="m·n = D",
        sentence=f"With D from {PAIRS[0]} to {PAIRS[-1]} rows and d of {', '.join(map(str, PAIRED_DIMS))} "
        f"the hybrid takes {min(shares):.2f} to {max(shares):.2f} of the operations of the base: the comparisons "
        "are harder on the hybrid than the paper says.",
    )


def _gains(settings: Settings, results: Results) -> Claim:
    found = by_size(settings, results)
    speeds = {size: part["timings"]["base"] / part["timings"]["hybrid"] for size, part in found.items()}
    faster = sum(speed > 1 for speed in speeds.values())
    (d, m), at_largest = list(speeds.items())[-1]
    return Claim(
        claim="Substantial computational gains (Appendix on the discussion of Theorem 3.5).",
        paper="substantial",
        ours=f"{min(speeds.values()):.1f} to {max(speeds.values()):.1f} times as fast",
        matched=faster,
        total=len(speeds),
        cases="sizes",
        criterion="faster at all",
        matching="equal width",
        sentence=f"Measured on {settings.vectors} vectors the hybrid is faster than a base of the same width at "
        f"{faster} of {len(speeds)} sizes, {at_largest:.1f} times at d = {d}, m = n = {m}.",
        measured=True,
    )

"""The paper's statements on the step-stone task, judged by returns on unseen fields and FLOPs per decision."""

from __future__ import annotations

import math
import statistics

from hrf.report import number
from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.locomotion.measure import HYBRID, Settings
from hrf_paper.experiments.locomotion.outcomes import Frame, Outcome, frames, outcome
from hrf_paper.experiments.locomotion.printed import FEWER_FLOPS
from hrf_paper.experiments.verdicts import Claim

__all__ = ["claims"]

_BASELINE = "FAVOR+ 256"
_SIMILAR = 0.95
_SMALL = ("FAVOR+ small", "Trig small")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Judge quality at fewer FLOPs, divergence and attention to gaps, and say what the task itself can tell."""
    found = {method: outcome(settings, results, method) for method in settings.methods}
    judged = [_quality(found), _looks_at_gaps(frames(results))]
    if any(name in found for name in _SMALL):
        judged.insert(1, _diverges(settings, found))
    return [*judged, _needs_sight(found), _cheapest(found)]


def _quality(found: dict[str, Outcome]) -> Claim:
    hybrid, baseline = found[HYBRID], found[_BASELINE]
    ratio = baseline.flops / hybrid.flops
    similar = bool(hybrid.returns) and not hybrid.mean < _SIMILAR * baseline.mean
    half = (baseline.flops - baseline.ranking_flops + baseline.ranking_flops / 2) / hybrid.flops
    return Claim(
        claim="The angular hybrid with m = n = 8 is as good as FAVOR+ with 256 projections, with 3 times fewer FLOPs.",
        paper=f"similar returns, {FEWER_FLOPS:g}× fewer FLOPs",
        ours=f"return {hybrid.text} against {baseline.text}, {ratio:.1f}× fewer FLOPs per decision",
        matched=int(similar) + int(ratio >= FEWER_FLOPS),
        total=2,
        cases="parts of the statement",
        criterion="the mean return is at least 95 % of that of FAVOR+; FLOPs are those of a whole decision",
        sentence=f"{HYBRID}: return {hybrid.text}, {hybrid.share} of the fields crossed, "
        f"{number(hybrid.flops, grouped=True)} FLOPs per decision; {_BASELINE}: {baseline.text}, {baseline.share}, "
        f"{number(baseline.flops, grouped=True)}. A projection gives FAVOR+ two features; with 256 features instead of "
        f"256 projections the hybrid would need {half:.1f} times fewer FLOPs. Mean returns of the runs: "
        f"{_listed(hybrid)} against {_listed(baseline)}; ± is the 95 % interval of their mean.",
    )


def _diverges(settings: Settings, found: dict[str, Outcome]) -> Claim:
    names = [name for name in _SMALL if name in found]
    blind = found["blind"].mean
    failed = {name: found[name].diverged + sum(r <= blind for r in found[name].returns) for name in names}
    listed = "; ".join(
        f"{name}: {found[name].diverged} of {settings.runs} runs not finite, return {found[name].text}, "
        f"{found[name].share} crossed"
        for name in names
    )
    return Claim(
        claim="Regular features of the hybrid's size do not train: variance makes the loss NaN (said of sweeping).",
        paper="five configurations diverge",
        ours=f"{sum(failed.values())} of {settings.runs * len(names)} runs",
        matched=sum(failed.values()),
        total=settings.runs * len(names),
        cases="runs",
        criterion="not finite, or no better than the blind policy",
        sentence=f"{listed}. Evolution strategies use ranks of patches and of returns, so that an inaccurate estimate "
        "costs quality, and no gradient can overflow.",
    )


def _looks_at_gaps(seen: list[Frame]) -> Claim:
    """Compare how much of the gaps on the way and of everything else is kept."""
    shares = [pair for frame in seen if (pair := _kept_shares(frame)) is not None]
    more = sum(gaps > others for gaps, others in shares)
    means = [statistics.fmean(column) for column in zip(*shares, strict=True)] if shares else [0.0, 0.0]
    return Claim(
        claim="The policy learns to pay attention to the gaps (appendix).",
        paper="shown in frames",
        ours=f"{means[0]:.0%} of the pixels of gaps are kept, {means[1]:.0%} of the other pixels",
        matched=more,
        total=max(1, len(shares)),
        cases="frames with a gap",
        criterion="a larger share of the pixels of gaps is kept than of the other pixels",
        sentence=f"In {more} of {len(shares)} frames of an episode with {HYBRID}, gaps on the way keep a larger share "
        f"of their pixels than the rest of the images; on average {means[0]:.0%} against {means[1]:.0%}.",
    )


def _kept_shares(frame: Frame) -> tuple[float, float] | None:
    """Return the shares of gaps and of the rest that are kept, ``None`` if there is no gap to be seen."""
    from hrf_paper.locomotion.replay import gap_pixels

    gap = gap_pixels(frame.depth)
    return (float(frame.kept[gap].mean()), float(frame.kept[~gap].mean())) if gap.any() else None


def _needs_sight(found: dict[str, Outcome]) -> Claim:
    listed = ", ".join(
        f"{name} {o.text} ({o.share} crossed)"
        for name, o in found.items()
        if name in ("exact", "uniform", "blind")
    )
    best = max(found, key=lambda name: found[name].mean if found[name].returns else -math.inf)
    return Claim(
        claim="Does the task need sight, and does it need attention?",
        paper="not asked",
        ours=f"blind {found['blind'].text}, best {best} {found[best].text}",
        sentence=f"Returns on unseen fields: {listed}. A policy that reads all patches has no attention at all.",
    )


def _cheapest(found: dict[str, Outcome]) -> Claim:
    """Order the methods that rank patches by FLOPs."""
    ranked = sorted((n for n in found if found[n].ranking_flops), key=lambda name: found[name].flops)
    listed = "; ".join(f"{n} {number(found[n].flops, grouped=True)}: {found[n].text}" for n in ranked)
    return Claim(
        claim="What does each method reach for its FLOPs, exact attention among them?",
        paper="not asked",
        ours=f"fewest FLOPs: {ranked[0]}",
        sentence=f"FLOPs per decision and return: {listed}. With 96 patches exact attention is cheap; features pay "
        "with more patches, since their cost grows linearly.",
    )


def _listed(found: Outcome) -> str:
    return ", ".join(f"{value:.2f}" for value in found.returns)

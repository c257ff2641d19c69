"""The paper's two statements on sweeping, and what the task itself can tell."""

from __future__ import annotations

from typing import Any

from hrf_paper.experiments.experiment import Results
from hrf_paper.experiments.sweeping.measure import Settings, key
from hrf_paper.experiments.sweeping.printed import DIVERGED, FEWER_FLOPS
from hrf_paper.experiments.sweeping.shares import Share, method_parts, share
from hrf_paper.experiments.verdicts import Claim

__all__ = ["claims"]

_HYBRID, _REGULAR = "HRF-A (8,8)", "FAVOR+ 256"
_ENOUGH, _BLIND_MOST = 85.0, 40.0  # percent of the balls: a policy that works, and one that cannot see
_MARGIN = 5.0  # points that count as the same quality


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Judge quality and FLOPs of the hybrid, and NaN losses of regular features; say what sight is worth."""
    shares = {name: share(settings, results, name) for name in settings.methods}
    found = []
    if _HYBRID in shares and _REGULAR in shares:
        found += [_quality(shares), _flops(settings, results)]
    found.append(_diverged(settings, results))
    if {"exact", "blind"} <= shares.keys():
        found.append(_sight(shares))
    if {"exact", "uniform"} <= shares.keys():
        found.append(_attention(shares))
    return found


def _quality(shares: dict[str, Share]) -> Claim:
    hybrid, regular = shares[_HYBRID], shares[_REGULAR]
    pairs = list(zip(hybrid.values, regular.values, strict=True))
    good = [a >= b - _MARGIN for a, b in pairs]
    listed = "; ".join(f"{a:.0f} against {b:.0f} %" for a, b in pairs)
    return Claim(
        claim=f"{_HYBRID} gives policies of the same quality as {_REGULAR}.",
        paper="similar curves",
        ours=f"{hybrid.text} % against {regular.text} % of the balls",
        matched=sum(good),
        total=len(good),
        cases="trainings",
        criterion=f"delivers at most {_MARGIN:.0f} points less, seed by seed",
        sentence=f"Delivered on unseen starts, training by training: {listed}.",
    )


def _flops(settings: Settings, results: Results) -> Claim:
    """Compare FLOPs of attention, of the encoder and of the whole decision, at both sizes of the image."""
    counts: dict[str, Any] = {
        name: results[key(name, 0, settings.learning_rates[0])]["flops"] for name in (_HYBRID, _REGULAR)
    }
    ratios: dict[str, float] = {}
    for size in ("ours", "paper's image"):
        hybrid, regular = (counts[name][size] for name in (_HYBRID, _REGULAR))
        ratios |= {
            f"attention, {size}": regular["attention"] / hybrid["attention"],
            f"encoder, {size}": regular["encoder"] / hybrid["encoder"],
        }
    listed = ", ".join(f"{name} {ratio:.2f}×" for name, ratio in ratios.items())
    return Claim(
        claim=f"{_HYBRID} needs 3 times fewer FLOPs than {_REGULAR}.",
        paper="3 times fewer",
        ours=f"{max(ratios.values()):.2f} times fewer at most",
        matched=sum(ratio >= FEWER_FLOPS for ratio in ratios.values()),
        total=len(ratios),
        cases="ratios",
        criterion="at least 3",
        sentence=f"FLOPs of {_REGULAR} over those of {_HYBRID}: {listed}. The search costs the same in both.",
    )


def _diverged(settings: Settings, results: Results) -> Claim:
    """Count trainings with regular features whose loss was not a number."""
    tried: dict[str, int | None] = {name: results[name]["diverged"] for name in settings.divided}
    for name in settings.methods:
        if name.startswith(("FAVOR+", "Trig")):
            for i, part in enumerate(method_parts(settings, results, name)):
                tried[f"{name}, training {i}"] = part["diverged"]
    broken = {name: step for name, step in tried.items() if step is not None}
    listed = "; ".join(f"{name}: step {step}" for name, step in broken.items()) or "none"
    return Claim(
        claim="Other settings of regular random features do not train: the loss is NaN.",
        paper=f"{DIVERGED} of {DIVERGED} settings",
        ours=f"{len(broken)} of {len(tried)} trainings",
        matched=len(broken),
        total=len(tried),
        cases="trainings",
        criterion="the loss is not a finite number at some step",
        sentence=f"Losses that were not a number, with the first such step: {listed}. The settings that are divided as "
        f"is were trained for {settings.divided_steps} steps, without the library's rule for small denominators.",
    )


def _sight(shares: dict[str, Share]) -> Claim:
    exact, blind = shares["exact"], shares["blind"]
    met = "are" if exact.mean >= _ENOUGH and blind.mean < _BLIND_MOST else "are not both"
    return Claim(
        claim="Does the task need sight, and is it learned?",
        paper="not asked",
        ours=f"exact attention {exact.text} %, blind {blind.text} % of the balls",
        sentence=f"Of the balls on unseen starts, exact attention delivers {exact.mean:.1f} % and a policy without an "
        f"image {blind.mean:.1f} %; at least {_ENOUGH:.0f} % and below {_BLIND_MOST:.0f} % {met} reached.",
    )


def _attention(shares: dict[str, Share]) -> Claim:
    exact, uniform = shares["exact"], shares["uniform"]
    listed = ", ".join(
        f"{name} {s.text} %" for name, s in sorted(shares.items(), key=lambda item: -item[1].mean)
    )
    return Claim(
        claim="Does the task need attention: how much do uniform weights lose?",
        paper="not asked",
        ours=f"uniform {uniform.mean - exact.mean:+.0f} points",
        sentence=f"Delivered shares, from the largest: {listed}. With queries and keys of length one, weights of exact "
        "attention differ by a factor of e² at most, so that they are never far from uniform.",
    )

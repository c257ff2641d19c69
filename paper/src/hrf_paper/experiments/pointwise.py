"""Pointwise estimation of the softmax kernel on a sphere: quantiles of estimates, relative errors over θ.

Exact errors stand beside the errors of the draws. They differ where a few rare, huge estimates dominate the error:
for positive features at small angles, and never for trigonometric features, whose estimates are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import hrf
from hrf.report import number
from hrf_paper.experiments.estimators import (
    BASES,
    HYBRIDS,
    MATCHINGS,
    Estimator,
    all_estimates,
    deviations,
    fractions,
    matched,
    on_sphere,
    root_and_error,
)
from hrf_paper.experiments.experiment import Claim, Experiment, Part, Results, Table
from hrf_paper.experiments.plotting import COLOURS, GREY, angle_axis, bare, canvas, headline, log_axis

# Estimates of the kernel and their relative errors, exact and over draws.

STEPS = 160  # of the exact errors over the angle, a multiple of the steps of the draws


@dataclass(frozen=True)
class PointwiseSettings:
    """``features`` is the number D of projections of the bases; n and σ of the hybrids are not in the paper."""

    dim: int = 64
    radii: tuple[float, ...] = (1.0, 1.25, 1.5)
    features: int = 128
    n_coefficient_projections: int = 8
    sigma: float = 1.0
    draws: int = 10_000
    angles: int = 16
    seed: int = 0


def parts(settings: PointwiseSettings) -> dict[str, Part]:
    """Return one part per radius and estimator, for hybrids one per matching."""
    work: dict[str, Part] = {}
    for radius in settings.radii:
        for name in BASES:
            estimator = Estimator(name, settings.dim, settings.features)
            work[key(radius, name)] = partial(_part, settings, estimator, radius)
        for matching in MATCHINGS:
            for name in HYBRIDS:
                n, sigma = settings.n_coefficient_projections, settings.sigma
                hybrid = Estimator(name, settings.dim, 1, n, sigma=sigma, radius=radius)
                hybrid = matched(hybrid, matching, settings.features)
                work[key(radius, name, matching)] = partial(_part, settings, hybrid, radius)
    return work


def key(radius: float, name: str, matching: str = "") -> str:
    """Return the name of a part."""
    return f"r = {radius:g}, {name}" + (f", {matching}" if name in HYBRIDS else "")


def _part(settings: PointwiseSettings, estimator: Estimator, radius: float) -> dict[str, Any]:
    phi = estimator.one()
    x, fine = on_sphere(radius, settings.dim, fractions(STEPS))
    _, y = on_sphere(radius, settings.dim, fractions(settings.angles))
    kernel = hrf.kernels.softmax(x, y)[0]
    values = all_estimates(estimator, x, y, draws=settings.draws, seed=settings.seed)
    error, standard_error = root_and_error(values, kernel)
    exact = phi.relative_error(x, fine)[0]
    low, high = torch.quantile(values.double(), torch.tensor([0.05, 0.95], dtype=torch.float64), dim=0)
    return {
        "m": estimator.n_projections,
        "width": phi.feature_dim,
        "flops": phi.flops(),
        "kernel": kernel.tolist(),
        "low": low.tolist(),
        "high": high.tolist(),
        "exact": exact.tolist(),
        "seen": error.tolist(),
        "standard_error": standard_error.tolist(),
        "deviations": deviations(error, standard_error, exact[:: STEPS // settings.angles]),
    }


def at(results: Results, radius: float, matching: str) -> dict[str, dict[str, Any]]:
    """Return the four estimators at one radius and matching."""
    return {name: results[key(radius, name, matching)] for name in (*BASES, *HYBRIDS)}


def wins(found: dict[str, dict[str, Any]], name: str) -> list[bool]:
    """Return, for every angle but the ends, whether an estimator has the smallest exact error of all."""
    columns = zip(*(part["exact"][1:-1] for part in found.values()), strict=True)
    return [own <= min(column) for own, column in zip(found[name]["exact"][1:-1], columns, strict=True)]


def share_of_wins(found: dict[str, dict[str, Any]], name: str) -> float:
    """Return the share of angles, ends aside, where an estimator has the smallest exact error of all."""
    hits = wins(found, name)
    return sum(hits) / len(hits)


# Largest errors by radius, matching and estimator.

_HEADER = ("estimator", "r", "matching", "m", "width", "FLOPs", "largest ε", "in draws", "best at")


def tables(settings: PointwiseSettings, results: Results) -> list[Table]:
    """Show largest errors, exact and seen; bases once, hybrids once per matching."""
    rows = [
        row
        for radius in settings.radii
        for matching in MATCHINGS
        for row in _rows(settings, results, radius, matching)
    ]
    return [Table("Largest relative error over the angle", _HEADER, rows)]


def _rows(
    settings: PointwiseSettings, results: Results, radius: float, matching: str
) -> Iterator[tuple[str, ...]]:
    found = at(results, radius, matching)
    for name, part in found.items():
        if name in BASES and matching != MATCHINGS[0]:
            continue
        yield (
            name,
            f"{radius:g}",
            matching if name in HYBRIDS else f"D = {settings.features}",
            f"{part['m']}",
            f"{part['width']}",
            f"{part['flops']:,}",
            number(max(part["exact"])),
            number(max(part["seen"])),
            f"{share_of_wins(found, name):.0%}" if name in HYBRIDS else "",
        )


# Statements of Section 4.1 and Appendix G.

_SIMILAR = 0.8  # share of the angular hybrid's gain from which on a gain is similar
_NEAR = 0.1  # share of the exact error within which an empirical error shows it


def claims(settings: PointwiseSettings, results: Results) -> list[Claim]:
    """Judge Section 4.1 and Appendix G."""
    return [
        *(_largest(settings, results, matching) for matching in MATCHINGS),
        _everywhere(settings, results),
        _gaussian(settings, results),
        _draws(settings, results),
    ]


def _largest(settings: PointwiseSettings, results: Results, matching: str) -> Claim:
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
        hits=hits,
        cases="radii",
        matching=matching,
        sentence=f"With {matching} the exact largest error of the angular hybrid against the best of the "
        f"other estimators is {', '.join(texts)}.",
    )


def _everywhere(settings: PointwiseSettings, results: Results) -> Claim:
    found = [at(results, radius, matching) for matching in MATCHINGS for radius in settings.radii]
    shares = [share_of_wins(estimators, "angular hybrid") for estimators in found]
    hits = [hit for estimators in found for hit in wins(estimators, "angular hybrid")]
    return Claim(
        claim="The angular hybrid most accurately approximates the softmax kernel (Section 4.1).",
        paper="most accurate",
        ours=f"at {min(shares):.0%} to {max(shares):.0%} of the angles",
        hits=hits,
        cases="angles",
        matching="all three",
        sentence=f"It has the smallest exact error of the four at {min(shares):.0%} to {max(shares):.0%} of the "
        "angles, depending on the matching and r; elsewhere another estimator has.",
    )


def _gaussian(settings: PointwiseSettings, results: Results) -> Claim:
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
        hits=[gaussian > _SIMILAR * angular for angular, gaussian in gains],
        cases="radii",
        criterion=f"at least {_SIMILAR:.0%} of the gain",
        matching="equal FLOPs",
        sentence=f"At equal FLOPs and σ = {settings.sigma:g} the largest error of the bases is divided by these "
        f"factors, for the angular and the Gaussian hybrid: {', '.join(texts)}.",
    )


def _draws(settings: PointwiseSettings, results: Results) -> Claim:
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
        hits=[abs(ratio - 1) < _NEAR for ratio, _, _ in ratios],
        cases="errors",
        criterion=f"within {_NEAR:.0%}",
        sentence=f"The errors seen are between {low:.2f} and {high:.2f} of the exact errors, least for {key} at "
        f"θ = {angle:.2f}π, where estimates too rare to be seen make up the rest; bounded trigonometric estimates lie "
        f"within {max(bounded):.1f} standard errors.",
    )


# Bands of estimates and relative errors over the angle.

_MATCHING = "equal FLOPs"
_NAMES = (*BASES, *HYBRIDS)


def figure(settings: PointwiseSettings, results: Results) -> Figure:
    """Draw one row per radius and one column per estimator, hybrids at equal FLOPs."""
    drawing = canvas(13, 3.1 * len(settings.radii) + 1)
    found = [at(results, radius, _MATCHING) for radius in settings.radii]
    best = min(_NAMES, key=lambda name: max(found[0][name]["exact"]))
    share = max(share_of_wins(estimators, "angular hybrid") for estimators in found)
    headline(
        drawing,
        f"Smallest largest error: {best}; the angular hybrid is the most accurate at up to {share:.0%} of angles",
        f"{settings.draws:,} estimates, d = {settings.dim}, bases with {settings.features} projections and hybrids "
        "with as many FLOPs\nGrey, left axis: the kernel and 5–95 % of its estimates. Colour, right axis: relative "
        "error, exact (line) and of the draws (dots)",
    )
    panels = drawing.subplots(len(settings.radii), len(_NAMES), squeeze=False)
    for row, radius, estimators in zip(panels, settings.radii, found, strict=True):
        _draw_row(row, settings, radius, estimators)
    for axes in panels.flat:
        angle_axis(axes, label=axes in panels[-1])
    return drawing


def _draw_row(row: Any, settings: PointwiseSettings, radius: float, found: dict[str, dict[str, Any]]) -> None:
    top = 1.6 * max(max(part["exact"]) for part in found.values())
    bottom = min(value for part in found.values() for value in part["seen"][1:-1]) / 2
    for axes, (name, part) in zip(row, found.items(), strict=True):
        _draw_kernel(axes, settings, part)
        axes.set_ylim(*_kernel_limits(found))
        errors = axes.twinx()
        _draw_errors(errors, settings, part, COLOURS[name])
        errors.set_ylim(bottom, top)
        log_axis(errors)
        errors.set_ylim(bottom, top)
        title = f"{name}, r = {radius:g}\nm = {part['m']}, largest ε {number(max(part['exact']))}"
        errors.set_title(title, size=10)
        bare([axes, errors], grid=False)
        _label_outer(axes, "kernel", axes is row[0])
        _label_outer(errors, "relative error ε", axes is row[-1])


def _draw_kernel(axes: Axes, settings: PointwiseSettings, part: dict[str, Any]) -> None:
    angles = fractions(settings.angles)
    axes.fill_between(angles, part["low"], part["high"], color="#cfcfcf", linewidth=0)
    axes.plot(angles, part["kernel"], color=GREY, linewidth=1.2)
    axes.axhline(0, color="#D62728", linewidth=0.8, linestyle=":")


def _draw_errors(axes: Axes, settings: PointwiseSettings, part: dict[str, Any], colour: str) -> None:
    axes.plot(fractions(STEPS), [max(value, 1e-12) for value in part["exact"]], color=colour, linewidth=2)
    points = zip(fractions(settings.angles), part["seen"], strict=True)
    shown = [(angle, value) for angle, value in points if value > 1e-9]
    axes.plot(*zip(*shown, strict=True), "o", color=colour, markersize=3.5, mec="white", mew=0.4)


def _label_outer(axes: Axes, text: str, outer: bool) -> None:
    """Label an axis y at the edge of the figure, and remove the numbers of the other panels."""
    if outer:
        axes.set_ylabel(text)
    else:
        axes.set_yticklabels([])


def _kernel_limits(found: dict[str, dict[str, Any]]) -> tuple[float, float]:
    low = min(min(part["low"]) for part in found.values())
    high = max(max(part["high"]) for part in found.values())
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


EXPERIMENT = Experiment(
    name="pointwise",
    title="Pointwise estimation of the softmax kernel",
    source="Section 4.1 (Figure 2), Appendix G",
    full=PointwiseSettings(),
    quick=PointwiseSettings(dim=16, features=64, draws=1000, angles=8, radii=(1.0, 1.5)),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
)

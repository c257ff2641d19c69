"""Pointwise estimation of the softmax kernel on a sphere: quantiles of estimates, relative errors over θ.

Exact errors stand beside those of the draws. They part where a few rare, huge estimates make up the error: of
positive features at small angles, and of trigonometric ones nowhere, whose estimates are bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure

import hrf
from hrf_paper.experiments.shared.draws import deviations, fractions, on_sphere, root_and_error, seen
from hrf_paper.experiments.shared.estimators import BASES, HYBRIDS, MATCHINGS, Estimator, matched
from hrf_paper.experiments.experiment import Claim, Experiment, Part, Results, Table
from hrf_paper.experiments.shared.plotting import COLOURS, GREY, angle_axis, bare, canvas, headline, log_axis
from hrf_paper.experiments.shared.number_format import number_text

__all__ = ["EXPERIMENT", "Settings"]

_STEPS = 160  # of the exact errors, a multiple of those of the draws


@dataclass(frozen=True)
class Settings:
    """``features`` is the number D of projections of the bases; n and σ of the hybrids are not in the paper."""

    dim: int = 64
    radii: tuple[float, ...] = (1.0, 1.25, 1.5)
    features: int = 128
    n_coefficient_projections: int = 8
    sigma: float = 1.0
    draws: int = 10_000
    angles: int = 16
    seed: int = 0


def parts(settings: Settings) -> dict[str, Part]:
    """One a radius and estimator; hybrids once a matching."""
    work: dict[str, Part] = {}
    for radius in settings.radii:
        for name in BASES:
            estimator = Estimator(name, settings.dim, settings.features)
            work[_key(radius, name)] = partial(_part, settings, estimator, radius)
        for matching in MATCHINGS:
            for name in HYBRIDS:
                n, sigma = settings.n_coefficient_projections, settings.sigma
                hybrid = Estimator(name, settings.dim, 1, n, sigma=sigma, radius=radius)
                hybrid = matched(hybrid, matching, settings.features)
                work[_key(radius, name, matching)] = partial(_part, settings, hybrid, radius)
    return work


def _key(radius: float, name: str, matching: str = "") -> str:
    return f"r = {radius:g}, {name}" + (f", {matching}" if name in HYBRIDS else "")


def _part(settings: Settings, estimator: Estimator, radius: float) -> dict[str, Any]:
    phi = estimator.one()
    x, fine = on_sphere(radius, settings.dim, fractions(_STEPS))
    _, y = on_sphere(radius, settings.dim, fractions(settings.angles))
    kernel = hrf.kernels.softmax(x, y)[0]
    values = seen(estimator, x, y, draws=settings.draws, seed=settings.seed)
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
        "deviations": deviations(error, standard_error, exact[:: _STEPS // settings.angles]),
    }


def _at(settings: Settings, results: Results, radius: float, matching: str) -> dict[str, dict[str, Any]]:
    """The four estimators at one radius and matching."""
    return {name: results[_key(radius, name, matching)] for name in (*BASES, *HYBRIDS)}


def _share_of_wins(found: dict[str, dict[str, Any]], name: str) -> float:
    """The share of angles, ends aside, where an estimator has the smallest exact error of all."""
    columns = list(zip(*(part["exact"][1:-1] for part in found.values()), strict=True))
    mine = found[name]["exact"][1:-1]
    return sum(value <= min(column) for value, column in zip(mine, columns, strict=True)) / len(mine)


def tables(settings: Settings, results: Results) -> list[Table]:
    """Largest errors, exact and seen, by radius, matching and estimator."""
    rows = []
    for radius in settings.radii:
        for matching in MATCHINGS:
            for name, part in _at(settings, results, radius, matching).items():
                if name in BASES and matching != MATCHINGS[0]:
                    continue
                wins = _share_of_wins(_at(settings, results, radius, matching), name)
                rows.append(
                    (
                        name,
                        f"{radius:g}",
                        matching if name in HYBRIDS else f"D = {settings.features}",
                        f"{part['m']}",
                        f"{part['width']}",
                        f"{part['flops']:,}",
                        number_text(max(part["exact"])),
                        number_text(max(part["seen"])),
                        f"{wins:.0%}" if name in HYBRIDS else "",
                    )
                )
    header = ("estimator", "r", "matching", "m", "width", "FLOPs", "largest ε", "in draws", "best at")
    return [Table("Largest relative error over the angle", header, rows)]


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Of Section 4.1 and Appendix G."""
    return [
        *(_largest(settings, results, matching) for matching in MATCHINGS),
        _everywhere(settings, results),
        _gaussian(settings, results),
        _draws(settings, results),
    ]


def _largest(settings: Settings, results: Results, matching: str) -> Claim:
    texts, wins = [], []
    for radius in settings.radii:
        found = {name: max(part["exact"]) for name, part in _at(settings, results, radius, matching).items()}
        hybrid = found.pop("angular hybrid")
        rival = min(found.values())
        wins.append(hybrid < rival)
        texts.append(f"{number_text(hybrid)} against {number_text(rival)} (r = {radius:g})")
    return Claim(
        claim="The angular hybrid has a smaller largest relative error than the other estimators (Section 4.1).",
        paper="smallest",
        ours=", ".join(texts),
        verdict="holds" if all(wins) else "partly" if any(wins) else "fails",
        matching=matching,
        sentence=f"With {matching} the exact largest error of the angular hybrid against the best of the "
        f"others is {', '.join(texts)}.",
    )


def _everywhere(settings: Settings, results: Results) -> Claim:
    shares = [
        _share_of_wins(_at(settings, results, radius, matching), "angular hybrid")
        for matching in MATCHINGS
        for radius in settings.radii
    ]
    return Claim(
        claim="The angular hybrid most accurately approximates the softmax kernel (Section 4.1).",
        paper="most accurate",
        ours=f"at {min(shares):.0%} to {max(shares):.0%} of the angles",
        verdict="holds" if min(shares) == 1 else "fails" if max(shares) < 0.5 else "partly",
        matching="all three",
        sentence=f"It has the smallest exact error of the four at {min(shares):.0%} to {max(shares):.0%} of the "
        "angles, whatever the matching and r; elsewhere another one has.",
    )


def _gaussian(settings: Settings, results: Results) -> Claim:
    ratios = {}
    for matching in MATCHINGS:
        for radius in settings.radii:
            found = _at(settings, results, radius, matching)
            gains = [min(max(found[b]["exact"]) for b in BASES) / max(found[h]["exact"]) for h in HYBRIDS]
            ratios[matching, radius] = gains
    flops = [ratios["equal FLOPs", radius] for radius in settings.radii]
    least = min(g / a for a, g in flops)  # of the angular hybrid's gain
    gain = min(g for _, g in flops) > 1
    texts = [f"{a:.1f} and {g:.1f} (r = {r:g})" for (a, g), r in zip(flops, settings.radii, strict=True)]
    return Claim(
        claim="Similar gains as for the angular hybrid are obtained by the Gaussian hybrid (Figure 2).",
        paper="similar",
        ours=f"factors {', '.join(texts)}",
        verdict="holds" if least > 0.8 else "partly" if gain else "fails",
        matching="equal FLOPs",
        sentence=f"At equal FLOPs and σ = {settings.sigma:g} the largest error of the bases is divided by these "
        f"factors, for the angular and the Gaussian hybrid: {', '.join(texts)}.",
    )


def _draws(settings: Settings, results: Results) -> Claim:
    bounded = [
        value for key, part in results.items() if "trigonometric" in key for value in part["deviations"]
    ]
    step = _STEPS // settings.angles
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
        ours=f"{low:.2f} to {high:.2f} of the exact ones",
        verdict="holds" if low > 0.9 and high < 1.1 else "partly",
        sentence=f"The errors seen are between {low:.2f} and {high:.2f} of the exact ones, least for {key} at "
        f"θ = {angle:.2f}π, where estimates too rare to be seen make up the rest; bounded trigonometric estimates lie "
        f"within {max(bounded):.1f} standard errors.",
    )


def figure(settings: Settings, results: Results) -> Figure:
    """A row a radius and a column an estimator, hybrids at equal FLOPs: the band of estimates and the errors."""
    matching = "equal FLOPs"
    names = (*BASES, *HYBRIDS)
    drawing = canvas(13, 3.1 * len(settings.radii) + 1)
    worst = [results[_key(settings.radii[0], name, matching)] for name in names]
    best = min(zip(worst, names, strict=True), key=lambda pair: max(pair[0]["exact"]))[1]
    shares = [
        _share_of_wins(_at(settings, results, radius, matching), "angular hybrid")
        for radius in settings.radii
    ]
    headline(
        drawing,
        f"Smallest largest error: {best}; the angular hybrid is the most accurate at up to {max(shares):.0%} of angles",
        f"{settings.draws:,} estimates, d = {settings.dim}, bases with {settings.features} projections and hybrids "
        "with as many FLOPs\nGrey, left axis: the kernel and 5–95 % of its estimates. Colour, right axis: relative "
        "error, exact (line) and of the draws (dots)",
    )
    panels = drawing.subplots(len(settings.radii), len(names), squeeze=False)
    angles, fine = fractions(settings.angles), fractions(_STEPS)
    for row, radius in zip(panels, settings.radii, strict=True):
        found = _at(settings, results, radius, matching)
        top = 1.6 * max(max(part["exact"]) for part in found.values())
        bottom = min(value for part in found.values() for value in part["seen"][1:-1]) / 2
        for axes, (name, part) in zip(row, found.items(), strict=True):
            axes.fill_between(angles, part["low"], part["high"], color="#cfcfcf", linewidth=0)
            axes.plot(angles, part["kernel"], color=GREY, linewidth=1.2)
            axes.axhline(0, color="#D62728", linewidth=0.8, linestyle=":")
            errors = axes.twinx()
            errors.plot(
                fine, [max(value, 1e-12) for value in part["exact"]], color=COLOURS[name], linewidth=2
            )
            shown = [(a, v) for a, v in zip(angles, part["seen"], strict=True) if v > 1e-9]
            errors.plot(
                *zip(*shown, strict=True), "o", color=COLOURS[name], markersize=3.5, mec="white", mew=0.4
            )
            errors.set_ylim(bottom, top)
            log_axis(errors)
            errors.set_ylim(bottom, top)
            errors.set_title(
                f"{name}, r = {radius:g}\nm = {part['m']}, largest ε {number_text(max(part['exact']))}",
                size=10,
            )
            axes.set_ylim(*_kernel_limits(found))
            angle_axis(axes, label=radius == settings.radii[-1])
            bare([axes, errors], grid=False)
            if axes is row[0]:
                axes.set_ylabel("kernel")
            else:
                axes.set_yticklabels([])
            if axes is row[-1]:
                errors.set_ylabel("relative error ε")
            else:
                errors.set_yticklabels([])
    return drawing


def _kernel_limits(found: dict[str, dict[str, Any]]) -> tuple[float, float]:
    low = min(min(part["low"]) for part in found.values())
    high = max(max(part["high"]) for part in found.values())
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


EXPERIMENT = Experiment(
    name="pointwise",
    title="Pointwise estimation of the softmax kernel",
    source="Section 4.1 (Figure 2), Appendix G",
    full=Settings(),
    quick=Settings(dim=16, features=64, draws=1000, angles=8, radii=(1.0, 1.5)),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
)

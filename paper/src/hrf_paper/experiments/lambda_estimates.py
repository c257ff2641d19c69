"""Estimates of the angular and the Gaussian coefficient against λ and the closed forms of their second moments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Generator

import hrf
from hrf.report import number
from hrf_paper.experiments.estimators import (
    CLOSE,
    chunk_size,
    deviations,
    estimates,
    fractions,
    mean_and_error,
    on_sphere,
)
from hrf_paper.experiments.experiment import Claim, Experiment, Part, Results, Table
from hrf_paper.experiments.plotting import COLOURS, PALETTE, angle_axis, bare, canvas, headline

# Moments of the estimated coefficients, exact and over draws.

NAMES = ("angular", "Gaussian")
MOMENTS = ("mean", "square", "complement_square")
STEPS = 160  # of the exact moments over the angle
_KINDS = ("iid", "orthogonal")


@dataclass(frozen=True)
class LambdaEstimatesSettings:
    """``radius`` and ``sigma`` belong to the normalised Gaussian coefficient."""

    dim: int = 64
    radius: float = 1.0
    sigma: float = 1.0
    n_projections: tuple[int, ...] = (1, 8, 64)
    draws: int = 40_000
    angles: int = 16
    seed: int = 0


def parts(settings: LambdaEstimatesSettings) -> dict[str, Part]:
    """Return one part per coefficient, number n and kind of projections."""
    return {
        key(name, n, kind): partial(_part, settings, name, n, kind)
        for name in NAMES
        for kind in _KINDS
        for n in settings.n_projections
        if n > 1 or kind == "iid"  # a single row has no other row to be orthogonal to
    }


def key(name: str, n: int, kind: str = "iid") -> str:
    """Return the name of a part."""
    return f"{name}, n = {n}, {kind}"


def _part(settings: LambdaEstimatesSettings, name: str, n: int, kind: str) -> dict[str, Any]:
    build, generator = partial(_coefficient, settings, name, n, kind), Generator().manual_seed(settings.seed)
    coefficient = build(chunk_size(settings.draws, settings.dim, n), generator)
    x, y = on_sphere(settings.radius, settings.dim, fractions(settings.angles))
    _, fine = on_sphere(settings.radius, settings.dim, fractions(STEPS))
    values = torch.cat(list(estimates(coefficient, x, y, draws=settings.draws, generator=generator))).double()
    drawn = {"mean": values, "square": values.square(), "complement_square": (1 - values).square()}
    moments, exact = build(None, Generator()).moments(x, y), build(None, Generator()).moments(x, fine)
    low, high = torch.quantile(values, torch.tensor([0.05, 0.95], dtype=torch.float64), dim=0)
    found: dict[str, Any] = {
        "low": low.tolist(),
        "high": high.tolist(),
        "outside": float(((values < -1e-9) | (values > 1 + 1e-9)).double().mean()),
        "variance": exact.variance.value()[0].tolist(),
    }
    for moment in MOMENTS:
        seen, error = mean_and_error(drawn[moment])
        found[moment] = {
            "exact": getattr(exact, moment).value()[0].tolist(),
            "seen": seen.tolist(),
            "deviations": deviations(seen, error, getattr(moments, moment).value()[0]),
        }
    return found


def _coefficient(
    settings: LambdaEstimatesSettings, name: str, n: int, kind: str, heads: int | None, generator: Generator
) -> hrf.coefficients.Coefficient:
    common: dict[str, Any] = {
        "n_projections": n,
        "projection": kind,
        "heads": heads,
        "generator": generator,
    }
    if name == "angular":
        return hrf.coefficients.Angular(settings.dim, **common)
    inner = hrf.Trigonometric(settings.dim, **common)
    return hrf.coefficients.Gaussian.bipolar(inner, sigma=settings.sigma, radius=settings.radius)


# Second moments at three angles.


def tables(settings: LambdaEstimatesSettings, results: Results) -> list[Table]:
    """Show E λ̂², exact and drawn, at three angles, and the largest deviation of all moments."""
    rows = []
    places = [settings.angles * k // 4 for k in (1, 2, 3)]
    for name, part in results.items():
        exact, drawn = part["square"]["exact"][:: STEPS // settings.angles], part["square"]["seen"]
        texts = (f"{exact[k]:.3f} | {drawn[k]:.3f}" for k in places)
        rows.append((*name.split(", "), *texts, f"{worst(part):.1f}"))
    header = ("coefficient", "", "rows", "θ = π/4", "π/2", "3π/4", "deviation")
    return [Table("E λ̂², exact | drawn; largest deviation of all moments in standard errors", header, rows)]


# Statements of Lemma 3.2 and Theorem F.1.

_LEMMAS = {
    "angular": "E λ̂ = θ/π and E λ̂² = (θ/π)(θ/π − θ/(nπ) + 1/n) (Lemma 3.2).",
    "Gaussian": "E λ̂² and E(1 − λ̂)² of the Gaussian coefficient (Theorem F.1).",
}


def claims(settings: LambdaEstimatesSettings, results: Results) -> list[Claim]:
    """Judge Lemma 3.2 and Theorem F.1."""
    return [
        *(_agreement(settings, results, name) for name in NAMES),
        _no_variance(settings, results),
        _orthogonal(settings, results),
    ]


def worst(part: dict[str, Any]) -> float:
    """Return the largest deviation of all moments, in standard errors."""
    return max(value for moment in MOMENTS for value in part[moment]["deviations"])


def _agreement(settings: LambdaEstimatesSettings, results: Results, name: str) -> Claim:
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
        hits=[gap <= CLOSE for gap in gaps],
        cases="moments",
        criterion=f"within {CLOSE:g} standard errors",
        sentence=f"All {len(gaps)} moments of the {name} coefficient over {settings.draws:,} draws, iid and "
        f"orthogonal, lie within {max(gaps):.1f} standard errors of the closed forms.",
    )


def _no_variance(settings: LambdaEstimatesSettings, results: Results) -> Claim:
    large = settings.n_projections[-1]
    ends = {name: [results[key(name, large)]["variance"][k] for k in (0, -1)] for name in NAMES}
    angular, gaussian = ([number(value) for value in ends[name]] for name in NAMES)
    return Claim(
        claim="The angular coefficient has no variance at θ = 0 and at θ = π (Section 3).",
        paper="0 at both ends",
        ours=f"{angular[0]} and {angular[1]}",
        hits=[value == 0 for value in ends["angular"]],
        cases="ends",
        sentence=f"The variance of the angular coefficient is {angular[0]} at 0 and {angular[1]} at π; the variance of "
        f"the Gaussian coefficient with n = {large} is {gaussian[0]} at 0 and {gaussian[1]} at π.",
    )


def _orthogonal(settings: LambdaEstimatesSettings, results: Results) -> Claim:
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


# Bands of estimated coefficients, and their second moments.

_DOTS: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 4, "mec": "white", "mew": 0.5}


def figure(settings: LambdaEstimatesSettings, results: Results) -> Figure:
    """Draw the band of estimates, and second moments for every n."""
    drawing = canvas(12, 8)
    agree = max(worst(part) for part in results.values()) <= CLOSE
    headline(
        drawing,
        "Coefficients are unbiased, and their second moments are as derived"
        if agree
        else "Some moments are not as derived",
        f"‖x‖ = ‖y‖ = {settings.radius:g}, d = {settings.dim}, σ = {settings.sigma:g}, iid projections. "
        f"Lines: exact. Dots: {settings.draws:,} draws",
    )
    panels = drawing.subplots(2, 3)
    titles = ("λ and 5–95 % of its estimates", "E λ̂²", "E (1 − λ̂)²")
    for row, name in zip(panels, NAMES, strict=True):
        _draw_bands(row[0], settings, results, name)
        for axes, moment in zip(row[1:], MOMENTS[1:], strict=True):
            _draw_moment(axes, settings, results, name, moment)
        for axes, title in zip(row, titles, strict=True):
            axes.set_title(f"{name}: {title}", size=11)
            axes.legend(frameon=False, fontsize=9)
            angle_axis(axes, label=name == NAMES[-1])
    bare(panels.flat)
    return drawing


def _draw_bands(axes: Axes, settings: LambdaEstimatesSettings, results: Results, name: str) -> None:
    angles, hybrid = fractions(settings.angles), COLOURS[f"{name} hybrid"]
    for place, n in enumerate(settings.n_projections[1:]):
        part = results[key(name, n)]
        shade = 0.2 + 0.25 * place
        axes.fill_between(
            angles, part["low"], part["high"], color=hybrid, alpha=shade, linewidth=0, label=f"n = {n}"
        )
        axes.plot(angles, part["mean"]["seen"], color=hybrid, **_DOTS)
    axes.plot(fractions(STEPS), part["mean"]["exact"], color="black", linewidth=1.2)


def _draw_moment(
    axes: Axes, settings: LambdaEstimatesSettings, results: Results, name: str, moment: str
) -> None:
    for n, colour in zip(settings.n_projections, PALETTE, strict=False):
        part = results[key(name, n)][moment]
        axes.plot(fractions(STEPS), part["exact"], color=colour, linewidth=1.8, label=f"n = {n}")
        axes.plot(fractions(settings.angles), part["seen"], color=colour, **_DOTS)


EXPERIMENT = Experiment(
    name="lambda",
    title="Estimates of the coefficients",
    source="Lemma 3.2, Theorem F.1",
    full=LambdaEstimatesSettings(),
    quick=LambdaEstimatesSettings(dim=8, draws=5000, angles=8),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
)

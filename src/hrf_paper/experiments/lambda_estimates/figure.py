"""Estimates of the angular and the Gaussian coefficient against λ and the closed forms of their second moments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Generator

import hrf
from hrf_paper.experiments.shared.draws import deviations, estimates, fractions, mean_and_error, on_sphere
from hrf_paper.experiments.experiment import Claim, Experiment, Part, Results, Table
from hrf_paper.experiments.shared.plotting import COLOURS, PALETTE, angle_axis, bare, canvas, headline
from hrf_paper.experiments.shared.number_format import number_text

__all__ = ["EXPERIMENT", "Settings"]

_NAMES = ("angular", "Gaussian")
_KINDS = ("iid", "orthogonal")
_MOMENTS = ("mean", "square", "complement_square")
_STEPS = 160


@dataclass(frozen=True)
class Settings:
    """The radius and σ are of the normalised Gaussian coefficient."""

    dim: int = 64
    radius: float = 1.0
    sigma: float = 1.0
    n_projections: tuple[int, ...] = (1, 8, 64)
    draws: int = 40_000
    angles: int = 16
    seed: int = 0


def parts(settings: Settings) -> dict[str, Part]:
    """One a coefficient, a number n and a kind of projections."""
    return {
        _key(name, n, kind): partial(_part, settings, name, n, kind)
        for name in _NAMES
        for kind in _KINDS
        for n in settings.n_projections
        if n > 1 or kind == "iid"  # one row is orthogonal to no other
    }


def _key(name: str, n: int, kind: str = "iid") -> str:
    return f"{name}, n = {n}, {kind}"


def _part(settings: Settings, name: str, n: int, kind: str) -> dict[str, Any]:
    def build(heads: int | None, generator: Generator) -> hrf.coefficients.Coefficient:
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

    x, y = on_sphere(settings.radius, settings.dim, fractions(settings.angles))
    _, fine = on_sphere(settings.radius, settings.dim, fractions(_STEPS))
    values = torch.cat(
        list(estimates(build, x, y, draws=settings.draws, seed=settings.seed, n_projections=n))
    ).double()
    drawn = {"mean": values, "square": values.square(), "complement_square": (1 - values).square()}
    moments, exact = build(None, Generator()).moments(x, y), build(None, Generator()).moments(x, fine)
    low, high = torch.quantile(values, torch.tensor([0.05, 0.95], dtype=torch.float64), dim=0)
    found: dict[str, Any] = {
        "low": low.tolist(),
        "high": high.tolist(),
        "outside": float(((values < -1e-9) | (values > 1 + 1e-9)).double().mean()),
        "variance": exact.variance.value()[0].tolist(),
    }
    for moment in _MOMENTS:
        seen, error = mean_and_error(drawn[moment])
        found[moment] = {
            "exact": getattr(exact, moment).value()[0].tolist(),
            "seen": seen.tolist(),
            "deviations": deviations(seen, error, getattr(moments, moment).value()[0]),
        }
    return found


def tables(settings: Settings, results: Results) -> list[Table]:
    """E λ̂², exact and drawn, at five angles; agreement of all moments."""
    rows = []
    places = [settings.angles * k // 4 for k in (1, 2, 3)]
    for key, part in results.items():
        exact, drawn = part["square"]["exact"][:: _STEPS // settings.angles], part["square"]["seen"]
        texts = (f"{exact[k]:.3f} | {drawn[k]:.3f}" for k in places)
        rows.append((*key.split(", "), *texts, f"{_worst(part):.1f}"))
    header = ("coefficient", "", "rows", "θ = π/4", "π/2", "3π/4", "deviation")
    return [Table("E λ̂², exact | drawn; largest deviation of all moments in standard errors", header, rows)]


def _worst(part: dict[str, Any], moments: tuple[str, ...] = _MOMENTS) -> float:
    return max(value for moment in moments for value in part[moment]["deviations"])


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Of Lemma 3.2 and Theorem F.1."""
    numbers = settings.n_projections
    large = numbers[-1]
    ends = {name: results[_key(name, large)]["variance"] for name in _NAMES}
    outside = results[_key("Gaussian", numbers[0])]["outside"]
    middle = _STEPS // 2
    gains = {
        name: results[_key(name, large, "orthogonal")]["variance"][middle] / ends[name][middle]
        for name in _NAMES
    }
    return [
        _agreement(
            settings, results, "angular", "E λ̂ = θ/π and E λ̂² = (θ/π)(θ/π − θ/(nπ) + 1/n) (Lemma 3.2)."
        ),
        _agreement(
            settings, results, "Gaussian", "E λ̂² and E(1 − λ̂)² of the Gaussian coefficient (Theorem F.1)."
        ),
        Claim(
            claim="The angular coefficient has no variance at θ = 0 and at θ = π (Section 3).",
            paper="0 at both ends",
            ours=f"{number_text(ends['angular'][0])} and {number_text(ends['angular'][-1])}",
            verdict="holds" if ends["angular"][0] == ends["angular"][-1] == 0 else "fails",
            sentence=f"The variance of the angular coefficient is {number_text(ends['angular'][0])} at 0 and "
            f"{number_text(ends['angular'][-1])} at π; that of the Gaussian one with n = {large} is "
            f"{number_text(ends['Gaussian'][0])} at 0 and {number_text(ends['Gaussian'][-1])} at π.",
        ),
        Claim(
            claim="Orthogonal projections for the coefficients too, as in HRF-ort (Section 4.1)?",
            paper="—",
            ours=f"variance × {gains['angular']:.2f} (angular), {gains['Gaussian']:.2f} (Gaussian)",
            verdict="beyond",
            matching=f"n = {large}",
            sentence=f"At θ = π/2 and n = {large} orthogonal rows multiply the variance by {gains['angular']:.2f} for "
            f"the angular and by {gains['Gaussian']:.2f} for the Gaussian coefficient; with n = {numbers[0]} the "
            f"Gaussian estimate lies outside [0, 1] in {outside:.0%} of the draws, the angular one never.",
        ),
    ]


def _agreement(settings: Settings, results: Results, name: str, claim: str) -> Claim:
    found = [part for key, part in results.items() if key.startswith(f"{name}, ")]
    worst = max(_worst(part) for part in found)
    count = len(found) * len(_MOMENTS) * (settings.angles + 1)
    return Claim(
        claim=claim,
        paper="closed form",
        ours=f"within {worst:.1f} standard errors",
        verdict="holds" if worst <= 5 else "fails",
        sentence=f"All {count} moments of the {name} coefficient over {settings.draws:,} draws, iid and orthogonal, "
        f"lie within {worst:.1f} standard errors of the closed forms.",
    )


def figure(settings: Settings, results: Results) -> Figure:
    """The band of estimates, and second moments for every n."""
    drawing = canvas(12, 8)
    worst = max(_worst(part) for part in results.values())
    headline(
        drawing,
        "Coefficients are unbiased, and their second moments are as derived"
        if worst <= 5
        else "Some moments are not as derived",
        f"‖x‖ = ‖y‖ = {settings.radius:g}, d = {settings.dim}, σ = {settings.sigma:g}, iid projections. "
        f"Lines: exact. Dots: {settings.draws:,} draws",
    )
    panels = drawing.subplots(2, 3)
    angles, fine = fractions(settings.angles), fractions(_STEPS)
    titles = ("λ and 5–95 % of its estimates", "E λ̂²", "E (1 − λ̂)²")
    for row, name in zip(panels, _NAMES, strict=True):
        hybrid = COLOURS[f"{name} hybrid"]
        for place, n in enumerate(settings.n_projections[1:]):
            part = results[_key(name, n)]
            row[0].fill_between(
                angles, part["low"], part["high"], color=hybrid, alpha=0.2 + 0.25 * place, linewidth=0,
                label=f"n = {n}",
            )  # fmt: skip
            row[0].plot(angles, part["mean"]["seen"], "o", color=hybrid, markersize=4, mec="white", mew=0.5)
        row[0].plot(fine, part["mean"]["exact"], color="black", linewidth=1.2)
        for axes, moment in zip(row[1:], _MOMENTS[1:], strict=True):
            for n, colour in zip(settings.n_projections, PALETTE, strict=False):
                part = results[_key(name, n)]
                axes.plot(fine, part[moment]["exact"], color=colour, linewidth=1.8, label=f"n = {n}")
                axes.plot(angles, part[moment]["seen"], "o", color=colour, markersize=4, mec="white", mew=0.5)
        for axes, title in zip(row, titles, strict=True):
            axes.set_title(f"{name}: {title}", size=11)
            axes.legend(frameon=False, fontsize=9)
            angle_axis(axes, label=name == _NAMES[-1])
    bare(panels.flat)
    return drawing


EXPERIMENT = Experiment(
    name="lambda",
    title="Estimates of the coefficients",
    source="Lemma 3.2, Theorem F.1",
    full=Settings(),
    quick=Settings(dim=8, draws=5000, angles=8),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
)

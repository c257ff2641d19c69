"""MSE over angle and length of trigonometric features, positive features and their angular hybrid (paper, Figure 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import hrf
from hrf.report import number
from hrf_paper.experiments.estimators import (
    CLOSE,
    Estimator,
    all_estimates,
    deviations,
    fractions,
    mean_and_error,
    on_sphere,
)
from hrf_paper.experiments.experiment import Claim, Experiment, Part, Results, Table
from hrf_paper.experiments.plotting import COLOURS, GREY, angle_axis, bare, canvas, headline, log_axis

# Exact and empirical MSEs over angle and length, estimator by estimator.

NAMES = ("trigonometric", "FAVOR+", "angular hybrid")
_ZERO = 1e-12  # as a share of the largest MSE at a length: rounding


@dataclass(frozen=True)
class MSESurfaceSettings:
    """Lengths from 0 to ``largest_radius`` on a grid; draws at the smaller ``drawn_radii``."""

    n_projections: int = 10
    n_coefficient_projections: int = 1
    dim: int = 3
    largest_radius: float = 5.0
    n_radii: int = 20
    n_angles: int = 32
    drawn_radii: tuple[float, ...] = (0.5, 1.0, 1.5)
    draws: int = 100_000
    seed: int = 0


def parts(settings: MSESurfaceSettings) -> dict[str, Part]:
    """Return one part per estimator."""
    return {name: partial(_part, settings, name) for name in NAMES}


def radii(settings: MSESurfaceSettings) -> list[float]:
    """Return the grid of lengths, without 0, where every estimator is exact."""
    return [settings.largest_radius * (k + 1) / settings.n_radii for k in range(settings.n_radii)]


def ends(results: Results, name: str) -> list[tuple[bool, bool]]:
    """Return whether the exact MSE vanishes at θ = 0 and at θ = π, for every length."""
    rows = results[name]["exact"]
    return [(row[0] <= _ZERO * max(row), row[-1] <= _ZERO * max(row)) for row in rows]


def _part(settings: MSESurfaceSettings, name: str) -> dict[str, Any]:
    n = settings.n_coefficient_projections if "hybrid" in name else 0
    estimator = Estimator(name, settings.dim, settings.n_projections, n)
    phi = estimator.one()
    exact, drawn = [], {}
    for radius in radii(settings):
        x, y = on_sphere(radius, settings.dim, fractions(settings.n_angles))
        exact.append(phi.mse(x, y)[0].tolist())
    for radius in settings.drawn_radii:
        x, y = on_sphere(radius, settings.dim, fractions(16))
        values = all_estimates(estimator, x, y, draws=settings.draws, seed=settings.seed)
        mse, error = mean_and_error((values - hrf.kernels.softmax(x, y)).square())
        known = phi.mse(x, y)[0]
        drawn[f"{radius:g}"] = {
            "exact": known.tolist(),
            "seen": mse.tolist(),
            "deviations": deviations(mse, error, known),
        }
    return {"exact": exact, "drawn": drawn}


# MSEs at five angles.


def tables(settings: MSESurfaceSettings, results: Results) -> list[Table]:
    """Show exact and empirical MSEs at five angles and all drawn lengths."""
    rows = []
    for radius in settings.drawn_radii:
        for name in NAMES:
            drawn = results[name]["drawn"][f"{radius:g}"]
            for kind in ("exact", "seen"):
                texts = (number(drawn[kind][k]) for k in range(0, 17, 4))
                rows.append((name, f"{radius:g}", kind, *texts))
    title = f"MSE, m = {settings.n_projections}, n = {settings.n_coefficient_projections}"
    return [Table(title, ("estimator", "r", "", "θ = 0", "π/4", "π/2", "3π/4", "π"), rows)]


# Statements of Figure 1.


# Whether the MSE vanishes at θ = 0 and at θ = π.
_PAPER = {"trigonometric": (True, False), "FAVOR+": (False, True), "angular hybrid": (True, True)}


def claims(settings: MSESurfaceSettings, results: Results) -> list[Claim]:
    """Judge Figure 1."""
    return [_ends(settings, results), _between(settings, results), _closed_forms(settings, results)]


def _ends(settings: MSESurfaceSettings, results: Results) -> Claim:
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
        hits=hits,
        cases="ends",
        matching="equal m",
        sentence=f"At all {settings.n_radii} lengths up to {settings.largest_radius:g} the exact MSE is zero "
        + "; ".join(f"{where[name]} for {called(name)}" for name in NAMES)
        + ".",
    )


def _between(settings: MSESurfaceSettings, results: Results) -> Claim:
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


def _closed_forms(settings: MSESurfaceSettings, results: Results) -> Claim:
    light = f"{settings.drawn_radii[0]:g}"
    gaps = [value for name in NAMES for value in results[name]["drawn"][light]["deviations"]]
    return Claim(
        claim="The exact MSEs are the MSEs of the estimators (draws against closed forms).",
        paper="Lemma 2.2, Theorem 3.1",
        ours=f"within {max(gaps):.1f} standard errors",
        hits=[gap <= CLOSE for gap in gaps],
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


# Surfaces of the MSE over angle and length, above slices.


def figure(settings: MSESurfaceSettings, results: Results) -> Figure:
    """Draw surfaces on a logarithmic scale, lengths mirrored at 0, above slices with the draws."""
    drawing = canvas(13, 8.4)
    whole = [called(name) for name in NAMES if all(map(all, ends(results, name)))]
    headline(
        drawing,
        f"Exact at both ends of the angle: {' and '.join(whole) or 'none'}",
        f"MSE of estimates of exp(xᵀy), ‖x‖ = ‖y‖ = r, m = {settings.n_projections}, "
        f"n = {settings.n_coefficient_projections}. Above: exact, negative lengths mirror positive ones, grey: "
        f"r = {settings.largest_radius:g}.\nBelow: slices, exact (lines) and from {settings.draws:,} draws (dots)",
    )
    upper = [drawing.add_subplot(2, 3, k + 1, projection="3d") for k in range(3)]
    lower = drawing.subplots(2, 3)
    for blank in lower[0]:
        blank.remove()
    for axes, name in zip(upper, NAMES, strict=True):
        _draw_surface(axes, settings, results[name]["exact"], name)
    for axes, name in zip(lower[1], NAMES, strict=True):
        _draw_slices(axes, settings, results[name]["drawn"], name)
    lower[1][0].set_ylabel("MSE")
    bare(lower[1])
    return drawing


def _draw_slices(axes: Axes, settings: MSESurfaceSettings, slices: dict[str, Any], name: str) -> None:
    angles = fractions(16)
    for shade, radius in zip((0.45, 0.7, 1.0), settings.drawn_radii, strict=False):
        drawn = slices[f"{radius:g}"]
        exact, points = (
            [value if value > 1e-9 else math.nan for value in drawn[kind]] for kind in ("exact", "seen")
        )
        style: dict[str, Any] = {"color": COLOURS[name], "alpha": shade}
        axes.plot(angles, exact, linewidth=2, label=f"r = {radius:g}", **style)
        axes.plot(angles, points, "o", markersize=4, mec="white", mew=0.5, **style)
    axes.set_ylim(1e-5, 2e5)
    log_axis(axes)
    angle_axis(axes)
    axes.legend(frameon=False, fontsize=9, loc="lower center", ncols=3, columnspacing=1)


def _draw_surface(axes: Any, settings: MSESurfaceSettings, exact: list[list[float]], name: str) -> None:
    lengths = np.array([-r for r in reversed(radii(settings))] + radii(settings))
    rows = torch.tensor([*reversed(exact), *exact], dtype=torch.float64)
    floor = -4.0
    height = rows.log10().clamp(min=floor).numpy()
    theta = np.array(fractions(settings.n_angles))
    grid = np.meshgrid(theta, lengths)
    axes.plot_surface(
        *grid, height, cmap=matplotlib.colormaps["viridis"], linewidth=0, antialiased=True, alpha=0.9
    )
    axes.plot(theta, lengths[-1] * np.ones_like(theta), height[-1], color=GREY, linewidth=3)
    axes.set_title(name, size=12, color=COLOURS[name], weight="bold", y=1.0)
    axes.set_xticks([0, 0.5, 1], ["0", "π/2", "π"])
    axes.set_xlabel("θ", labelpad=-2)
    axes.set_ylabel("length r", labelpad=-2)
    axes.set_zlabel("log₁₀ MSE", labelpad=-2)
    axes.tick_params(labelsize=8, pad=0, labelcolor=GREY)
    axes.view_init(elev=24, azim=-58)
    axes.set_box_aspect(None, zoom=0.88)


EXPERIMENT = Experiment(
    name="mse-surface",
    title="MSE over angle and length",
    source="Figure 1",
    full=MSESurfaceSettings(),
    quick=MSESurfaceSettings(n_radii=10, n_angles=16, draws=5000),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
)

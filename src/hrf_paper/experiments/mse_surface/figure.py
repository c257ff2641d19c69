"""MSE over angle and length of trigonometric features, positive ones and their angular hybrid (paper, Figure 1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

import hrf
from hrf_paper.experiments.shared.draws import deviations, fractions, mean_and_error, on_sphere, seen
from hrf_paper.experiments.shared.estimators import Estimator
from hrf_paper.experiments.experiment import Claim, Experiment, Part, Results, Table
from hrf_paper.experiments.shared.plotting import COLOURS, GREY, angle_axis, bare, canvas, headline, log_axis
from hrf_paper.experiments.shared.number_format import number_text

__all__ = ["EXPERIMENT", "Settings"]

_NAMES = ("trigonometric", "FAVOR+", "angular hybrid")
_ZERO = 1e-12  # of the largest MSE at that length: rounding


@dataclass(frozen=True)
class Settings:
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


def parts(settings: Settings) -> dict[str, Part]:
    """Exact and drawn MSEs, estimator by estimator."""
    return {name: partial(_part, settings, name) for name in _NAMES}


def radii(settings: Settings) -> list[float]:
    """The grid of lengths, without 0, where every estimator is exact."""
    return [settings.largest_radius * (k + 1) / settings.n_radii for k in range(settings.n_radii)]


def _part(settings: Settings, name: str) -> dict[str, Any]:
    n = settings.n_coefficient_projections if "hybrid" in name else 0
    estimator = Estimator(name, settings.dim, settings.n_projections, n)
    phi = estimator.one()
    exact, drawn = [], {}
    for radius in radii(settings):
        x, y = on_sphere(radius, settings.dim, fractions(settings.n_angles))
        exact.append(phi.mse(x, y)[0].tolist())
    for radius in settings.drawn_radii:
        x, y = on_sphere(radius, settings.dim, fractions(16))
        values = seen(estimator, x, y, draws=settings.draws, seed=settings.seed)
        mse, error = mean_and_error((values - hrf.kernels.softmax(x, y)).square())
        known = phi.mse(x, y)[0]
        drawn[f"{radius:g}"] = {
            "exact": known.tolist(),
            "seen": mse.tolist(),
            "deviations": deviations(mse, error, known),
        }
    return {"exact": exact, "drawn": drawn}


def _ends(results: Results, name: str) -> tuple[bool, bool]:
    """Whether the MSE vanishes at θ = 0 and at θ = π, at all lengths."""
    rows = results[name]["exact"]
    return all(row[0] <= _ZERO * max(row) for row in rows), all(row[-1] <= _ZERO * max(row) for row in rows)


def _compared(settings: Settings, results: Results) -> tuple[float, float]:
    """Shares of the grid, ends aside, where the hybrid's MSE is below both bases, and between them."""
    below = between = count = 0
    for rows in zip(*(results[name]["exact"] for name in _NAMES), strict=True):
        for trigonometric, positive, hybrid in list(zip(*rows, strict=True))[1:-1]:
            low, high = sorted((trigonometric, positive))
            count += 1
            below += hybrid < low * (1 - 1e-9)
            between += low * (1 - 1e-9) <= hybrid <= high * (1 + 1e-9)
    return below / count, between / count


def tables(settings: Settings, results: Results) -> list[Table]:
    """MSE at five angles and the drawn lengths."""
    rows = []
    for radius in settings.drawn_radii:
        for name in _NAMES:
            drawn = results[name]["drawn"][f"{radius:g}"]
            for kind in ("exact", "seen"):
                rows.append(
                    (name, f"{radius:g}", kind, *(number_text(drawn[kind][k]) for k in range(0, 17, 4)))
                )
    title = f"MSE, m = {settings.n_projections}, n = {settings.n_coefficient_projections}"
    return [Table(title, ("estimator", "r", "", "θ = 0", "π/4", "π/2", "3π/4", "π"), rows)]


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Of Figure 1."""
    ends = {name: _ends(results, name) for name in _NAMES}
    expected = {"trigonometric": (True, False), "FAVOR+": (False, True), "angular hybrid": (True, True)}
    below, between = _compared(settings, results)
    light = f"{settings.drawn_radii[0]:g}"
    close = max(value for name in _NAMES for value in results[name]["drawn"][light]["deviations"])
    n = settings.n_coefficient_projections
    return [
        Claim(
            claim="Only the angular hybrid's MSE goes to zero at both θ = 0 and θ = π (Figure 1).",
            paper="zero at both ends",
            ours=", ".join(f"{name}: {_where(*ends[name])}" for name in _NAMES),
            verdict="holds" if ends == expected else "fails",
            matching="equal m",
            sentence=f"At all {settings.n_radii} lengths up to {settings.largest_radius:g} the exact MSE is zero "
            + "; ".join(f"{_where(*ends[name])} for {_called(name)}" for name in _NAMES)
            + ".",
        ),
        Claim(
            claim="Is the hybrid better than both of its bases away from the ends?",
            paper="—",
            ours=f"below both bases on {below:.0%} of the grid",
            verdict="beyond",
            matching="equal m",
            sentence=f"With n = {n} its MSE lies between those of the bases on {between:.0%} of the grid and below "
            f"both on {below:.0%}"
            + (": it averages their MSEs with weights θ/π and 1 − θ/π." if n == 1 else "."),
        ),
        Claim(
            claim="The exact MSEs are those of the estimators (draws against closed forms).",
            paper="Lemma 2.2, Theorem 3.1",
            ours=f"within {close:.1f} standard errors",
            verdict="holds" if close <= 5 else "fails",
            sentence=f"In {settings.draws:,} draws at r = {light} the MSEs of all three lie within {close:.1f} "
            "standard errors of the closed forms; at larger r few rare draws make up the MSE of positive features.",
        ),
    ]


def _called(name: str) -> str:
    return {"trigonometric": "trigonometric features", "FAVOR+": "FAVOR+"}.get(name, f"the {name}")


def _where(at_zero: bool, at_pi: bool) -> str:
    return {(True, True): "at both ends", (True, False): "at 0 only", (False, True): "at π only"}.get(
        (at_zero, at_pi), "at neither end"
    )


def figure(settings: Settings, results: Results) -> Figure:
    """Surfaces on a logarithmic scale, lengths mirrored at 0, above slices with the draws."""
    drawing = canvas(13, 8.4)
    whole = [_called(name) for name in _NAMES if all(_ends(results, name))]
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
    for axes, name in zip(upper, _NAMES, strict=True):
        _draw_surface(axes, settings, results[name]["exact"], name)
    angles = fractions(16)
    for axes, name in zip(lower[1], _NAMES, strict=True):
        for shade, radius in zip((0.45, 0.7, 1.0), settings.drawn_radii, strict=False):
            drawn = results[name]["drawn"][f"{radius:g}"]
            exact, points = (
                [value if value > 1e-9 else None for value in drawn[kind]] for kind in ("exact", "seen")
            )
            axes.plot(angles, exact, color=COLOURS[name], alpha=shade, linewidth=2, label=f"r = {radius:g}")
            axes.plot(
                angles, points, "o", color=COLOURS[name], alpha=shade, markersize=4, mec="white", mew=0.5
            )
        axes.set_ylim(1e-5, 3e4)
        log_axis(axes)
        angle_axis(axes)
        axes.legend(frameon=False, fontsize=9, loc="lower center", ncols=3, columnspacing=1)
    lower[1][0].set_ylabel("MSE")
    bare(lower[1])
    return drawing


def _draw_surface(axes: Any, settings: Settings, exact: list[list[float]], name: str) -> None:
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
    full=Settings(),
    quick=Settings(n_radii=10, n_angles=16, draws=5000),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
)

"""Exact and empirical MSEs over angle and length, estimator by estimator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import hrf
from hrf_paper.experiments.experiment import Part, Results
from hrf_paper.experiments.shared.draws import all_estimates, deviations, fractions, mean_and_error, on_sphere
from hrf_paper.experiments.shared.estimators import Estimator

__all__ = ["NAMES", "Settings", "ends", "parts", "radii"]

NAMES = ("trigonometric", "FAVOR+", "angular hybrid")
_ZERO = 1e-12  # as a share of the largest MSE at a length: rounding


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
    """Return one part per estimator."""
    return {name: partial(_part, settings, name) for name in NAMES}


def radii(settings: Settings) -> list[float]:
    """Return the grid of lengths, without 0, where every estimator is exact."""
    return [settings.largest_radius * (k + 1) / settings.n_radii for k in range(settings.n_radii)]


def ends(results: Results, name: str) -> list[tuple[bool, bool]]:
    """Return whether the exact MSE vanishes at θ = 0 and at θ = π, for every length."""
    rows = results[name]["exact"]
    return [(row[0] <= _ZERO * max(row), row[-1] <= _ZERO * max(row)) for row in rows]


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
        values = all_estimates(estimator, x, y, draws=settings.draws, seed=settings.seed)
        mse, error = mean_and_error((values - hrf.kernels.softmax(x, y)).square())
        known = phi.mse(x, y)[0]
        drawn[f"{radius:g}"] = {
            "exact": known.tolist(),
            "seen": mse.tolist(),
            "deviations": deviations(mse, error, known),
        }
    return {"exact": exact, "drawn": drawn}

"""Exact largest errors, bounds, and errors over draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import hrf
from hrf import theory
from hrf_paper.experiments.experiment import Part
from hrf_paper.experiments.shared.draws import all_estimates, deviations, fractions, on_sphere, root_and_error
from hrf_paper.experiments.shared.estimators import Estimator

__all__ = ["BOUNDS", "LARGEST", "SMALL_ANGLE", "Settings", "parts", "radii"]

BOUNDS = {
    "printed": theory.log_paper_bound,
    "corrected": theory.log_corrected_bound,
    "tight": theory.log_tight_bound,
}
LARGEST = 60.0  # radius up to which the printed bound is compared with the error
SMALL_ANGLE = 1e-6


@dataclass(frozen=True)
class Settings:
    """Radii from 1 to ``largest_radius`` in equal ratios; draws have n = 8 and the smaller ``drawn_radii``."""

    n_coefficient_projections: tuple[int, ...] = (1, 2, 4, 8, 16)
    n_radii: int = 121
    largest_radius: float = 30.0
    drawn_radii: tuple[float, ...] = (0.25, 0.5, 0.75)
    drawn_projections: tuple[int, int] = (32, 8)
    dim: int = 16
    draws: int = 40_000
    seed: int = 0


def parts(settings: Settings) -> dict[str, Part]:
    """Return one part per n (exact shares, bounds, crossing, limits at the ends) and one per drawn radius."""
    work: dict[str, Part] = {
        f"n = {n}": partial(_exact, settings, n) for n in settings.n_coefficient_projections
    }
    work |= {f"draws, r = {r:g}": partial(_drawn, settings, r) for r in settings.drawn_radii}
    return work


def radii(settings: Settings) -> list[float]:
    """Return the grid of radii."""
    return torch.logspace(0, math.log10(settings.largest_radius), settings.n_radii).double().tolist()


def _exact(settings: Settings, n: int) -> dict[str, Any]:
    r = torch.tensor(radii(settings), dtype=torch.float64)
    base = theory.log_max_relative_error_base(r, 1)
    exact = theory.log_max_relative_error(r, 1, n) - base
    half = settings.largest_radius / 2
    ends = torch.tensor([half, 2 * half], dtype=torch.float64)
    low, high = theory.log_max_relative_error(ends, 1, n) - theory.log_max_relative_error_base(ends, 1)
    theta = torch.tensor([SMALL_ANGLE, math.pi - SMALL_ANGLE], dtype=torch.float64)
    limits = theory.log_sphere_relative_error_angular(theta, 1.5, 1, n) - math.log(SMALL_ANGLE) / 2
    return {
        "exact": exact.exp().tolist(),
        **{name: (bound(r, 1, n) - base).exp().tolist() for name, bound in BOUNDS.items()},
        "crossing": _crossing(n),
        "slope": float((high - low) / math.log(2)),
        "limits": (limits - theory.log_limit_ratio(1.5, 1, n)).exp().tolist(),
    }


def _crossing(n: int) -> float | None:
    """Return the radius from which on the exact error exceeds the printed bound, on finer and finer grids."""
    low, high = 1.0, LARGEST
    for _ in range(4):
        grid = torch.linspace(low, high, 65, dtype=torch.float64)
        above = theory.log_max_relative_error(grid, 1, n) > theory.log_paper_bound(grid, 1, n)
        if not above[-1]:
            return None
        first = int(above.nonzero()[0])
        low, high = float(grid[first - 1]), float(grid[first])
    return high


def _drawn(settings: Settings, radius: float) -> dict[str, Any]:
    m, n = settings.drawn_projections
    angles = fractions(16)
    x, y = on_sphere(radius, settings.dim, angles)
    estimator = Estimator("angular hybrid", settings.dim, m, n)
    values = all_estimates(estimator, x, y, draws=settings.draws, seed=settings.seed)
    error, standard_error = root_and_error(values, hrf.kernels.softmax(x, y))
    theta = torch.tensor(angles, dtype=torch.float64) * math.pi
    exact = theory.sphere_relative_error_angular(theta, radius, m, n)
    return {
        "angles": angles,
        "exact": exact.tolist(),
        "seen": error.tolist(),
        "standard_error": standard_error.tolist(),
        "deviations": deviations(error, standard_error, exact),
    }

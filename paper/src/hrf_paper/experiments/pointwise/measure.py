"""Estimates of the kernel and their relative errors, exact and over draws."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import hrf
from hrf_paper.experiments.experiment import Part, Results
from hrf_paper.experiments.shared.draws import all_estimates, deviations, fractions, on_sphere, root_and_error
from hrf_paper.experiments.shared.estimators import BASES, HYBRIDS, MATCHINGS, Estimator, matched

__all__ = ["STEPS", "Settings", "at", "key", "parts", "share_of_wins", "wins"]

STEPS = 160  # of the exact errors over the angle, a multiple of the steps of the draws


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


def _part(settings: Settings, estimator: Estimator, radius: float) -> dict[str, Any]:
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

"""Moments of the estimated coefficients, exact and over draws."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Generator

import hrf
from hrf_paper.experiments.experiment import Part
from hrf_paper.experiments.shared.draws import (
    chunk_size,
    deviations,
    estimates,
    fractions,
    mean_and_error,
    on_sphere,
)

__all__ = ["MOMENTS", "NAMES", "STEPS", "Settings", "key", "parts"]

NAMES = ("angular", "Gaussian")
MOMENTS = ("mean", "square", "complement_square")
STEPS = 160  # of the exact moments over the angle
_KINDS = ("iid", "orthogonal")


@dataclass(frozen=True)
class Settings:
    """``radius`` and ``sigma`` belong to the normalised Gaussian coefficient."""

    dim: int = 64
    radius: float = 1.0
    sigma: float = 1.0
    n_projections: tuple[int, ...] = (1, 8, 64)
    draws: int = 40_000
    angles: int = 16
    seed: int = 0


def parts(settings: Settings) -> dict[str, Part]:
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


def _part(settings: Settings, name: str, n: int, kind: str) -> dict[str, Any]:
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
    settings: Settings, name: str, n: int, kind: str, heads: int | None, generator: Generator
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

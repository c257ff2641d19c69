"""Exact and empirical relative errors over the angle, estimator by estimator.

The rows ω are independent throughout: for coupled rows the error of a fitted `hrf.DenseExponential` has no known
closed form. `hrf.DenseExponential` and `hrf.OptimalPositive` are fitted to these very pairs, which lie in one plane.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Generator, Tensor

import hrf
from hrf_paper.experiments.experiment import Part
from hrf_paper.experiments.shared.draws import chunk_size, estimates, fractions, on_sphere

__all__ = ["ANGLES", "SAMPLED_ANGLES", "Settings", "parts"]

_KIND: Final = "iid"
_FITTED = hrf.OptimalPositive | hrf.DenseExponential
# Angles in units of π: a fine grid for the closed forms, and a coarse grid within it for the draws.
ANGLES, SAMPLED_ANGLES = fractions(160), fractions(16)

# The coefficient of the nested hybrid is as wide as the coefficient of the Gaussian hybrid with n = 8.
_NESTED: dict[str, Any] = {"n_projections": 1, "n_coefficient_projections": 3}


@dataclass(frozen=True)
class Settings:
    """Sizes, draws and seed of a run.

    Attributes:
        radius: r, the length of x and y.
        dim: d.
        features: the width that every estimator gets, to the nearest size it can have.
        draws: random draws behind each empirical error.
        seed: the seed of the draws; every estimator starts from it anew.
        n_coefficient_projections: n of the angular and the Gaussian hybrid.
        sigma: σ of the Gaussian hybrid.
        nested_sigma: σ of the nested hybrid. Its λ is estimated by an angular hybrid, whose error grows
            like exp(2σ²r²) and multiplies the error of the bases: a wide window keeps it small.
    """

    radius: float = 1.5
    dim: int = 64
    features: int = 256
    draws: int = 2000
    seed: int = 0
    n_coefficient_projections: int = 8
    sigma: float = 1.0
    nested_sigma: float = 0.25

    def __post_init__(self) -> None:
        # ε grows like exp(2r²): at larger radii rounding shows even where an estimator is exact.
        _check_range("radius", self.radius, 0.01, 4)
        _check_range("dim", self.dim, 2, 4096)
        _check_range("features", self.features, _nested_width(), 1 << 16)
        _check_range("draws", self.draws, 2, math.inf)
        _check_range("seed", self.seed, 0, 2**63 - 1)


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        bounds = f"at least {low}" if math.isinf(high) else f"from {low} to {high}"
        raise ValueError(f"{name} is {value}; expected a number {bounds}")


@dataclass(frozen=True)
class _Recipe:
    """Size of an estimator, and how to build its map from a number of heads."""

    n_projections: int
    build: Callable[[int | None, Generator], hrf.FeatureMap]


def parts(settings: Settings) -> dict[str, Part]:
    """Return one part per estimator."""
    return {name: partial(_part, settings, recipe) for name, recipe in _recipes(settings).items()}


def _part(settings: Settings, recipe: _Recipe) -> dict[str, Any]:
    x, y = on_sphere(settings.radius, settings.dim, ANGLES)
    feature_map = recipe.build(None, Generator())  # ω does not enter the closed forms
    if isinstance(feature_map, _FITTED):
        feature_map.fit(x, y)
    empirical, standard_error = _sample(recipe, feature_map, settings)
    return {
        "fitted": isinstance(feature_map, _FITTED),
        "n_projections": recipe.n_projections,
        "width": feature_map.feature_dim,
        "flops": feature_map.flops(),
        "exact": feature_map.relative_error(x, y)[0].tolist(),
        "empirical": empirical.tolist(),
        "standard_error": standard_error.tolist(),
    }


def _sample(recipe: _Recipe, fitted: hrf.FeatureMap, settings: Settings) -> tuple[Tensor, Tensor]:
    """Return the root of the mean of (K̂/K − 1)² over the draws, and its standard error: ``(S,)`` each."""
    generator = Generator().manual_seed(settings.seed)
    drawn = recipe.build(chunk_size(settings.draws, settings.dim, recipe.n_projections), generator)
    if isinstance(drawn, _FITTED) and isinstance(fitted, _FITTED):
        drawn.curvature.copy_(fitted.curvature)
        drawn.basis.copy_(fitted.basis)
    x, y = on_sphere(settings.radius, settings.dim, SAMPLED_ANGLES)
    kernel = hrf.kernels.softmax(x, y)
    first, second = torch.zeros(2, len(y), dtype=torch.float64)
    for chunk in estimates(drawn, x, y, draws=settings.draws, generator=generator):
        squares = (chunk / kernel - 1).square()  # (count, S)
        first += squares.sum(0)
        second += squares.square().sum(0)
    mean = first / settings.draws
    variance = (second / settings.draws - mean.square()).clamp(min=0) / (settings.draws - 1)
    error = mean.sqrt()
    # d√v = dv / 2√v
    return error, torch.where(error > 0, variance.sqrt() / (2 * error), 0.0)


# Estimators.


def _recipes(settings: Settings) -> dict[str, _Recipe]:
    """Return every estimator at the size whose width is nearest to the budget."""
    n = settings.n_coefficient_projections
    coefficient = {"n_coefficient_projections": n}
    gaussian = coefficient | {"sigma": settings.sigma, "radius": settings.radius}
    return {
        "trigonometric": _plain(settings, hrf.Trigonometric, 2),
        "FAVOR+": _plain(settings, hrf.Positive, 2),
        "FAVOR++": _plain(settings, hrf.OptimalPositive, 1),
        "FAVOR#": _plain(settings, hrf.DenseExponential, 1),
        "angular hybrid": _plain(settings, hrf.AngularHybrid, 4 * (n + 1), **coefficient),
        "Gaussian hybrid": _plain(settings, hrf.GaussianHybrid, 4 * (2 * n + 1), **gaussian),
        "nested hybrid": _Recipe(_size(settings, _nested_width()), partial(_nested, settings)),
    }


def _size(settings: Settings, width_of_one: int) -> int:
    return max(1, round(settings.features / width_of_one))


def _plain(
    settings: Settings, cls: Callable[..., hrf.FeatureMap], width_of_one: int, **arguments: Any
) -> _Recipe:
    """Return the recipe of a map whose width is proportional to its number of projections."""
    m = _size(settings, width_of_one)
    common: dict[str, Any] = {"n_projections": m, "projection": _KIND, **arguments}
    return _Recipe(m, lambda heads, generator: cls(settings.dim, heads=heads, generator=generator, **common))


def _nested(settings: Settings, heads: int | None, generator: Generator) -> hrf.FeatureMap:
    """Build the hybrid whose Gaussian coefficient is estimated by an angular hybrid."""
    d, m = settings.dim, _size(settings, _nested_width())
    shared: dict[str, Any] = {"heads": heads, "generator": generator}
    omega = hrf.Projections(_KIND, m, d, **shared)
    bases = [
        base(d, n_projections=m, projection=omega, heads=heads) for base in (hrf.Positive, hrf.Trigonometric)
    ]
    angular = hrf.AngularHybrid(d, projection=_KIND, **_NESTED, **shared)
    window = {"sigma": settings.nested_sigma, "radius": settings.radius}
    return hrf.Hybrid(bases, [hrf.coefficients.Gaussian.bipolar(angular, **window)])


def _nested_width() -> int:
    """Return the width of the nested hybrid per projection of its bases."""
    coefficient: int = 4 * _NESTED["n_projections"] * (_NESTED["n_coefficient_projections"] + 1)
    return 4 * (coefficient + 1)

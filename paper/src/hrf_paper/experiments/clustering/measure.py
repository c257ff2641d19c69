"""Errors of estimators on clustered data: the estimators of the paper's table, and three that it does not have.

All estimators have m features: "FAVOR+" is the single exponential here, as in the numbers of the paper, and the
trigonometric map has m rows ω. Variants beyond the paper have the same form: A from the second moments of the
clusters instead of their centres, A with imaginary entries, and features of the residuals of the centres.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Generator, Tensor

import hrf
from hrf import fitting
from hrf_paper.experiments.clustering.data import clustered_data
from hrf_paper.experiments.clustering.printed import SETS, SIZES
from hrf_paper.experiments.experiment import Part

__all__ = ["Settings", "parts"]

_UNLIMITED = 1e9  # the paper does not limit the entries of A
_OPTIONS: dict[str, Any] = {"antithetic": False, "projection": "iid"}

Build = Callable[[int, Generator], hrf.FeatureMap]  # from m


@dataclass(frozen=True)
class Settings:
    """``stride`` thins the points over whose pairs the error is taken; centres are computed from all points.

    Exact errors are computed for ``data_draws`` draws of every set; draws of ω use the first of them.
    """

    dim: int = 50
    n_points: int = 1000
    sizes: tuple[int, ...] = SIZES
    repetitions: int = 20
    data_draws: int = 10
    stride: int = 2
    seed: int = 0


@dataclass(frozen=True)
class _Fitted:
    """A data set, thinned, with estimators fitted to it."""

    x: Tensor
    y: Tensor
    kernel: Tensor
    s: list[float]
    builders: dict[str, Build]


def parts(settings: Settings) -> dict[str, Part]:
    """Return one part per set with exact errors, one with other draws of the set, then one per set and m."""
    work: dict[str, Part] = {f"{name}, exact": partial(_exact, settings, name) for name in SETS}
    work |= {f"{name}, other data": partial(_others, settings, name) for name in SETS}
    work |= {f"{name}, m = {m}": partial(_drawn, settings, name, m) for name in SETS for m in settings.sizes}
    return work


@lru_cache(maxsize=len(SETS))
def _fitted(settings: Settings, name: str, draw: int = 0) -> _Fitted:
    s, variance = SETS[name]
    seed = len(SETS) * (1000 * settings.seed + draw) + list(SETS).index(name)
    x, y = clustered_data(settings.dim, settings.n_points, variance, s, Generator().manual_seed(seed))
    sides = [fitting.kmeans(points, 2, seed=settings.seed) for points in (x, y)]
    centers = sides[0].centers, sides[1].centers
    matrix = fitting.matrix_from_centers(*centers, "real-diagonal", limit=_UNLIMITED)
    moments = fitting.pair_moments(
        *(fitting.moments_by_cluster(u, side.labels, 2) for u, side in zip((x, y), sides, strict=True))
    )
    residuals = fitting.fit_residuals(x, y, (2, 2), "real-diagonal", seed=settings.seed)
    builders: dict[str, Build] = {
        "Hybrid-Cluster": partial(_by_pairs, centers, matrix),
        "FAVOR+": partial(_single, settings.dim),
        "Trigonometric": partial(_trigonometric, settings.dim),
        "second moments": partial(_by_pairs, centers, fitting.fit_matrix(moments, "real-diagonal")),
        "complex": partial(_by_pairs, centers, fitting.fit_matrix(moments, "complex-diagonal")),
        "shifted": partial(_shifted, residuals),
    }
    reached = (matrix * centers[0].unsqueeze(1) + centers[1] / matrix).square().sum(-1)
    x, y = x[:: settings.stride].float(), y[:: settings.stride].float()
    ordered = sorted(reached.flatten().tolist(), reverse=True)
    return _Fitted(x, y, hrf.kernels.softmax(x, y), ordered, builders)


# Estimators.


def _by_pairs(centers: tuple[Tensor, Tensor], matrix: Tensor, m: int, generator: Generator) -> hrf.FeatureMap:
    """Build the clustered map with one matrix A per pair of clusters."""
    inner = hrf.Exponential(
        matrix.shape[-1],
        n_projections=m,
        matrix=matrix.flatten(0, 1),
        heads=4,
        generator=generator,
        **_OPTIONS,
    )
    return hrf.ClusteredHybrid(*centers, base="paper", feature_map=inner).float()


def _shifted(residuals: fitting.ResidualFit, m: int, generator: Generator) -> hrf.FeatureMap:
    """Build the clustered map with features of the residuals of the centres."""
    queries, keys = residuals.queries.centers, residuals.keys.centers
    inner = hrf.Exponential(
        queries.shape[-1], n_projections=m, matrix=residuals.matrix, generator=generator, **_OPTIONS
    )
    return hrf.ClusteredHybrid(
        queries, keys, base="shifted", feature_map=inner, metric=residuals.metric
    ).float()


def _single(dim: int, m: int, generator: Generator) -> hrf.FeatureMap:
    return hrf.Exponential(dim, n_projections=m, generator=generator, **_OPTIONS)


def _trigonometric(dim: int, m: int, generator: Generator) -> hrf.FeatureMap:
    return hrf.Trigonometric(dim, n_projections=m, projection="iid", generator=generator)


# Parts.


def _exact(settings: Settings, name: str, draw: int = 0) -> dict[str, Any]:
    fitted = _fitted(settings, name, draw)
    x, y = fitted.x[::2], fitted.y[::2]
    errors = {key: float(build(1, Generator()).mse(x, y).mean()) for key, build in fitted.builders.items()}
    return {"s": fitted.s, "m · MSE": errors}


def _others(settings: Settings, name: str) -> dict[str, Any]:
    return {"m · MSE": [_exact(settings, name, draw)["m · MSE"] for draw in range(1, settings.data_draws)]}


def _drawn(settings: Settings, name: str, m: int) -> dict[str, Any]:
    fitted = _fitted(settings, name)
    found = {}
    for key, build in fitted.builders.items():
        generator = Generator().manual_seed(settings.seed)
        phi = build(m, generator)
        errors = []
        for _ in range(settings.repetitions):
            gap = phi.redraw_(generator).estimate(fitted.x, fitted.y).sub_(fitted.kernel)
            errors.append(float(gap.square_().mean(dtype=torch.float64)))
        found[key] = {"low": min(errors), "mean": sum(errors) / len(errors), "high": max(errors)}
    return found

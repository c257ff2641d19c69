"""Errors of estimators on clustered data: those of the paper's table, and three that it does not have.

All estimators have m features: "FAVOR+" is the single exponential here, as in the numbers of the paper, and the
trigonometric map has m rows ω. Variants beyond the paper are of the same kind: A from the second moments of the
clusters instead of their centres, the same with imaginary entries, and features of the residuals of the centres.
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

Build = Callable[[int, Generator], hrf.FeatureMap]  # from m


@dataclass(frozen=True)
class Settings:
    """``stride`` thins the points over whose pairs the error is taken; centres are of all points.

    Exact errors are of ``data_draws`` draws of every set; the first of them is the one that is estimated on.
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
    """A data set, thinned, and what estimates on it."""

    x: Tensor
    y: Tensor
    kernel: Tensor
    s: list[float]
    builders: dict[str, Build]


def parts(settings: Settings) -> dict[str, Part]:
    """Exact errors a set and on other draws of it, then one a set and m."""
    work: dict[str, Part] = {f"{name}, exact": partial(_exact, settings, name) for name in SETS}
    work |= {f"{name}, other data": partial(_others, settings, name) for name in SETS}
    work |= {f"{name}, m = {m}": partial(_drawn, settings, name, m) for name in SETS for m in settings.sizes}
    return work


@lru_cache(maxsize=len(SETS))
def _fitted(settings: Settings, name: str, draw: int = 0) -> _Fitted:
    s, variance = SETS[name]
    seed = len(SETS) * (1000 * settings.seed + draw) + list(SETS).index(name)
    generator = Generator().manual_seed(seed)
    x, y = clustered_data(settings.dim, settings.n_points, variance, s, generator)
    sides = [fitting.kmeans(points, 2, seed=settings.seed) for points in (x, y)]
    centers = sides[0].centers, sides[1].centers
    of_clusters = [
        fitting.moments_by_cluster(points, side.labels, 2) for points, side in zip((x, y), sides, strict=True)
    ]
    moments = fitting.pair_moments(*of_clusters)
    matrix = fitting.matrix_from_centers(*centers, "real-diagonal", limit=_UNLIMITED)
    residuals = fitting.fit_residuals(x, y, (2, 2), "real-diagonal", seed=settings.seed)
    options: dict[str, Any] = {"antithetic": False, "projection": "iid"}

    def by_pairs(a: Tensor) -> Build:
        def build(m: int, generator: Generator) -> hrf.FeatureMap:
            inner = hrf.Exponential(
                settings.dim, n_projections=m, matrix=a.flatten(0, 1), heads=4, generator=generator, **options
            )
            return hrf.ClusteredHybrid(*centers, base="paper", feature_map=inner).float()

        return build

    def shifted(m: int, generator: Generator) -> hrf.FeatureMap:
        inner = hrf.Exponential(
            settings.dim, n_projections=m, matrix=residuals.matrix, generator=generator, **options
        )
        own = residuals.queries.centers, residuals.keys.centers
        return hrf.ClusteredHybrid(*own, base="shifted", feature_map=inner, metric=residuals.metric).float()

    builders: dict[str, Build] = {
        "Hybrid-Cluster": by_pairs(matrix),
        "FAVOR+": lambda m, g: hrf.Exponential(settings.dim, n_projections=m, generator=g, **options),
        "Trigonometric": lambda m, g: hrf.Trigonometric(
            settings.dim, n_projections=m, projection="iid", generator=g
        ),
        "second moments": by_pairs(fitting.fit_matrix(moments, "real-diagonal")),
        "complex": by_pairs(fitting.fit_matrix(moments, "complex-diagonal")),
        "shifted": shifted,
    }
    reached = (matrix * centers[0].unsqueeze(1) + centers[1] / matrix).square().sum(-1)
    x, y = x[:: settings.stride].float(), y[:: settings.stride].float()
    return _Fitted(
        x,
        y,
        hrf.kernels.softmax(x, y),
        s=sorted(reached.flatten().tolist(), reverse=True),
        builders=builders,
    )


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

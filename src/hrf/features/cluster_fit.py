"""The parts of a clustered hybrid, fitted to data: centres, a map for the pairs, pairs with special treatment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Generator, Tensor

from hrf.features.asymmetric import AsymmetricExponential
from hrf.features.exponential import Exponential, Positive, Trigonometric
from hrf.fitting import (
    Clusters,
    DiagonalKind,
    MatrixKind,
    ResidualFit,
    cluster_sizes,
    fit_matrix,
    fit_residuals,
    heavy_keys,
    kmeans,
    largest_pairs,
    matrix_from_centers,
    moments_by_cluster,
    pair_moments,
)
from hrf.projections import ProjectionKind

__all__ = [
    "BASES",
    "DEFAULTS",
    "FEATURES",
    "ClusterBase",
    "ClusterSettings",
    "DefaultMap",
    "ResidualFeatures",
    "fitted_parts",
]

ClusterBase = Literal["paper", "moments", "shifted", "separable", "shrunk"]
BASES: tuple[ClusterBase, ...] = get_args(ClusterBase)

ResidualFeatures = Literal["exponential", "dense"]
FEATURES: tuple[ResidualFeatures, ...] = get_args(ResidualFeatures)

DefaultMap = Literal["positive", "trigonometric"]
DEFAULTS: dict[DefaultMap, Any] = {"positive": Positive, "trigonometric": Trigonometric}


class ClusterSettings(NamedTuple):
    """Arguments of `ClusteredHybrid.fit` that shape the parts."""

    n_clusters: tuple[int, int]
    n_projections: int
    base: ClusterBase
    matrix: MatrixKind
    features: ResidualFeatures
    projection: ProjectionKind
    exact_share: float
    default: DefaultMap | None
    default_share: float
    heads: int | None
    seed: int


class _Data(NamedTuple):
    """Vectors ``(N, d)``, or ``(H, N, d)`` with heads, and the settings of a fit to them."""

    x: Tensor
    y: Tensor
    settings: ClusterSettings
    clusters: ResidualFit | None
    generator: Generator | None

    def common(self) -> dict[str, Any]:
        """Return constructor arguments that all random maps share."""
        n, kind = self.settings.n_projections, self.settings.projection
        return {"n_projections": n, "projection": kind, "generator": self.generator}


class _Base(NamedTuple):
    """Clusters of queries and of keys, and constructor arguments of the base that was fitted to them."""

    queries: Clusters
    keys: Clusters
    arguments: dict[str, Any]


def fitted_parts(
    x: Tensor,
    y: Tensor,
    settings: ClusterSettings,
    clusters: ResidualFit | None,
    generator: Generator | None,
) -> dict[str, Any]:
    """Return constructor arguments of a `ClusteredHybrid` for vectors ``(N, d)``, or ``(H, N, d)`` with heads.

    A shrinkage is only a placeholder of 1: it needs the finished map.
    """
    _check_settings(settings, clusters)
    data = _Data(x, y, settings, clusters, generator)
    queries, keys, arguments = _FIT[settings.base](data)
    parts = {
        "base": settings.base,
        "query_centers": queries.centers,
        "key_centers": keys.centers,
        **arguments,
    }
    n_q, n_k = settings.n_clusters
    sizes = cluster_sizes(queries.labels, n_q), cluster_sizes(keys.labels, n_k)
    if settings.exact_share:
        parts["exact"] = heavy_keys([queries.centers, keys.centers], sizes[1], settings.exact_share)
    if settings.default is not None:
        default = DEFAULTS[settings.default]
        parts["default"] = default(x.shape[-1], heads=settings.heads, **data.common())
        parts["served"] = largest_pairs(*sizes, share=1 - settings.default_share)
    return parts


def _check_settings(settings: ClusterSettings, clusters: ResidualFit | None) -> None:
    """Refuse settings that do not go together."""
    base, features, default = settings.base, settings.features, settings.default
    if base not in BASES:
        raise ValueError(f"base is {base!r}; expected one of {', '.join(BASES)}")
    if features not in FEATURES or (features == "dense" and base not in ("shifted", "shrunk")):
        raise ValueError(
            f"features is {features!r}; expected 'exponential', or 'dense' for shifted and shrunk"
        )
    if clusters is not None and base in ("paper", "moments"):
        raise ValueError(f"base {base!r} got clusters of residuals; expected shifted, separable or shrunk")
    if default is not None and default not in DEFAULTS:
        raise ValueError(f"default is {default!r}; expected None, 'positive' or 'trigonometric'")


def _paper(data: _Data) -> _Base:
    """Take Aᵢⱼ from the two centres."""
    queries, keys = _kmeans(data)
    kind = cast("DiagonalKind", data.settings.matrix)  # other kinds are refused
    return _per_pair(data, queries, keys, matrix_from_centers(queries.centers, keys.centers, kind))


def _moments(data: _Data) -> _Base:
    """Take Aᵢⱼ from the second moments of the two clusters."""
    queries, keys = _kmeans(data)
    n_q, n_k = data.settings.n_clusters
    moments = pair_moments(
        moments_by_cluster(data.x, queries.labels, n_q), moments_by_cluster(data.y, keys.labels, n_k)
    )
    return _per_pair(data, queries, keys, fit_matrix(moments, data.settings.matrix))


def _shifted(data: _Data) -> _Base:
    """Fit one A to all residuals."""
    queries, keys, fit = _residuals(data)
    dim, common = data.x.shape[-1], {"matrix": fit.matrix, "heads": data.settings.heads, **data.common()}
    if data.settings.features == "dense":
        inner: Any = AsymmetricExponential(dim, **common).fit_moments(fit.moments)
    else:
        inner = Exponential(dim, **common)
    return _Base(queries, keys, {"metric": fit.metric, "feature_map": inner})


def _separable(data: _Data) -> _Base:
    """Fit the clusters alone."""
    queries, keys, fit = _residuals(data)
    return _Base(queries, keys, {"metric": fit.metric})


def _shrunk(data: _Data) -> _Base:
    """Do as `_shifted`; the shrinkage follows when the map is finished."""
    queries, keys, arguments = _shifted(data)
    heads = data.settings.heads
    shrinkage = torch.ones(() if heads is None else (heads,), dtype=torch.float64)
    return _Base(queries, keys, arguments | {"shrinkage": shrinkage})


_FIT: dict[ClusterBase, Callable[[_Data], _Base]] = {
    "paper": _paper,
    "moments": _moments,
    "shifted": _shifted,
    "separable": _separable,
    "shrunk": _shrunk,
}


def _kmeans(data: _Data) -> tuple[Clusters, Clusters]:
    n_q, n_k = data.settings.n_clusters
    return kmeans(data.x, n_q, seed=data.settings.seed), kmeans(data.y, n_k, seed=data.settings.seed)


def _residuals(data: _Data) -> tuple[Clusters, Clusters, ResidualFit]:
    s = data.settings
    fit = data.clusters or fit_residuals(data.x, data.y, s.n_clusters, s.matrix, seed=s.seed)
    return fit.queries, fit.keys, fit


def _per_pair(data: _Data, queries: Clusters, keys: Clusters, matrices: Tensor) -> _Base:
    """Build a map with one head per pair of clusters (of every head) from matrices ``(..., n_q, n_k, d[, d])``."""
    flat = matrices.flatten(0, 1 if data.settings.heads is None else 2)
    inner = Exponential(data.x.shape[-1], matrix=flat, heads=len(flat), **data.common())
    return _Base(queries, keys, {"feature_map": inner})

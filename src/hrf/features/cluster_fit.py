"""The parts of a clustered hybrid, fitted to data: centres, a map for the pairs, which pairs are special."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from hrf.features.asymmetric import AsymmetricExponential
from hrf.features.exponential import Exponential, Positive, Trigonometric
from hrf.fitting import (
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

__all__ = ["BASES", "fitted_parts"]

BASES = ("paper", "moments", "shifted", "separable", "shrunk")
_FEATURES = ("exponential", "dense")
_DEFAULTS = {"positive": Positive, "trigonometric": Trigonometric}


def fitted_parts(
    x: Tensor,
    y: Tensor,
    *,
    n_clusters: tuple[int, int],
    n_projections: int,
    base: str,
    matrix: str,
    features: str,
    projection: str,
    exact_share: float,
    default: str | None,
    default_share: float,
    heads: int | None,
    clusters: ResidualFit | None,
    seed: int,
    generator: Generator | None,
) -> dict[str, Any]:
    """Constructor arguments of a `ClusteredHybrid` for vectors ``(N, d)``, or ``(H, N, d)`` with heads.

    A shrinkage is there only as a placeholder of 1: it needs the finished map.
    """
    if base not in BASES:
        raise ValueError(f"base is {base!r}; expected one of {', '.join(BASES)}")
    if features not in _FEATURES or (features == "dense" and base not in ("shifted", "shrunk")):
        raise ValueError(
            f"features is {features!r}; expected 'exponential', or 'dense' for shifted and shrunk"
        )
    if clusters is not None and base in ("paper", "moments"):
        raise ValueError(f"base {base!r} got clusters of residuals; expected shifted, separable or shrunk")
    if default is not None and default not in _DEFAULTS:
        raise ValueError(f"default is {default!r}; expected None, 'positive' or 'trigonometric'")
    dim = x.shape[-1]
    common: dict[str, Any] = {
        "n_projections": n_projections,
        "projection": projection,
        "generator": generator,
    }
    parts: dict[str, Any] = {"base": base}
    if base in ("paper", "moments"):
        sides = [kmeans(u, n, seed=seed) for u, n in zip((x, y), n_clusters, strict=True)]
        if base == "paper":
            a = matrix_from_centers(sides[0].centers, sides[1].centers, matrix)
        else:
            of_clusters = zip((x, y), sides, n_clusters, strict=True)
            a = fit_matrix(
                pair_moments(*(moments_by_cluster(u, c.labels, n) for u, c, n in of_clusters)), matrix
            )
        a = a.flatten(0, 1 if heads is None else 2)  # one head a pair of clusters
        parts["feature_map"] = Exponential(dim, matrix=a, heads=len(a), **common)
    else:
        fitted = clusters or fit_residuals(x, y, n_clusters, matrix, seed=seed)
        sides, parts["metric"] = [fitted.queries, fitted.keys], fitted.metric
        common_map: dict[str, Any] = {"matrix": fitted.matrix, "heads": heads, **common}
        if features == "dense":
            parts["feature_map"] = AsymmetricExponential(dim, **common_map).fit_moments(fitted.moments)
        elif base != "separable":
            parts["feature_map"] = Exponential(dim, **common_map)
    if base == "shrunk":
        parts["shrinkage"] = torch.ones(() if heads is None else (heads,), dtype=torch.float64)
    centers = [c.centers for c in sides]
    parts |= {"query_centers": centers[0], "key_centers": centers[1]}
    sizes = [cluster_sizes(c.labels, n) for c, n in zip(sides, n_clusters, strict=True)]
    if exact_share:
        parts["exact"] = heavy_keys(centers, sizes[1], exact_share)
    if default is not None:
        parts["default"] = _DEFAULTS[default](dim, heads=heads, **common)
        parts["served"] = largest_pairs(*sizes, share=1 - default_share)
    return parts

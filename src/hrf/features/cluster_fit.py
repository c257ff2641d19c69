"""The parts of a clustered hybrid, fitted to data: centres, a map for the pairs, which pairs are special."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from hrf.features.exponential import Exponential, Positive, Trigonometric
from hrf.features.grouping import gather_rows
from hrf.fitting import (
    SecondMoments,
    fit_matrix,
    heavy_keys,
    kmeans,
    largest_pairs,
    matrix_from_centers,
    moments_by_cluster,
    pair_moments,
)

__all__ = ["BASES", "fitted_parts"]

BASES = ("paper", "moments", "shifted", "separable", "shrunk")
_DEFAULTS = {"positive": Positive, "trigonometric": Trigonometric}


def fitted_parts(
    x: Tensor,
    y: Tensor,
    *,
    n_clusters: tuple[int, int],
    n_projections: int,
    base: str,
    matrix: str,
    projection: str,
    exact_share: float,
    default: str | None,
    default_share: float,
    heads: int | None,
    seed: int,
    generator: Generator | None,
) -> dict[str, Any]:
    """Constructor arguments of a `ClusteredHybrid` for vectors ``(N, d)``, or ``(H, N, d)`` with heads.

    A shrinkage is there only as a placeholder of 1: it needs the finished map.
    """
    if base not in BASES:
        raise ValueError(f"base is {base!r}; expected one of {', '.join(BASES)}")
    if default is not None and default not in _DEFAULTS:
        raise ValueError(f"default is {default!r}; expected None, 'positive' or 'trigonometric'")
    dim = x.shape[-1]
    common: dict[str, Any] = {
        "n_projections": n_projections,
        "projection": projection,
        "generator": generator,
    }
    clusters = [kmeans(u, n, seed=seed) for u, n in zip((x, y), n_clusters, strict=True)]
    moments = [
        moments_by_cluster(u, c.labels, c.centers.shape[-2]) for u, c in zip((x, y), clusters, strict=True)
    ]
    centers = [c.centers for c in clusters]
    parts: dict[str, Any] = {"query_centers": centers[0], "key_centers": centers[1], "base": base}
    if base in ("paper", "moments"):
        if base == "paper":
            a = matrix_from_centers(centers[0], centers[1], matrix)
        else:
            a = fit_matrix(pair_moments(*moments), matrix)
        a = a.flatten(0, 1 if heads is None else 2)  # one head a pair of clusters
        parts["feature_map"] = Exponential(dim, matrix=a, heads=len(a), **common)
    elif base != "separable":
        residuals = [u - gather_rows(c.centers, c.labels) for u, c in zip((x, y), clusters, strict=True)]
        a = fit_matrix(SecondMoments.of(*residuals), matrix)
        parts["feature_map"] = Exponential(dim, matrix=a, heads=heads, **common)
    if base == "shrunk":
        parts["shrinkage"] = torch.ones(() if heads is None else (heads,), dtype=torch.float64)
    if exact_share:
        parts["exact"] = heavy_keys(centers, moments, exact_share)
    if default is not None:
        parts["default"] = _DEFAULTS[default](dim, heads=heads, **common)
        parts["served"] = largest_pairs(*(m.counts for m in moments), share=1 - default_share)
    return parts

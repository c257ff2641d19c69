"""Maps for kernel machines by name: at most so many features, fitted to rows where the map is fitted at all.

A kernel machine is a linear model on features φ(x), the query side of a map, so its kernel is φ(x)·φ(y). For the maps
whose sides are equal that is the map's own estimate. The sides of ``exponential``, ``angular`` and ``clustered`` maps
may differ: a linear model on their features is sound, but its kernel is another one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

from torch import Generator, Tensor

from hrf.features.base import FeatureMap
from hrf.features.clustered import ClusteredHybrid
from hrf.features.exponential import Exponential, Positive, Trigonometric
from hrf.features.gaussian import GaussianKernel
from hrf.features.hybrid import AngularHybrid
from hrf.features.optimal import DenseExponential, OptimalPositive
from hrf.projections import ProjectionKind

__all__ = ["ADVISED", "NAMES", "KernelName", "MapName", "make_map"]

KernelName = Literal["rbf", "softmax"]
MapName = Literal[
    "trigonometric",
    "positive",
    "optimal-positive",
    "dense-exponential",
    "centred",
    "exponential",
    "angular",
    "clustered",
]
NAMES: tuple[MapName, ...] = get_args(MapName)
# Maps whose sides are equal, so that the linear model has the kernel that was asked for; ``centred`` stands for
# ``positive`` too, which it is for rows with mean 0.
ADVISED: tuple[MapName, ...] = ("trigonometric", "centred", "optimal-positive", "dense-exponential")

_CLUSTERS = 2  # per side: a pair of clusters gets a quarter of the features

# A maker takes rows to fit to, the number of features, and ``projection`` and ``generator``.
Maker = Callable[..., FeatureMap]


def _drawn(
    cls: Callable[..., FeatureMap], per_row: int, rows: Tensor, width: int, **common: Any
) -> FeatureMap:
    return cls(rows.shape[-1], n_projections=_rows_within(width, per_row), **common)


def _tilted(
    cls: type[OptimalPositive | DenseExponential], rows: Tensor, width: int, **common: Any
) -> FeatureMap:
    return cls(rows.shape[-1], n_projections=width, **common).fit(rows, rows)


def _exponential(
    per_row: int, rows: Tensor, width: int, *, matrix: Any, shift: bool, **common: Any
) -> FeatureMap:
    n_projections = _rows_within(width, per_row)
    return Exponential.fit(rows, rows, n_projections=n_projections, matrix=matrix, shift=shift, **common)


def _clustered(rows: Tensor, width: int, **common: Any) -> FeatureMap:
    n_projections = _rows_within(width, 2 * _CLUSTERS**2)  # two features per projection, as ±ω
    clusters = (_CLUSTERS, _CLUSTERS)
    arguments: dict[str, Any] = {
        "n_clusters": clusters,
        "n_projections": n_projections,
        "base": "shifted",
    } | common
    return ClusteredHybrid.fit(rows, rows, **arguments)


def _angular(rows: Tensor, width: int, **common: Any) -> FeatureMap:
    one = AngularHybrid(rows.shape[-1], n_projections=1, n_coefficient_projections=1, **common)
    n_projections = _rows_within(width, one.feature_dim)
    return AngularHybrid(rows.shape[-1], n_projections=n_projections, n_coefficient_projections=1, **common)


_MAKERS: dict[MapName, Maker] = {
    "trigonometric": partial(_drawn, Trigonometric, 2),
    "positive": partial(_drawn, Positive, 2),
    "optimal-positive": partial(_tilted, OptimalPositive),
    "dense-exponential": partial(_tilted, DenseExponential),
    "centred": partial(_exponential, 2, matrix=None, shift=True),
    "exponential": partial(_exponential, 4, matrix="complex-full", shift=False),
    "angular": _angular,
    "clustered": _clustered,
}


def make_map(
    name: MapName, rows: Tensor, width: int, *, kernel: KernelName, projection: ProjectionKind, seed: int
) -> FeatureMap:
    """Draw and fit a map with at most ``width`` features, or with one projection if they are too few for that.

    Args:
        name: one of `NAMES`.
        rows: ``(N, d)`` to fit to, scaled as the kernel needs them: exp(−‖x − y‖²/2) or exp(xᵀy).
        width: the largest number of features.
        kernel: ``"rbf"`` or ``"softmax"``.
        projection: one of `hrf.projections.KINDS`.
        seed: seed of ω and of k-means.
    """
    if name not in _MAKERS:
        raise ValueError(
            f"feature_map is {name!r}; expected 'auto', one of {', '.join(NAMES)}, or a FeatureMap"
        )
    made = _MAKERS[name](rows, width, projection=projection, generator=Generator().manual_seed(seed))
    return GaussianKernel(made) if kernel == "rbf" else made


def _rows_within(width: int, per_row: int) -> int:
    """Return the number of projections with ``per_row`` features each: at least one."""
    return max(1, width // per_row)

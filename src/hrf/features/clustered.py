"""One base per pair of clusters (paper, Sec. 2.4 and the zero-one mixtures of its appendix).

A query belongs to the nearest of n_q centres rᵢ, a key to the nearest of n_k centres rⱼ, and the pair (i, j)
decides how exp(xᵀy) is estimated; λ is the indicator of the pair. With residuals x' = x − rᵢ, y' = y − rⱼ,

    exp(xᵀy) = exp(xᵀrⱼ + rᵢᵀy') · exp(x'ᵀy'),

where the first factor is exact and separable. The bases:

=============  ==========================================================================  ========
base           estimate for a pair of clusters                                             unbiased
=============  ==========================================================================  ========
``paper``      complex exponential with Aᵢⱼ from the two centres                            yes
``moments``    complex exponential with Aᵢⱼ from the second moments of the two clusters     yes
``shifted``    exp(xᵀrⱼ + rᵢᵀy') K̂(x', y'), one A for all residuals (not in the paper)       yes
``separable``  exp(xᵀrⱼ + rᵢᵀy'): one feature, no variance                                  no
``shrunk``     exp(xᵀrⱼ + rᵢᵀy') (1 + s (K̂(x', y') − 1)), 0 ≤ s ≤ 1, between the last two    no
=============  ==========================================================================  ========
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Generator, Tensor
from typing_extensions import Self, override

from hrf.checks import generator_of
from hrf.features import flops
from hrf.features.base import FeatureMap
from hrf.features.cluster_features import ClusterEstimates, look_up
from hrf.features.exponential import Exponential, Positive, Trigonometric
from hrf.features.flops import Flops
from hrf.features.optimal import AsymmetricExponential
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
    samples,
)
from hrf.projections import ProjectionKind

__all__ = [
    "BASES",
    "DEFAULTS",
    "FEATURES",
    "ClusterBase",
    "ClusteredHybrid",
    "DefaultMap",
    "ResidualFeatures",
]

# The parts of a clustered hybrid, fitted to data: centres, a map for the pairs, pairs with special treatment.


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


# The arguments of `fit` that `refit_` uses again.
_SETTINGS = {*ClusterSettings._fields, "recenter"}


class ClusteredHybrid(ClusterEstimates):
    """One base estimator per pair of a query cluster and a key cluster.

    Args:
        query_centers: ``(n_q, d)``, or ``(H, n_q, d)`` with heads.
        key_centers: ``(n_k, d)``, or ``(H, n_k, d)``.
        base: one of `BASES`.
        feature_map: the random map. For ``paper`` and ``moments`` an `Exponential` with one head per pair
            of clusters, n_q·n_k (H·n_q·n_k with heads); for ``shifted`` and ``shrunk`` one map of all
            residuals; ``None`` for ``separable``.
        metric: M of the distances (x − rᵢ)ᵀM(x − rᵢ) and (y − rⱼ)ᵀM⁻¹(y − rⱼ) by which vectors belong to centres,
            ``(d, d)`` or ``(H, d, d)``; ``None`` is the identity.
        shrinkage: s, ``()`` or ``(H,)``; for ``shrunk`` only.
        exact: pairs of clusters to compute exactly, booleans ``(n_q, n_k)`` or ``(H, n_q, n_k)``.
        default: a map for the pairs of clusters that are not ``served``.
        served: pairs of clusters that the base serves, booleans like ``exact``; ``None`` means all.
        recenter: move the key centres to the means of the keys at hand, at linear cost. Features of a query
            then depend on all keys, so `queries` and `keys` need fixed centres: see `at`.
        settings: arguments of `fit`, for `refit_`.
    """

    def __init__(
        self,
        query_centers: Tensor,
        key_centers: Tensor,
        *,
        base: ClusterBase,
        feature_map: FeatureMap | None = None,
        metric: Tensor | None = None,
        shrinkage: Tensor | None = None,
        exact: Tensor | None = None,
        default: FeatureMap | None = None,
        served: Tensor | None = None,
        recenter: bool = False,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if base not in BASES:
            raise ValueError(f"base is {base!r}; expected one of {', '.join(BASES)}")
        *heads, self.n_q, self.dim = query_centers.shape
        self.n_k = key_centers.shape[-2]
        self.heads = heads[0] if heads else None
        if tuple(key_centers.shape) != (*heads, self.n_k, self.dim) or len(heads) > 1:
            raise ValueError(
                f"the centres have shapes {tuple(query_centers.shape)} and {tuple(key_centers.shape)}; "
                "expected (n_q, d) and (n_k, d), both with the same leading axis for heads if there is one"
            )
        self.base, self.recenter, self.settings = base, recenter, settings
        self.feature_map, self.default = feature_map, default
        for name, value, shape in (
            ("query_centers", query_centers, (self.n_q, self.dim)),
            ("key_centers", key_centers, (self.n_k, self.dim)),
            ("metric", metric, (self.dim, self.dim)),
            ("shrinkage", shrinkage, ()),
            ("exact", exact, (self.n_q, self.n_k)),
            ("served", served, (self.n_q, self.n_k)),
        ):
            self._add(name, value, (*heads, *shape))
        self._check_parts()
        width = 1 if feature_map is None else feature_map.feature_dim + (base == "shrunk")
        self.feature_dim = self.n_q * self.n_k * width
        self.feature_dim += 0 if default is None else self.n_q * default.feature_dim

    def _add(self, name: str, value: Tensor | None, shape: tuple[int, ...]) -> None:
        """Register a buffer, if it has the shape; ``metric`` becomes one buffer per side."""
        if value is not None and tuple(value.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(value.shape)}; expected {shape}")
        dtype = torch.bool if name in ("exact", "served") else None
        own = None if value is None else value.detach().to(dtype or value.dtype, copy=True)
        if name == "metric":
            self.register_buffer("query_metric", own)
            name, own = "key_metric", None if own is None else torch.linalg.inv(own.double()).to(own.dtype)
        self.register_buffer(name, own)

    @classmethod
    def fit(
        cls,
        queries: Tensor,
        keys: Tensor,
        *,
        n_clusters: tuple[int, int] = (3, 3),
        n_projections: int = 64,
        base: ClusterBase = "shifted",
        matrix: MatrixKind = "real-diagonal",
        features: ResidualFeatures = "exponential",
        projection: ProjectionKind = "orthogonal",
        exact_share: float = 0.0,
        default: DefaultMap | None = None,
        default_share: float = 0.5,
        recenter: bool = False,
        clusters: ResidualFit | None = None,
        heads: int | None = None,
        generator: Generator | None = None,
        seed: int | None = None,
    ) -> Self:
        """Cluster queries and keys and fit a base to every pair of clusters.

        Args:
            queries: ``(..., L, d)``, or ``(..., H, L, d)`` with ``heads=H``: fitted head by head.
            keys: ``(..., S, d)``, likewise.
            n_clusters: n_q and n_k.
            n_projections: m of each random map.
            base: one of `BASES`.
            matrix: kind of A, one of `hrf.fitting.KINDS` (diagonals only for ``paper``). For the bases of
                residuals it is also the geometry of the clusters (`hrf.fitting.fit_residuals`).
            features: features of the residuals, for ``shifted`` and ``shrunk``: ``"exponential"`` (`Exponential`),
                or ``"dense"`` (`AsymmetricExponential`, FAVOR#), which has less error where residuals are long,
                but a closed form of it for ``projection="iid"`` only.
            projection: one of `hrf.projections.KINDS`.
            exact_share: largest share of the keys that each query cluster meets exactly, in whole clusters, heaviest
                first (by rᵢᵀrⱼ + log of the number of keys). The method `exact_share` measures the share on data.
            default: ``"positive"`` or ``"trigonometric"``, to serve all but the largest pairs of clusters.
            default_share: share of all pairs of vectors that is left to ``default``.
            recenter: see the class.
            clusters: result of `hrf.fitting.fit_residuals` on these data, in place of ``n_clusters`` and
                ``matrix``, to fit several bases of residuals at the price of one.
            heads: ``None``, or H.
            generator: the source of ω.
            seed: seed of k-means, 0 by default, and of ω where there is no ``generator``.
        """
        settings = {name: value for name, value in locals().items() if name in _SETTINGS}
        if not isinstance(n_clusters, Sequence) or len(n_clusters) != 2:
            raise TypeError(
                f"n_clusters is {n_clusters!r}; expected clusters of queries and of keys, as in (2, 2)"
            )
        x, y = samples(queries, heads, "queries"), samples(keys, heads, "keys")
        omega = generator_of(generator, seed if generator is None else None)
        return cls._fitted(x, y, settings, clusters, omega)

    @classmethod
    def _fitted(
        cls,
        x: Tensor,
        y: Tensor,
        settings: dict[str, Any],
        clusters: ResidualFit | None,
        generator: Generator | None,
    ) -> Self:
        if clusters is not None:
            settings["n_clusters"] = tuple(c.centers.shape[-2] for c in (clusters.queries, clusters.keys))
            settings["matrix"] = clusters.kind
        named = {name: settings[name] for name in ClusterSettings._fields}
        fitted = ClusterSettings(**(named | {"seed": settings["seed"] or 0}))
        parts = fitted_parts(x, y, fitted, clusters, generator)
        phi = cls(**parts, recenter=settings["recenter"], settings=settings)
        if phi.shrinkage is not None:
            phi.shrinkage.copy_(phi._best_shrinkage(x, y, fitted.seed))
        return phi.to(torch.get_default_dtype())

    def refit_(self, queries: Tensor, keys: Tensor) -> Self:
        """Fit to new data with the settings of `fit`, in place; ω stays as it is."""
        if self.settings is None:
            raise ValueError("this map was not made by fit, so there are no settings to refit with")
        fitted = type(self).fit(queries, keys, **self.settings)
        for mine, new in zip(self.all_projections(), fitted.all_projections(), strict=True):
            new.load_state_dict(mine.state_dict())
        self.load_state_dict(fitted.state_dict())
        return self

    @override
    def with_fixed_centres(self) -> Self:
        """Return this map, or a shallow copy whose key centres stay where they were fitted."""
        if not self.recenter:
            return self
        fixed = copy.copy(self)
        fixed.recenter = False
        return fixed

    @override
    def exact_share(self, queries: Tensor, keys: Tensor) -> float:
        """Return the share of pairs of vectors that are computed exactly rather than estimated."""
        if self.exact is None:
            return 0.0
        x, y = self._checked_pair(queries, keys)
        return float(look_up(self.exact, self.assign(x, "query"), self.assign(y, "key")).double().mean())

    def _check_parts(self) -> None:
        """Refuse a map or a shrinkage that does not go with the base."""
        heads = self.heads
        if self.per_pair:
            heads = (self.heads or 1) * self.n_q * self.n_k
        if (self.feature_map is None) != (self.base == "separable"):
            raise ValueError(
                f"base {self.base!r} got feature_map={self.feature_map!r}; expected a map, and None for 'separable'"
            )
        for part, expected in ((self.feature_map, heads), (self.default, self.heads)):
            if part is not None and (part.dim, part.heads) != (self.dim, expected):
                received = f"{type(part).__name__} has dim, heads = {(part.dim, part.heads)}"
                raise ValueError(f"{received}; expected {(self.dim, expected)}")
        if (self.shrinkage is None) != (self.base != "shrunk"):
            raise ValueError(f"base {self.base!r} got shrinkage={self.shrinkage!r}; it belongs to 'shrunk'")
        if (self.default is None) != (self.served is None):
            raise ValueError("default and served belong together: a map, and the pairs it does not serve")

    @property
    @override
    def unbiased(self) -> bool:
        """Whether the mean over draws is exactly the kernel: not for ``separable`` and ``shrunk``."""
        return self.base in ("paper", "moments", "shifted") and super().unbiased

    @property
    @override
    def nonnegative(self) -> bool:
        """Whether no estimate can be negative, as for nonnegative parts."""
        return all(part is None or part.nonnegative for part in (self.feature_map, self.default))

    def at(self, keys: Tensor) -> Self:
        """Return a copy whose key centres are fixed at the means of ``keys``, ``(S, d)`` or ``(H, S, d)``."""
        y = self._checked(keys, "keys")
        moved = copy.deepcopy(self)
        moved.key_centers.copy_(self._means(y, self.assign(y, "key")))
        moved.recenter = False
        return moved

    @override
    def _flops(self) -> Flops:
        """Count 2dn for the distances to the n centres of a vector's side, and its active features.

        Active features take one map of the residual and 2dn for products with the n centres of the other side,
        or n maps for ``paper`` and ``moments``. The larger side counts as n; a default map is added. The cost of
        exact pairs and of moving centres depends on the sequence and is not counted.
        """
        blocks = max(self.n_q, self.n_k)
        inner, default = (
            Flops() if part is None else part._flops() for part in (self.feature_map, self.default)
        )
        spread = inner.times(blocks) if self.per_pair else inner.plus(flops.projected(blocks, self.dim))
        return flops.distances(blocks, self.dim).plus(spread, default)

    @override
    def config(self) -> dict[str, Any]:
        return {
            "query_centers": self.query_centers,
            "key_centers": self.key_centers,
            "base": self.base,
            "feature_map": self.feature_map,
            "metric": self.query_metric,
            "shrinkage": self.shrinkage,
            "exact": self.exact,
            "default": self.default,
            "served": self.served,
            "recenter": self.recenter,
            "settings": self.settings,
        }

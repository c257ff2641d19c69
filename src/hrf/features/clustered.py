"""One base for each pair of clusters (paper, Sec. 2.4 and the zero-one mixtures of its appendix).

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
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot
from typing_extensions import Self

from hrf import kernels
from hrf.features import flops
from hrf.features.base import FeatureMap, Features, Side, common_scale, finite
from hrf.features.cluster_fit import BASES, fitted_parts
from hrf.features.flops import Flops
from hrf.features.grouping import Active, by_pairs, gather_rows, look_up
from hrf.fitting import ResidualFit, assign, samples
from hrf.projections import draw

__all__ = ["BASES", "ClusteredHybrid"]

# The arguments of `fit` that `refit_` uses again.
_SETTINGS = {
    "n_clusters",
    "n_projections",
    "base",
    "matrix",
    "features",
    "projection",
    "exact_share",
    "default",
    "default_share",
    "recenter",
    "heads",
    "seed",
}


class _Geometry(NamedTuple):
    """Clusters of queries and keys, ``(..., L)`` and ``(..., S)``, and their centres, with an axis d more."""

    i: Tensor
    j: Tensor
    query_center: Tensor
    key_center: Tensor


class ClusteredHybrid(FeatureMap):
    """A base estimator for each pair of a query cluster and a key cluster.

    Args:
        query_centers: ``(n_q, d)``, or ``(H, n_q, d)`` with heads.
        key_centers: ``(n_k, d)``, or ``(H, n_k, d)``.
        base: one of `BASES`.
        feature_map: what estimates. For ``paper`` and ``moments`` an `Exponential` with a head for each pair
            of clusters, n_q·n_k (H·n_q·n_k with heads); for ``shifted`` and ``shrunk`` one map of the
            residuals; ``None`` for ``separable``.
        metric: M of the distances (x − rᵢ)ᵀM(x − rᵢ) and (y − rⱼ)ᵀM⁻¹(y − rⱼ) by which vectors belong to centres,
            ``(d, d)`` or ``(H, d, d)``; ``None`` is the identity.
        shrinkage: s, ``()`` or ``(H,)``; for ``shrunk`` only.
        exact: pairs of clusters to compute exactly, booleans ``(n_q, n_k)`` or ``(H, n_q, n_k)``.
        default: a map for the pairs of clusters that are not ``served``.
        served: pairs of clusters that the base serves, booleans like ``exact``; ``None`` is all.
        recenter: move the key centres to the means of the keys at hand, at linear cost. Features of a query
            then depend on all keys, so `queries` and `keys` need fixed centres: see `at`.
        settings: what `fit` was called with, for `refit_`.
    """

    query_centers: Tensor
    key_centers: Tensor
    query_metric: Tensor | None
    key_metric: Tensor | None
    shrinkage: Tensor | None
    exact: Tensor | None
    served: Tensor | None

    def __init__(
        self,
        query_centers: Tensor,
        key_centers: Tensor,
        *,
        base: str,
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
        self.register_buffer("query_centers", query_centers.detach().clone())
        self.register_buffer("key_centers", key_centers.detach().clone())
        if metric is not None and tuple(metric.shape) != (*heads, self.dim, self.dim):
            expected = (*heads, self.dim, self.dim)
            raise ValueError(f"metric has shape {tuple(metric.shape)}; expected {expected}")
        inverse = None if metric is None else torch.linalg.inv(metric.detach().double()).to(metric.dtype)
        self.register_buffer("query_metric", None if metric is None else metric.detach().clone())
        self.register_buffer("key_metric", inverse)
        self.register_buffer("shrinkage", None if shrinkage is None else shrinkage.detach().clone())
        for name, pairs in (("exact", exact), ("served", served)):
            if pairs is not None and tuple(pairs.shape) != (*heads, self.n_q, self.n_k):
                expected = (*heads, self.n_q, self.n_k)
                raise ValueError(f"{name} has shape {tuple(pairs.shape)}; expected {expected}")
            self.register_buffer(name, None if pairs is None else pairs.detach().bool())
        self._check_parts()
        width = 1 if feature_map is None else feature_map.feature_dim + (base == "shrunk")
        self.feature_dim = self.n_q * self.n_k * width
        self.feature_dim += 0 if default is None else self.n_q * default.feature_dim

    @classmethod
    def fit(
        cls,
        queries: Tensor,
        keys: Tensor,
        *,
        n_clusters: tuple[int, int] = (3, 3),
        n_projections: int = 64,
        base: str = "shifted",
        matrix: str = "real-diagonal",
        features: str = "exponential",
        projection: str = "orthogonal",
        exact_share: float = 0.0,
        default: str | None = None,
        default_share: float = 0.5,
        recenter: bool = False,
        clusters: ResidualFit | None = None,
        heads: int | None = None,
        seed: int = 0,
        generator: Generator | None = None,
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
            features: of the residuals, for ``shifted`` and ``shrunk``: ``"exponential"`` (`Exponential`), or
                ``"dense"`` (`AsymmetricExponential`, FAVOR#), with less error where residuals are long, but
                with a closed form of it for ``projection="iid"`` only.
            projection: one of `hrf.projections.KINDS`.
            exact_share: the most of the keys that each query cluster meets exactly, heaviest clusters first
                (by rᵢᵀrⱼ + log of the number of keys), as far as whole clusters fit. An error says so if none
                does; the method `exact_share` says what is reached on data.
            default: ``"positive"`` or ``"trigonometric"``, to serve all but the largest pairs of clusters.
            default_share: the share of all pairs of vectors that is left to ``default``.
            recenter: see the class.
            clusters: of these data, by `hrf.fitting.fit_residuals`, instead of ``n_clusters`` and ``matrix``, for
                several bases of residuals at the price of one.
            heads: ``None``, or H.
            seed: of k-means.
            generator: the source of ω.
        """
        settings = {name: value for name, value in locals().items() if name in _SETTINGS}
        x, y = samples(queries, heads, "queries"), samples(keys, heads, "keys")
        if clusters is not None:
            settings["n_clusters"] = tuple(c.centers.shape[-2] for c in (clusters.queries, clusters.keys))
            settings["matrix"] = clusters.kind
        others = {name: value for name, value in settings.items() if name != "recenter"}
        parts = fitted_parts(x, y, clusters=clusters, generator=generator, **others)
        phi = cls(**parts, recenter=recenter, settings=settings)
        if phi.shrinkage is not None:
            phi.shrinkage.copy_(phi._best_shrinkage(x, y, seed))
        return phi.to(torch.get_default_dtype())

    def refit_(self, queries: Tensor, keys: Tensor) -> Self:
        """Fit to new data with the settings of `fit`, in place; ω stays as it is."""
        if self.settings is None:
            raise ValueError("this map was not made by fit, so there are no settings to fit again with")
        fitted = type(self).fit(queries, keys, **self.settings)
        for mine, new in zip(self.all_projections(), fitted.all_projections(), strict=True):
            new.omega.copy_(mine.omega)
        self.load_state_dict(fitted.state_dict())
        return self

    def with_fixed_centres(self) -> ClusteredHybrid:
        """Return this map, or a shallow copy whose key centres stay where they were fitted."""
        if not self.recenter:
            return self
        fixed = copy.copy(self)
        fixed.recenter = False
        return fixed

    def exact_share(self, queries: Tensor, keys: Tensor) -> float:
        """Return the share of pairs of vectors that are computed exactly rather than estimated."""
        if self.exact is None:
            return 0.0
        x, y = self._checked_pair(queries, keys)
        return float(look_up(self.exact, self.assign(x, "query"), self.assign(y, "key")).double().mean())

    def _best_shrinkage(
        self, x: Tensor, y: Tensor, seed: int, n_samples: int = 128, n_draws: int = 4
    ) -> Tensor:
        """The s with the least mean squared error over pairs and draws of ω: weights as in attention.

        With an estimate E of e = exp(x'ᵀy'), it is the s of the regression of e − 1 on E − 1.
        """
        x, y = (u[..., :: max(1, u.shape[-2] // n_samples), :] for u in (x, y))
        g = self._geometry(x, y)
        u, v = x - g.query_center, y - g.key_center
        weight = self._log_weight(x, y, g).softmax(-1).square()
        excess = torch.expm1(kernels.log_softmax_kernel(u, v))
        other, generator = copy.deepcopy(self.feature_map), Generator().manual_seed(seed)
        assert other is not None
        estimates = []
        for _ in range(n_draws):
            for (
                omega
            ) in other.all_projections():  # one draw for all heads, so that none depends on the others
                omega.omega.copy_(draw(omega.kind, *omega.omega.shape[-2:], generator=generator))
            estimates.append(other.scaled_estimate(u, v).unscaled() - 1)
        draws = torch.stack(estimates)
        best = (weight * excess * draws).sum((0, -2, -1)) / (weight * draws.square()).sum((0, -2, -1))
        return best.nan_to_num(0.0).clamp(0, 1)  # no residuals at all: any s will do

    @property
    def per_pair(self) -> bool:
        return self.base in ("paper", "moments")

    def _check_parts(self) -> None:
        """Refuse a map or a shrinkage that does not go with the base."""
        heads = self.heads
        if self.per_pair:
            heads = (self.heads or 1) * self.n_q * self.n_k
        if (self.feature_map is None) != (self.base == "separable"):
            raise ValueError(f"base {self.base!r} got feature_map={self.feature_map!r}")
        for part, expected in ((self.feature_map, heads), (self.default, self.heads)):
            if part is not None and (part.dim, part.heads) != (self.dim, expected):
                received = f"{type(part).__name__} has dim, heads = {(part.dim, part.heads)}"
                raise ValueError(f"{received}; expected {(self.dim, expected)}")
        if (self.shrinkage is None) != (self.base != "shrunk"):
            raise ValueError(f"base {self.base!r} got shrinkage={self.shrinkage!r}; it belongs to 'shrunk'")
        if (self.default is None) != (self.served is None):
            raise ValueError("default and served belong together: a map, and the pairs it does not serve")

    @property
    def unbiased(self) -> bool:
        """Whether the mean over draws is exactly the kernel: not for ``separable`` and ``shrunk``."""
        return self.base in ("paper", "moments", "shifted") and super().unbiased

    @property
    def nonnegative(self) -> bool:
        """Whether no estimate can be negative: if those of the parts cannot."""
        return all(part is None or part.nonnegative for part in (self.feature_map, self.default))

    @property
    def factorised(self) -> bool:
        """Whether an estimate is a product of features: not with exact pairs or centres that move."""
        return self.exact is None and not self.recenter

    @property
    def active_width(self) -> int:
        """Features of the vector's own cluster: n_k blocks for a query, n_q for a key; the larger number counts."""
        return self.feature_dim // min(self.n_q, self.n_k)

    @property
    def follows_keys(self) -> bool:
        """Whether the key centres move to the means of the keys at hand."""
        return self.recenter

    def active_queries(self, x: Tensor) -> None:
        """Map queries ``(L, d)`` into the blocks of their own clusters only."""
        own, inner = self.assign(x, "query"), self.feature_map
        if inner is not None and self.per_pair:  # a map per pair of clusters: a vector meets n_k of them
            share = x[: math.ceil(len(x) / self.n_q)]
            inner.scaled_queries(share.expand(inner.heads or 1, -1, -1))
            return
        (x @ self.key_centers.to(x.dtype).mT).exp_()
        if inner is not None:
            inner.scaled_queries(x - self.query_centers.to(x.dtype)[own])

    def assign(self, x: Tensor, side: Side) -> Tensor:
        """The cluster of every vector: ``(..., L, d) -> (..., L)``."""
        if side == "query":
            return assign(x, self.query_centers.to(x.dtype), self.query_metric)
        return assign(x, self.key_centers.to(x.dtype), self.key_metric)

    def at(self, keys: Tensor) -> Self:
        """A copy whose key centres are the means of ``keys``, ``(S, d)`` or ``(H, S, d)``, for good."""
        y = self._checked(keys, "keys")
        moved = copy.deepcopy(self)
        moved.key_centers.copy_(self._means(y, self.assign(y, "key")))
        moved.recenter = False
        return moved

    def _means(self, y: Tensor, j: Tensor) -> Tensor:
        """Means of the keys at hand by cluster, ``(..., n_k, d)``; an empty cluster keeps its centre."""
        members = one_hot(j, self.n_k).to(y.dtype).mT
        counts = members.sum(-1, keepdim=True)
        return torch.where(counts > 0, members @ y / counts.clamp(min=1), self.key_centers.to(y.dtype))

    def _geometry(self, x: Tensor, y: Tensor) -> _Geometry:
        i, j = self.assign(x, "query"), self.assign(y, "key")
        key_centers = self._means(y, j) if self.recenter else self.key_centers.to(y.dtype)
        key_centers = key_centers.expand(*j.shape[:-1], -1, -1)
        query_centers = self.query_centers.to(x.dtype).expand(*i.shape[:-1], -1, -1)
        return _Geometry(i, j, gather_rows(query_centers, i), gather_rows(key_centers, j))

    def scaled_estimate(self, x: Tensor, y: Tensor) -> Features:
        g = self._geometry(x, y)
        result = self._base_pairwise(x, y, g)
        if self.default is not None and self.served is not None:
            other = self.default.scaled_estimate(x, y)
            result = Features(*map(torch.where, [look_up(self.served, g.i, g.j)] * 2, result, other))
        if self.exact is not None:
            known = Features(torch.ones_like(result.values), kernels.log_softmax_kernel(x, y))
            result = Features(*map(torch.where, [look_up(self.exact, g.i, g.j)] * 2, known, result))
        return result

    def _base_pairwise(self, x: Tensor, y: Tensor, g: _Geometry) -> Features:
        if self.per_pair:
            assert self.feature_map is not None
            return Features(*self._by_pairs(self.feature_map.scaled_estimate, x, y, g))
        log_weight = self._log_weight(x, y, g)
        one = Features(torch.ones_like(log_weight), torch.zeros_like(log_weight))
        if self.feature_map is None:
            return Features(one.values, log_weight)
        estimate = self.feature_map.scaled_estimate(x - g.query_center, y - g.key_center)
        if self.shrinkage is None:
            return Features(estimate.values, estimate.log_scale + log_weight)
        (rest, shrunk), scale = common_scale([one, estimate])
        s = self._shrinkage(x)
        return Features((1 - s) * rest + s * shrunk, scale + log_weight)

    def _by_pairs(
        self, function: Callable[[Tensor, Tensor], Sequence[Tensor]], x: Tensor, y: Tensor, g: _Geometry
    ) -> list[Tensor]:
        return by_pairs(function, x, y, g.i, g.j, (self.n_q, self.n_k), with_heads=self.heads is not None)

    def _log_weight(self, x: Tensor, y: Tensor, g: _Geometry) -> Tensor:
        """The exact factor xᵀrⱼ + rᵢᵀy' of every pair: ``(..., L, S)``."""
        return x @ g.key_center.mT + g.query_center @ (y - g.key_center).mT

    def _shrinkage(self, x: Tensor) -> Tensor:
        assert self.shrinkage is not None
        return self.shrinkage.to(x.dtype)[..., None, None]

    def scaled(self, x: Tensor, side: Side) -> Features:
        if self.exact is not None:
            raise ValueError("exact pairs of clusters have no features; use estimate")
        if self.recenter:
            raise ValueError("the centres move with the keys; use estimate, or fix them with at(keys)")
        return self.estimated_features(x, side)

    def estimated_features(self, x: Tensor, side: Side) -> Features:
        """Features of the pairs of clusters that are not exact, about centres that stay where they are.

        The scale of a key without such pairs is −∞.
        """
        own = self.assign(x, side)
        parts = [self._pair_features(x, side, own)] if self.per_pair else []
        parts += [part.spread(side) for part in self.active_parts(x, side, own)]
        blocks, scale = common_scale(parts)
        return Features(torch.cat(blocks, -1), scale)

    def active_parts(self, x: Tensor, side: Side, own: Tensor) -> list[Active]:
        """What a base of residuals and the default map have for vectors of the clusters ``own``."""
        parts = [] if self.per_pair else [self._residual_part(x, side, own)]
        if self.default is not None:
            parts.append(self._default_part(self.default, x, side, own))
        return parts

    def _default_part(self, default: FeatureMap, x: Tensor, side: Side, own: Tensor) -> Active:
        """All keys are in one cluster here, and their weights say which queries they meet."""
        values, log_scale = default.scaled(x, side)
        if side == "query":
            return Active(own, self.n_q, torch.ones_like(log_scale), values, log_scale)
        assert self.served is not None
        unserved = ~(self.served if self.exact is None else self.served | self.exact)
        meets = gather_rows(unserved.mT.expand(*own.shape[:-1], -1, -1), own)
        log_scale = log_scale.masked_fill(~meets.any(-1, keepdim=True), -torch.inf)
        return Active(torch.zeros_like(own), 1, meets.to(x.dtype), values, log_scale)

    def _estimates(self) -> Tensor | None:
        """Pairs of clusters that the base estimates; ``None`` is all."""
        if self.exact is None:
            return self.served
        return ~self.exact if self.served is None else self.served & ~self.exact

    def _active(self, own: Tensor, side: Side) -> Tensor:
        """Which blocks (i, j) a vector of a cluster has: booleans ``(..., L, n_q, n_k)``."""
        if side == "query":
            return one_hot(own, self.n_q).bool().unsqueeze(-1).expand(*own.shape, -1, self.n_k)
        blocks = one_hot(own, self.n_k).bool().unsqueeze(-2).expand(*own.shape, self.n_q, -1)
        pairs = self._estimates()
        return blocks if pairs is None else blocks & pairs.unsqueeze(-3)

    def _pair_features(self, x: Tensor, side: Side, own: Tensor) -> Features:
        assert self.feature_map is not None
        every = x.unsqueeze(-3).expand(*own.shape[:-1], self.n_q * self.n_k, -1, -1)
        features = self.feature_map.scaled(every.flatten(-4, -3) if self.heads is not None else every, side)
        values, log_scale = (  # (..., L, n_q, n_k, D)
            t.reshape(*own.shape[:-1], self.n_q, self.n_k, *t.shape[-2:]).movedim(-2, -4) for t in features
        )
        active = self._active(own, side).unsqueeze(-1)
        scale = log_scale.masked_fill(~active, -torch.inf).detach().amax((-3, -2))
        values = values * (log_scale - finite(scale)[..., None, None]).masked_fill(~active, -torch.inf).exp()
        return Features(values.flatten(-3), scale)

    def _residual_part(self, x: Tensor, side: Side, own: Tensor) -> Active:
        query_centers, key_centers = self.query_centers.to(x.dtype), self.key_centers.to(x.dtype)
        between = query_centers @ key_centers.mT / 2  # rᵢᵀrⱼ/2
        pairs = None
        if side == "query":
            mine, others = query_centers, key_centers
        else:
            mine, others, between, pairs = key_centers, query_centers, between.mT, self._estimates()
        lead = own.shape[:-1]
        logs = x @ others.mT - gather_rows(between.expand(*lead, -1, -1), own)  # xᵀrⱼ or rᵢᵀy: (..., L, n)
        if pairs is not None:
            logs = logs.masked_fill(~gather_rows(pairs.mT.expand(*lead, -1, -1), own), -torch.inf)
        scale = logs.detach().amax(-1, keepdim=True)
        weights = (logs - finite(scale)).exp()
        if self.feature_map is None:
            return Active(own, mine.shape[-2], weights, torch.ones_like(scale), scale)
        features = self.residual_features(x - gather_rows(mine.expand(*lead, -1, -1), own), side)
        return Active(own, mine.shape[-2], weights, features.values, scale + features.log_scale)

    def residual_features(self, u: Tensor, side: Side) -> Features:
        """Features of residuals alone, for ``shifted`` and ``shrunk``: ``(..., L, d) -> (..., L, D)``."""
        assert self.feature_map is not None
        features = self.feature_map.scaled(u, side)
        if self.shrinkage is None:
            return features
        s = self._shrinkage(u)
        one = Features(torch.ones_like(u[..., :1]), torch.zeros_like(u[..., :1]))
        (rest, values), log_scale = common_scale([one, features])
        return Features(torch.cat([(1 - s).sqrt() * rest, s.sqrt() * values], -1), log_scale)

    def _log_mse(self, x: Tensor, y: Tensor) -> Tensor:
        g = self._geometry(x, y)
        result = self._base_log_mse(x, y, g)
        if self.default is not None and self.served is not None:
            result = torch.where(look_up(self.served, g.i, g.j), result, self.default._log_mse(x, y))
        if self.exact is not None:
            result = result.masked_fill(look_up(self.exact, g.i, g.j), -torch.inf)
        return result

    def _base_log_mse(self, x: Tensor, y: Tensor, g: _Geometry) -> Tensor:
        inner = self.feature_map
        if self.per_pair and inner is not None:
            (log_mse,) = self._by_pairs(lambda u, v: [inner._log_mse(u, v)], x, y, g)
            return log_mse
        u, v = x - g.query_center, y - g.key_center
        log_residual = kernels.log_softmax_kernel(u, v)
        log_weight = self._log_weight(x, y, g)
        # The bias is (1 − s) exp(log_weight) (exp(x'ᵀy') − 1).
        bias = 2 * (log_weight + log_residual.clamp(min=0) + torch.log(-torch.expm1(-log_residual.abs())))
        if self.feature_map is None:
            return bias
        variance = self.feature_map._log_mse(u, v) + 2 * log_weight
        if self.shrinkage is None:
            return variance
        s = self._shrinkage(x)
        return torch.logaddexp(bias + 2 * torch.log1p(-s), variance + 2 * s.log())

    def _flops(self) -> Flops:
        """To map one vector: 2dn for the distances to the n centres of its side, and its active features.

        Those are one map of the residual and 2dn products with the n centres of the other side, or for ``paper``
        and ``moments`` n maps. The larger side counts as n; a default map is added. What exact pairs and moving
        centres cost depends on the sequence, and is not counted.
        """
        blocks = max(self.n_q, self.n_k)
        inner, default = (
            Flops() if part is None else part._flops() for part in (self.feature_map, self.default)
        )
        spread = inner.times(blocks) if self.per_pair else inner.plus(flops.projected(blocks, self.dim))
        return flops.distances(blocks, self.dim).plus(spread, default)

    def config(self) -> dict[str, Any]:
        """Arguments that rebuild the map."""
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

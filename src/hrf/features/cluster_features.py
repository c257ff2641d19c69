"""Features, estimates and errors of clustered hybrids: features are zero outside the blocks of a vector's own cluster.

A block belongs to a pair (i, j) of a query cluster and a key cluster. A query of cluster i has the n_k blocks
(i, ·), a key of cluster j the n_q blocks (·, j), so they meet in the block (i, j) alone.
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot
from typing_extensions import override

from hrf import kernels
from hrf.features.base import FeatureMap, Side
from hrf.fitting import assign
from hrf.numerics import Features, common_scale, finite
from hrf.projections import draw

__all__ = ["Active", "ClusterEstimates", "gather_rows", "look_up"]

# Tokens grouped by cluster, so that functions of pairs are applied to active blocks only.


class Active(NamedTuple):
    """Features that are zero outside the block of the vector's own cluster, where they are weights ⊗ values.

    Attributes:
        label: the cluster of each vector, ``(..., L)``.
        n_labels: how many clusters there are.
        weights: one per cluster of the other side, of which there are n, ``(..., L, n)``.
        values: ``(..., L, D)``.
        log_scale: ``(..., L, 1)``.
    """

    label: Tensor
    n_labels: int
    weights: Tensor
    values: Tensor
    log_scale: Tensor

    def spread(self, side: Side) -> Features:
        """Write out all features, zeros included: ``(..., L, n_q·n_k·D)``."""
        here = one_hot(self.label, self.n_labels).to(self.weights.dtype)
        i, j = (here, self.weights) if side == "query" else (self.weights, here)
        pairs = i.unsqueeze(-1) * j.unsqueeze(-2)  # (..., L, n_q, n_k)
        values = pairs.unsqueeze(-1) * self.values.unsqueeze(-2).unsqueeze(-2)
        return Features(values.flatten(-3), self.log_scale)


class _Groups(NamedTuple):
    """The tokens of each of n clusters, padded to the size of the largest cluster.

    Attributes:
        members: token at each place of each cluster, ``(..., n, size)``; padding points to token 0.
        place: the place of each token within its cluster, ``(..., L)``.
    """

    members: Tensor
    place: Tensor

    @classmethod
    def of(cls, labels: Tensor, n_clusters: int) -> _Groups:
        """Group tokens by their labels ``(..., L)``; ``size`` is the size of the largest cluster."""
        order = labels.argsort(dim=-1, stable=True)
        counts = torch.zeros(*labels.shape[:-1], n_clusters, dtype=torch.long, device=labels.device)
        counts.scatter_add_(-1, labels, torch.ones_like(labels))
        first = counts.cumsum(-1) - counts
        size = int(counts.max()) if counts.numel() else 0
        slots = torch.arange(size, device=labels.device)
        filled = slots < counts.unsqueeze(-1)
        position = (first.unsqueeze(-1) + slots).where(filled, 0)  # in the sorted order: (..., n, size)
        members = order.gather(-1, position.flatten(-2)).view(position.shape) if size else position
        place = torch.empty_like(labels).scatter_(
            -1,
            order,
            torch.arange(labels.shape[-1], device=labels.device) - first.gather(-1, labels.gather(-1, order)),
        )
        return cls(members.where(filled, 0), place)


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Select rows of ``x (..., L, d)`` by ``index (..., *k)`` with the same leading axes: ``(..., *k, d)``."""
    extra = index.ndim - (x.ndim - 2)
    flat = index.flatten(-extra) if extra > 1 else index
    rows = x.gather(-2, flat.unsqueeze(-1).expand(*flat.shape, x.shape[-1]))  # the expanded index is a view
    return rows.unflatten(-2, index.shape[x.ndim - 2 :])


def look_up(table: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Look up entries of a table of pairs of clusters ``(..., n_q, n_k)`` for queries and keys: ``(..., L, S)``."""
    rows = gather_rows(table.expand(*i.shape[:-1], -1, -1), i)  # (..., L, n_k)
    return rows.take_along_dim(j.unsqueeze(-2).expand(*i.shape, -1), -1)


class PairGroups(NamedTuple):
    """Queries and keys of every pair of clusters, so that a map with a head per pair meets only active blocks.

    Clusters are padded to the largest: there is no loop over clusters or heads.

    Attributes:
        queries: ``(..., P, size, d)``, for P pairs of clusters (of every head).
        keys: ``(..., P, other size, d)``.
        places: place of each query and key among all entries of all blocks, ``(..., L, S)``.
    """

    queries: Tensor
    keys: Tensor
    places: Tensor

    @classmethod
    def of(
        cls, x: Tensor, y: Tensor, i: Tensor, j: Tensor, n_clusters: tuple[int, int], *, with_heads: bool
    ) -> PairGroups:
        """Group queries ``x (..., L, d)`` and keys ``y (..., S, d)`` by their clusters ``i (..., L)`` and ``j``."""
        n_q, n_k = n_clusters
        q, k = _Groups.of(i, n_q), _Groups.of(j, n_k)
        pairs = (*i.shape[:-1], n_q, n_k)
        u = gather_rows(x, q.members).unsqueeze(-3).expand(*pairs, -1, -1)
        v = gather_rows(y, k.members).unsqueeze(-4).expand(*pairs, -1, -1)
        rows = (i.unsqueeze(-1) * n_k + j.unsqueeze(-2)) * u.shape[-2] + q.place.unsqueeze(-1)
        places = rows * v.shape[-2] + k.place.unsqueeze(-2)
        first = -5 if with_heads else -4
        return cls(u.flatten(first, -3), v.flatten(first, -3), places)

    def in_order(self, blocks: Tensor) -> Tensor:
        """Go back from blocks ``(..., P, size, other size)`` to pairs of a query and a key: ``(..., L, S)``."""
        lead = self.places.shape[:-2]
        flat = blocks.reshape(*lead, blocks.numel() // max(1, lead.numel()))
        return flat.gather(-1, self.places.flatten(-2)).view(self.places.shape)


class ClusterFeatures(FeatureMap):
    """A map whose vectors have features in the blocks of their own cluster; `ClusteredHybrid` sets its attributes."""

    base: str
    n_q: int
    n_k: int
    recenter: bool
    feature_map: FeatureMap | None
    default: FeatureMap | None
    query_centers: Tensor
    key_centers: Tensor
    query_metric: Tensor | None
    key_metric: Tensor | None
    shrinkage: Tensor | None
    exact: Tensor | None
    served: Tensor | None

    @property
    def per_pair(self) -> bool:
        """Whether each pair of clusters has a map of its own, as for ``paper`` and ``moments``."""
        return self.base in ("paper", "moments")

    @property
    @override
    def factorised(self) -> bool:
        """Whether an estimate is a product of features: not with exact pairs or moving centres."""
        return self.exact is None and not self.recenter

    @property
    @override
    def active_width(self) -> int:
        """Features of the own cluster: n_k of all n_q·n_k blocks for a query, n_q for a key; the larger counts."""
        return self.feature_dim // min(self.n_q, self.n_k)

    @property
    @override
    def follows_keys(self) -> bool:
        """Whether the key centres move to the means of the keys at hand."""
        return self.recenter

    @override
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
        """Return the cluster of every vector: ``(..., L, d) -> (..., L)``."""
        if side == "query":
            return assign(x, self.query_centers.to(x.dtype), self.query_metric)
        return assign(x, self.key_centers.to(x.dtype), self.key_metric)

    @override
    def scaled(self, x: Tensor, side: Side) -> Features:
        if self.exact is not None:
            raise ValueError("exact pairs of clusters have no features; use estimate")
        if self.recenter:
            raise ValueError("the centres move with the keys; use estimate, or fix them with at(keys)")
        return self.estimated_features(x, side)

    def estimated_features(self, x: Tensor, side: Side) -> Features:
        """Return features for the pairs of clusters that are not exact, about fixed centres.

        The scale of a key without such pairs is −∞.
        """
        own = self.assign(x, side)
        parts = [self._pair_features(x, side, own)] if self.per_pair else []
        parts += [part.spread(side) for part in self.active_parts(x, side, own)]
        blocks, scale = common_scale(parts)
        return Features(torch.cat(blocks, -1), scale)

    def active_parts(self, x: Tensor, side: Side, own: Tensor) -> list[Active]:
        """Return the features of a base of residuals and of the default map, given each vector's cluster ``own``."""
        parts = []
        if not self.per_pair:
            n = self.n_q if side == "query" else self.n_k
            residuals, weights, scale = self._about_centers(x, side, own)
            values = torch.ones_like(scale)
            if residuals is not None:
                values, log_scale = self.residual_features(residuals, side)
                scale = scale + log_scale
            parts.append(Active(own, n, weights, values, scale))
        if self.default is not None:
            parts.append(self._default_part(self.default, x, side, own))
        return parts

    def residual_features(self, u: Tensor, side: Side) -> Features:
        """Map residuals alone, for ``shifted`` and ``shrunk``: ``(..., L, d) -> (..., L, D)``."""
        assert self.feature_map is not None
        features = self.feature_map.scaled(u, side)
        if self.shrinkage is None:
            return features
        s = self._shrinkage(u)
        one = Features(torch.ones_like(u[..., :1]), torch.zeros_like(u[..., :1]))
        (rest, values), log_scale = common_scale([one, features])
        return Features(torch.cat([(1 - s).sqrt() * rest, s.sqrt() * values], -1), log_scale)

    def _about_centers(self, x: Tensor, side: Side, own: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Return residuals ``(..., L, d)`` if the base maps them, and the exact factors with their log scale.

        The factors are exp(xᵀrⱼ − rᵢᵀrⱼ/2) for queries and exp(rᵢᵀy − rᵢᵀrⱼ/2) for keys, one per cluster of the
        other side, ``(..., L, n)``; a factor is 0 where the base does not estimate the pair.
        """
        query_centers, key_centers = self.query_centers.to(x.dtype), self.key_centers.to(x.dtype)
        between = query_centers @ key_centers.mT / 2  # rᵢᵀrⱼ/2
        pairs = None
        if side == "query":
            mine, others = query_centers, key_centers
        else:
            mine, others, between, pairs = key_centers, query_centers, between.mT, self._estimates()
        lead = own.shape[:-1]
        logs = x @ others.mT - gather_rows(between.expand(*lead, -1, -1), own)
        if pairs is not None:
            logs = logs.masked_fill(~gather_rows(pairs.mT.expand(*lead, -1, -1), own), -torch.inf)
        scale = logs.detach().amax(-1, keepdim=True)
        centers = mine.expand(*lead, -1, -1)
        residuals = None if self.feature_map is None else x - gather_rows(centers, own)
        return residuals, (logs - finite(scale)).exp(), scale

    def _default_part(self, default: FeatureMap, x: Tensor, side: Side, own: Tensor) -> Active:
        """Map with the default; all keys form one cluster, and their weights say which queries they meet."""
        values, log_scale = default.scaled(x, side)
        if side == "query":
            return Active(own, self.n_q, torch.ones_like(log_scale), values, log_scale)
        assert self.served is not None
        unserved = ~(self.served if self.exact is None else self.served | self.exact)
        meets = gather_rows(unserved.mT.expand(*own.shape[:-1], -1, -1), own)
        log_scale = log_scale.masked_fill(~meets.any(-1, keepdim=True), -torch.inf)
        return Active(torch.zeros_like(own), 1, meets.to(x.dtype), values, log_scale)

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

    def _active(self, own: Tensor, side: Side) -> Tensor:
        """Mark the blocks (i, j) of each vector: booleans ``(..., L, n_q, n_k)``."""
        if side == "query":
            return one_hot(own, self.n_q).bool().unsqueeze(-1).expand(*own.shape, -1, self.n_k)
        blocks = one_hot(own, self.n_k).bool().unsqueeze(-2).expand(*own.shape, self.n_q, -1)
        pairs = self._estimates()
        return blocks if pairs is None else blocks & pairs.unsqueeze(-3)

    def _estimates(self) -> Tensor | None:
        """Return the pairs of clusters that the base estimates; ``None`` means all."""
        if self.exact is None:
            return self.served
        return ~self.exact if self.served is None else self.served & ~self.exact

    def _shrinkage(self, x: Tensor) -> Tensor:
        assert self.shrinkage is not None
        return self.shrinkage.to(x.dtype)[..., None, None]


# Estimates and errors of clustered hybrids, pair by pair, from the definition.
#
# Every pair of a query and a key belongs to a pair of clusters, which is exact, served by the base, or left to
# the default map.


class _Geometry(NamedTuple):
    """Clusters of queries and keys, and the centre of each vector's cluster.

    Attributes:
        i: cluster of each query, ``(..., L)``.
        j: cluster of each key, ``(..., S)``.
        query_center: rᵢ, ``(..., L, d)``.
        key_center: rⱼ, ``(..., S, d)``.
    """

    i: Tensor
    j: Tensor
    query_center: Tensor
    key_center: Tensor


_SHRINKAGE_SAMPLES, _SHRINKAGE_DRAWS = (
    128,
    4,
)  # queries and keys, and draws of ω, that a shrinkage is fitted to


class ClusterEstimates(ClusterFeatures):
    """Estimates and closed-form errors of a clustered map."""

    @override
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
            pairs = self._pair_groups(x, y, g)
            values, log_scale = self.feature_map.scaled_estimate(pairs.queries, pairs.keys)
            return Features(pairs.in_order(values), pairs.in_order(log_scale))
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

    @override
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
            pairs = self._pair_groups(x, y, g)
            return pairs.in_order(inner._log_mse(pairs.queries, pairs.keys))
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

    def _geometry(self, x: Tensor, y: Tensor) -> _Geometry:
        i, j = self.assign(x, "query"), self.assign(y, "key")
        key_centers = self._means(y, j) if self.recenter else self.key_centers.to(y.dtype)
        key_centers = key_centers.expand(*j.shape[:-1], -1, -1)
        query_centers = self.query_centers.to(x.dtype).expand(*i.shape[:-1], -1, -1)
        return _Geometry(i, j, gather_rows(query_centers, i), gather_rows(key_centers, j))

    def _means(self, y: Tensor, j: Tensor) -> Tensor:
        """Return the mean of the keys of each cluster, ``(..., n_k, d)``; an empty cluster keeps its centre."""
        members = one_hot(j, self.n_k).to(y.dtype).mT
        counts = members.sum(-1, keepdim=True)
        return torch.where(counts > 0, members @ y / counts.clamp(min=1), self.key_centers.to(y.dtype))

    def _pair_groups(self, x: Tensor, y: Tensor, g: _Geometry) -> PairGroups:
        return PairGroups.of(x, y, g.i, g.j, (self.n_q, self.n_k), with_heads=self.heads is not None)

    def _log_weight(self, x: Tensor, y: Tensor, g: _Geometry) -> Tensor:
        """Return the exact exponent xᵀrⱼ + rᵢᵀy' of every pair: ``(..., L, S)``."""
        return x @ g.key_center.mT + g.query_center @ (y - g.key_center).mT

    def _best_shrinkage(self, x: Tensor, y: Tensor, seed: int) -> Tensor:
        """Return the s with the least mean squared error over pairs and draws of ω, weighted as in attention.

        With an estimate E of e = exp(x'ᵀy'), it is the s of the regression of e − 1 on E − 1.
        """
        x, y = (u[..., :: max(1, u.shape[-2] // _SHRINKAGE_SAMPLES), :] for u in (x, y))
        g = self._geometry(x, y)
        u, v = x - g.query_center, y - g.key_center
        weight = self._log_weight(x, y, g).softmax(-1).square()
        excess = torch.expm1(kernels.log_softmax_kernel(u, v))
        other, generator = copy.deepcopy(self.feature_map), Generator().manual_seed(seed)
        assert other is not None
        estimates = []
        for _ in range(_SHRINKAGE_DRAWS):
            # One draw for all heads, so that no head depends on another.
            for omega in other.all_projections():
                omega.signs = omega.lengths = None
                omega.omega.copy_(draw(omega.kind, *omega.omega.shape[-2:], generator=generator))
            estimates.append(other.scaled_estimate(u, v).unscaled() - 1)
        draws = torch.stack(estimates)
        best = (weight * excess * draws).sum((0, -2, -1)) / (weight * draws.square()).sum((0, -2, -1))
        return best.nan_to_num(0.0).clamp(0, 1)  # no residuals at all: any s will do

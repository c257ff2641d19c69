"""Features of clustered hybrids: zero outside the blocks of a vector's own cluster.

A block belongs to a pair (i, j) of a query cluster and a key cluster. A query of cluster i has the n_k blocks
(i, ·), a key of cluster j the n_q blocks (·, j), so they meet in the block (i, j) alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from typing_extensions import override

from hrf.features.base import FeatureMap, Side
from hrf.features.grouping import Active, gather_rows
from hrf.fitting import assign
from hrf.numerics import Features, common_scale, finite

__all__ = ["ClusterFeatures"]


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

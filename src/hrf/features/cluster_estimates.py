"""Estimates and errors of clustered hybrids, pair by pair, from the definition.

Every pair of a query and a key belongs to a pair of clusters, which is exact, served by the base, or left to
the default map.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot
from typing_extensions import override

from hrf import kernels
from hrf.features.cluster_features import ClusterFeatures
from hrf.features.grouping import PairGroups, gather_rows, look_up
from hrf.numerics import Features, common_scale
from hrf.projections import draw

__all__ = ["ClusterEstimates"]


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

    def _best_shrinkage(
        self, x: Tensor, y: Tensor, seed: int, n_samples: int = 128, n_draws: int = 4
    ) -> Tensor:
        """Return the s with the least mean squared error over pairs and draws of ω, weighted as in attention.

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
            # One draw for all heads, so that no head depends on another.
            for omega in other.all_projections():
                omega.omega.copy_(draw(omega.kind, *omega.omega.shape[-2:], generator=generator))
            estimates.append(other.scaled_estimate(u, v).unscaled() - 1)
        draws = torch.stack(estimates)
        best = (weight * excess * draws).sum((0, -2, -1)) / (weight * draws.square()).sum((0, -2, -1))
        return best.nan_to_num(0.0).clamp(0, 1)  # no residuals at all: any s will do

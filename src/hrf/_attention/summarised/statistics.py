"""Statistics of groups of queries and clusters of keys: pure functions of the tensors and the trees.

A query of group i is x = rᵢ + δ. Σ_δ is the covariance of all δ, pooled over groups, so the variance of δᵀ(y₁ − y₂) is
the squared distance of two keys in the metric Σ_δ; γᵢ says how wide group i is, relative to the pool.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hrf._attention.summarised.heads import Heads
from hrf._attention.summarised.tree import Parts

__all__ = ["KeyClusters", "QueryGroups", "clusters_of", "covariance", "groups_of"]


class QueryGroups(NamedTuple):
    """Groups of queries.

    Attributes:
        mean: rᵢ, ``(N, G, d)``.
        residual: δ, ``(N, G, width, d)``, zeros at places without query.
        width: γᵢ = mean of δᵀ Σ_y δ over the group, over the same mean of all queries; ``(N, G)``.
        query_width: γ(x) = δᵀ Σ_y δ of each query, over the same mean; ``(N, G, width)``.
        metric: Σ_δ, ``(N, d, d)``.
    """

    mean: Tensor
    residual: Tensor
    width: Tensor
    query_width: Tensor
    metric: Tensor


class KeyClusters(NamedTuple):
    """Clusters of keys.

    Attributes:
        keys: ``(N, C, width, d)``, zeros at places without key.
        values: ``(N, C, width, d_v)``, likewise.
        spread: d², the squared distance of a key from the mean of its cluster in the metric Σ_δ; ``(N, C, width)``.
        mean: ȳ of each cluster, ``(N, C, d)``.
    """

    keys: Tensor
    values: Tensor
    spread: Tensor
    mean: Tensor


def covariance(u: Tensor, real: Tensor) -> Tensor:
    """Return the covariance of the real rows of ``u (N, L, d)``: ``(N, d, d)``."""
    some = real[..., None].to(u.dtype)
    count = some.sum(1, keepdim=True).clamp(min=1)
    centred = (u - (u * some).sum(1, keepdim=True) / count) * some
    return centred.mT @ centred / count


def groups_of(heads: Heads, parts: Parts) -> QueryGroups:
    """Compute the statistics of groups of queries."""
    rows, some = parts.take(heads.x), parts.filled[..., None]
    sizes = some.sum(-2).clamp(min=1)  # (N, G, 1)
    mean = rows.sum(-2) / sizes
    residual = (rows - mean[..., None, :]) * some
    flat = residual.flatten(1, 2)
    count = some.sum((1, 2)).clamp(min=1)[..., None]
    metric = flat.mT @ flat / count
    lengths = ((residual @ covariance(heads.y, heads.keys)[:, None]) * residual).sum(-1)  # (N, G, width)
    pooled = lengths.sum((1, 2))[:, None, None] / count
    query_width = lengths / pooled.clamp(min=torch.finfo(pooled.dtype).tiny)
    width = query_width.sum(-1) / sizes[..., 0]
    return QueryGroups(mean, residual, width, query_width, metric)


def clusters_of(heads: Heads, parts: Parts, metric: Tensor) -> KeyClusters:
    """Compute the statistics of clusters of keys in the metric Σ_δ."""
    keys, some = parts.take(heads.y), parts.filled[..., None]
    mean = keys.sum(-2) / some.sum(-2).clamp(min=1)
    centred = (keys - mean[..., None, :]) * some
    spread = ((centred @ metric[:, None]) * centred).sum(-1).clamp(min=0)
    return KeyClusters(keys, parts.take(heads.v), spread, mean)

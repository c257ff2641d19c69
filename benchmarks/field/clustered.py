"""Clustered and improved clustered attention (Vyas et al., 2020): queries of a cluster share attention weights.

Queries are clustered by k-means; Vyas et al. hash them to bits and cluster those, which is cheaper and no better. The
mean query of a cluster attends to all keys, and its output stands for all its queries. *Improved*: each query meets the
``top`` keys of its cluster exactly, with the mass that the mean query gave to them; the other keys keep their
weights.

FLOPs per token with n clusters: 2nd per iteration of k-means, 2n(d + e) for the attention of the means; improved, with
t keys: 2t(d + e) for exact pairs, and 2nte over all tokens for the share of top keys in the outputs of the means.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from benchmarks.field.method import Method

__all__ = ["Clustered"]


@dataclass(frozen=True)
class Clustered(Method):
    """Attention by ``clusters`` mean queries; with ``top`` exact keys per query, improved."""

    clusters: int
    top: int = 0
    iterations: int = 10

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int = 0) -> Tensor:
        centres, label = k_means(q, self.clusters, self.iterations)
        weights = (centres @ k.mT).softmax(-1)  # (..., n, L)
        if not self.top:
            return _rows(weights @ v, label)
        chosen = weights.topk(min(self.top, k.shape[-2]), -1)
        rest = weights.scatter(-1, chosen.indices, 0.0) @ v
        mass = chosen.values.sum(-1, keepdim=True)
        places = _rows(chosen.indices, label)  # (..., L, top)
        keys, values = (_gathered(u, places) for u in (k, v))  # (..., L, top, d)
        exact = (q[..., None, :] @ keys.mT).softmax(-1) @ values
        return _rows(rest, label) + _rows(mass, label) * exact[..., 0, :]

    @override
    def flops(self, length: int, dim: int, value_dim: int) -> float:
        n, t = self.clusters, min(self.top, length)
        shared = 2 * n * dim * self.iterations + 2 * n * (dim + value_dim)
        return shared + 2 * t * (dim + value_dim) + 2 * n * t * value_dim / length


def k_means(u: Tensor, n: int, iterations: int) -> tuple[Tensor, Tensor]:
    """Cluster rows by Lloyd's algorithm from evenly spaced rows: centres ``(..., n, d)``, labels ``(..., L)``."""
    length = u.shape[-2]
    centres = u[..., torch.arange(n) * length // n, :]
    label = torch.zeros(u.shape[:-1], dtype=torch.long)
    for _ in range(iterations):
        label = (u @ centres.mT - centres.square().sum(-1)[..., None, :] / 2).argmax(-1)
        index = label[..., None]
        counts = u.new_zeros(*u.shape[:-2], n, 1).scatter_add(-2, index, torch.ones_like(u[..., :1]))
        sums = torch.zeros_like(centres).scatter_add(-2, index.expand_as(u), u)
        centres = torch.where(counts > 0, sums / counts.clamp(min=1), centres)
    return centres, label


def _rows(of_clusters: Tensor, label: Tensor) -> Tensor:
    """Give every query the row of its cluster: ``(..., n, d), (..., L) -> (..., L, d)``."""
    return of_clusters.gather(-2, label[..., None].expand(*label.shape, of_clusters.shape[-1]))


def _gathered(u: Tensor, places: Tensor) -> Tensor:
    """Collect rows: ``(..., L, d), (..., L, t) -> (..., L, t, d)``."""
    flat = places.flatten(-2)
    return u.gather(-2, flat[..., None].expand(*flat.shape, u.shape[-1])).unflatten(-2, places.shape[-2:])

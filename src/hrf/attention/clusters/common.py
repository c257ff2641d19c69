"""Tokens by cluster, and what all engines for pairs of clusters have in common."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hrf.attention.segments import Blocks
from hrf.features.base import Features, Side, finite
from hrf.features.clustered import ClusteredHybrid
from hrf.features.grouping import gather_rows

__all__ = ["FLOATS", "LOG2E", "Clusters", "Engine", "by_label", "merged"]

_SIZE = (16, 64)  # least and most tokens of a block
FLOATS = 1 << 18  # numbers of a product: they stay in the cache

# Logarithms are to the base 2 in here: where they underflow, exp is up to 100 times slower than exp2.
LOG2E = math.log2(math.e)


def by_label(labels: Tensor, n_labels: int) -> Blocks:
    """Blocks of tokens by ``labels (R, L)``."""
    length = labels.shape[-1]
    size = min(max(length // n_labels, _SIZE[0]), _SIZE[1], max(1, length))
    return Blocks.of(labels.unsqueeze(1), n_labels, size)


class Clusters(NamedTuple):
    """Queries or keys by cluster, n clusters in R rows.

    Attributes:
        tokens: as they came, ``(..., H, L, d)``.
        labels: their clusters, ``(..., H, L)``; n for those to leave out.
        blocks: tokens by cluster.
        centers: ``(R, n, d)``.
    """

    tokens: Tensor
    labels: Tensor
    blocks: Blocks
    centers: Tensor

    @classmethod
    def of(cls, u: Tensor, phi: ClusteredHybrid, side: Side, keep: Tensor | None) -> Clusters:
        """Those of one side of a map, without the tokens that are not to be kept."""
        centers = (phi.query_centers if side == "query" else phi.key_centers).to(u.dtype)
        n = centers.shape[-2]
        labels = phi.assign(u.detach(), side)
        if keep is not None:
            labels = labels.where(keep, n)
        blocks = by_label(labels.reshape(-1, u.shape[-2]), n)
        centers = centers.expand(*u.shape[:-2], -1, -1).flatten(0, -3)
        if side == "key" and phi.recenter:
            members = blocks.take(u.reshape(-1, u.shape[-1]))
            totals = blocks.add((blocks.filled.unsqueeze(-2).to(u.dtype) @ members).squeeze(-2))
            counts = blocks.counts.view(-1, n, 1)
            centers = torch.where(counts > 0, totals.view(centers.shape) / counts.clamp(min=1), centers)
        return cls(u, labels, blocks, centers)

    def spans(self, length: int) -> list[Clusters]:
        """At most ``length`` tokens of each row after the other, by cluster."""
        if self.labels.shape[-1] <= length:
            return [self]
        n = self.centers.shape[-2]
        return [
            Clusters(tokens, labels, by_label(labels.flatten(0, -2), n), self.centers)
            for tokens, labels in zip(
                self.tokens.split(length, -2), self.labels.split(length, -1), strict=True
            )
        ]

    def flat(self) -> Tensor:
        """All tokens one after the other, ``(R·L, d)``."""
        return self.tokens.flatten(0, -2)

    def residuals(self) -> Tensor:
        """What a token is from its centre, ``(..., H, L, d)``; anything if it is left out."""
        centers = self.centers.view(*self.tokens.shape[:-2], *self.centers.shape[-2:])
        return self.tokens - gather_rows(centers, self.labels.clamp(max=centers.shape[-2] - 1))


class Engine:
    """Sums over some pairs of clusters, ``active (R, n_q, n_k)``, ``None`` for all."""

    def __init__(
        self, queries: Clusters, keys: Clusters, values: Tensor, phi: ClusteredHybrid, active: Tensor | None
    ) -> None:
        self.queries, self.keys, self.values, self.phi, self.active = queries, keys, values, phi, active

    def sums(self) -> Features:
        """Those of all queries, ``(R, L, c)``; a scale of −∞ where there is nothing. The scale has no gradient."""
        raise NotImplementedError

    def _masked(self, table: Tensor) -> Tensor:
        """Scales of states, ``(R, n_q, n_k)``, without those that do not count."""
        return table if self.active is None else table.masked_fill(~self.active, -torch.inf)


def merged(parts: Iterator[Features]) -> Features:
    """The sum of all parts, on the largest of their scales; one of −∞ is that of nothing."""
    total, scale = next(parts)
    for values, other in parts:
        largest = torch.maximum(scale, other)
        own, others = ((s - finite(largest)).exp2() for s in (scale, other))
        total, scale = torch.addcmul(total * own, values, others), largest
    return Features(total, scale)

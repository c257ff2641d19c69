"""Tokens by cluster, and what all engines for pairs of clusters have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hrf._attention.label_blocks import Blocks, with_ones
from hrf._attention.recompute import again
from hrf.features.base import Features, Side, finite
from hrf.features.clustered import ClusteredHybrid
from hrf.features.grouping import gather_rows

__all__ = ["FLOATS", "LOG2E", "TOKENS", "Clusters", "Engine", "by_label", "merged"]

_SIZE = (16, 64)  # least and most tokens of a block
TOKENS = 1 << 14  # at a time, of several rows or of one: they stay in the cache, and a graph is theirs alone
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
        root: what multiplies them.
        labels: their clusters, ``(..., H, L)``; n for those to leave out.
        blocks: tokens by cluster.
        centers: ``(R, n, d)``.
    """

    tokens: Tensor
    root: float
    labels: Tensor
    blocks: Blocks
    centers: Tensor

    @classmethod
    def of(cls, u: Tensor, root: float, phi: ClusteredHybrid, side: Side, keep: Tensor | None) -> Clusters:
        """Those of one side of a map, without the tokens that are not to be kept."""
        centers = (phi.query_centers if side == "query" else phi.key_centers).to(u.dtype)
        n = centers.shape[-2]
        spans = u.detach().split(TOKENS, -2)
        labels = torch.cat([phi.assign(span * root, side) for span in spans], -1)
        if keep is not None:
            labels = labels.where(keep, n)
        blocks = by_label(labels.flatten(0, -2), n)
        centers = centers.expand(*u.shape[:-2], -1, -1).flatten(0, -3)
        if side == "key" and phi.recenter:
            members = blocks.take(u.flatten(0, -2))
            totals = blocks.add((blocks.filled.unsqueeze(-2).to(u.dtype) @ members).squeeze(-2))
            means = totals.view(centers.shape) * root / blocks.counts.view(-1, n, 1).clamp(min=1)
            centers = torch.where(blocks.counts.view(-1, n, 1) > 0, means, centers)
        return cls(u, root, labels, blocks, centers)

    def spans(self) -> list[Clusters]:
        """Some tokens of each row after others, by cluster."""
        if self.labels.shape[-1] <= TOKENS:
            return [self]
        tokens, labels = self.tokens.split(TOKENS, -2), self.labels.split(TOKENS, -1)
        return [
            Clusters(u, self.root, own, by_label(own.flatten(0, -2), self.centers.shape[-2]), self.centers)
            for u, own in zip(tokens, labels, strict=True)
        ]

    def products(self, others: Tensor) -> Tensor:
        """Logarithms to the base 2, xᵀr / ln 2 for other centres ``(R, n, d)``: ``(N, size, n)``."""
        row = self.blocks.segment // self.centers.shape[-2]
        return (
            self.blocks.take(self.tokens.flatten(0, -2))
            @ (others * (self.root * LOG2E)).index_select(0, row).mT
        )

    def residuals(self) -> Tensor:
        """What a token is from its centre, ``(..., H, L, d)``; anything if it is left out."""
        centers = self.centers.view(*self.tokens.shape[:-2], *self.centers.shape[-2:])
        own = gather_rows(-centers, self.labels.clamp(max=centers.shape[-2] - 1))
        return torch.add(own, self.tokens, alpha=self.root)


class Engine:
    """Sums over some pairs of clusters, ``active (R, n_q, n_k)``, ``None`` for all; with ``ones``, of ones as well."""

    def __init__(
        self,
        queries: Clusters,
        keys: Clusters,
        values: Tensor,
        ones: bool,
        phi: ClusteredHybrid,
        active: Tensor | None,
    ) -> None:
        self.queries, self.keys, self.values, self.ones = queries, keys, values, ones
        self.phi, self.active = phi, active

    def sums(self) -> Features:
        """Those of all queries, ``(R, L, c)``; a scale of −∞ where there is nothing. The scale has no gradient."""
        raise NotImplementedError

    def _columns(self, values: Tensor) -> Tensor:
        """What is summed."""
        return with_ones(values) if self.ones else values

    def _again(self, function: Callable[..., Features], *tensors: Tensor) -> Features:
        """What a function makes of some tensors; of its graph, nothing is kept."""
        if not torch.is_grad_enabled():
            return function(*tensors)
        learned = [t for t in (*self.phi.parameters(), *self.phi.buffers()) if t.requires_grad]
        return Features(*again(function, *tensors, learned=learned))

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

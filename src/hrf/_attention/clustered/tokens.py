"""Queries or keys by cluster, and the sums that engines for pairs of clusters return.

Logarithms are to the base 2 in this folder: where they underflow, exp is up to 100 times slower than exp2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hrf import tuning
from hrf._attention.label_blocks import LabelBlocks, with_ones
from hrf._attention.recompute import recompute
from hrf.features.base import Side
from hrf.features.cluster_features import gather_rows
from hrf.features.clustered import ClusteredHybrid
from hrf.numerics import Features, finite

__all__ = ["LOG2E", "ClusteredTokens", "PairEngine", "added", "by_label"]

LOG2E = math.log2(math.e)


def by_label(labels: Tensor, n_labels: int) -> LabelBlocks:
    """Sort tokens into blocks by ``labels (R, L)``."""
    length, (least, most) = labels.shape[-1], tuning.CLUSTER_BLOCK
    size = min(max(length // n_labels, least), most, max(1, length))
    return LabelBlocks.of(labels.unsqueeze(1), n_labels, size)


class ClusteredTokens(NamedTuple):
    """Queries or keys by cluster, n clusters in R rows.

    Attributes:
        tokens: as they were given, ``(..., H, L, d)``.
        root: √scale, which multiplies them.
        labels: their clusters, ``(..., H, L)``; n for tokens to leave out.
        blocks: tokens by cluster.
        centers: ``(R, n, d)``.
    """

    tokens: Tensor
    root: float
    labels: Tensor
    blocks: LabelBlocks
    centers: Tensor

    @classmethod
    def of(
        cls, u: Tensor, root: float, phi: ClusteredHybrid, side: Side, keep: Tensor | None
    ) -> ClusteredTokens:
        """Assign the tokens of one side to clusters, without those that are not to be kept."""
        centers = (phi.query_centers if side == "query" else phi.key_centers).to(u.dtype)
        n = centers.shape[-2]
        spans = u.detach().split(tuning.CLUSTER_TOKENS, -2)
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

    def spans(self, length: int) -> list[ClusteredTokens]:
        """Cut every row into spans of tokens, each by cluster."""
        if self.labels.shape[-1] <= length:
            return [self]
        tokens = self.tokens.split(length, -2)
        labels = self.labels.split(length, -1)
        n = self.centers.shape[-2]
        return [
            ClusteredTokens(u, self.root, own, by_label(own.flatten(0, -2), n), self.centers)
            for u, own in zip(tokens, labels, strict=True)
        ]

    def products(self, others: Tensor) -> Tensor:
        """Return logarithms to the base 2, xᵀr / ln 2 for other centres ``(R, n, d)``: ``(N, size, n)``."""
        row = self.blocks.segment // self.centers.shape[-2]
        tokens = self.blocks.take(self.tokens.flatten(0, -2))
        return tokens @ (others * (self.root * LOG2E)).index_select(0, row).mT

    def residuals(self) -> Tensor:
        """Subtract from each token its centre, ``(..., H, L, d)``; tokens that are left out get arbitrary values."""
        centers = self.centers.view(*self.tokens.shape[:-2], *self.centers.shape[-2:])
        own = gather_rows(-centers, self.labels.clamp(max=centers.shape[-2] - 1))
        return torch.add(own, self.tokens, alpha=self.root)


class PairEngine:
    """Sums over some pairs of clusters.

    Args:
        queries: by cluster.
        keys: by cluster.
        values: ``(..., H, S, c)``.
        ones: add a column of ones to the values.
        phi: the map.
        active: the pairs of clusters, ``(R, n_q, n_k)``; ``None`` for all.
    """

    def __init__(
        self,
        queries: ClusteredTokens,
        keys: ClusteredTokens,
        values: Tensor,
        ones: bool,
        phi: ClusteredHybrid,
        active: Tensor | None,
    ) -> None:
        self.queries, self.keys, self.values, self.ones = queries, keys, values, ones
        self.phi, self.active = phi, active

    def sums(self) -> Features:
        """Return the sums of all queries, ``(R, L, c)``; the scale is −∞ without terms, and has no gradient."""
        raise NotImplementedError

    def columns(self, values: Tensor) -> Tensor:
        """Return the values to sum up, with a column of ones if there is to be one."""
        return with_ones(values) if self.ones else values

    def recomputed(self, function: Callable[..., Features], *tensors: Tensor) -> Features:
        """Call a function, and keep nothing of its graph."""
        if not torch.is_grad_enabled():
            return function(*tensors)
        learned = [t for t in (*self.phi.parameters(), *self.phi.buffers()) if t.requires_grad]
        return Features(*recompute(function, *tensors, learned=learned))

    def masked(self, table: Tensor) -> Tensor:
        """Return scales of states, ``(R, n_q, n_k)``, −∞ for pairs that are not active."""
        return table if self.active is None else table.masked_fill(~self.active, -torch.inf)


def added(total: Features | None, part: Features) -> Features:
    """Add sums, on the larger of their scales (to the base 2); a scale of −∞ belongs to an empty sum."""
    if total is None:
        return part
    scale = torch.maximum(total.log_scale, part.log_scale)
    own, other = ((s - finite(scale)).exp2() for s in (total.log_scale, part.log_scale))
    return Features(torch.addcmul(total.values * own, part.values, other), scale)

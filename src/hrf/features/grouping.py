"""Tokens grouped by cluster, so that functions of pairs are applied to active blocks only."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from hrf.features.base import Side
from hrf.numerics import Features

__all__ = ["Active", "PairGroups", "gather_rows", "look_up"]


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

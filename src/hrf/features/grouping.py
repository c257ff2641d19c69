"""Tokens by cluster: a padded table of the members of each cluster, and the way back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Groups", "gather_rows"]


class Groups(NamedTuple):
    """Which tokens each of n clusters has.

    Attributes:
        members: token at each place of each cluster, ``(..., n, size)``; places left over point to token 0.
        filled: which places hold a token, ``(..., n, size)``.
        place: the place of each token within its cluster, ``(..., L)``.
    """

    members: Tensor
    filled: Tensor
    place: Tensor

    @classmethod
    def of(cls, labels: Tensor, n_clusters: int) -> Groups:
        """Group tokens by their labels ``(..., L)``; ``size`` is the largest cluster of all."""
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
        return cls(members.where(filled, 0), filled, place)


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of ``x (..., L, d)`` by ``index (..., *k)`` with the same leading axes: ``(..., *k, d)``."""
    extra = index.ndim - (x.ndim - 2)
    flat = index.flatten(-extra) if extra > 1 else index
    return x.take_along_dim(flat.unsqueeze(-1), -2).unflatten(-2, index.shape[x.ndim - 2 :])

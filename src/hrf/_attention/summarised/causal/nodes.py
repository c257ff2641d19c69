"""Summaries of the nodes of a block's tree, for each of its cells: one row of a table each.

A cluster has `WIDTH` keys, and a node above has `WIDTH` children. For a cell with centre r and the keys j of a node

    M = Σ exp(rᵀyⱼ),  pⱼ = exp(rᵀyⱼ) / M,  μ = Σ p y,  V = Σ p v,  S = Σ p |y − μ|²,  Q = Σ p²

with |·| in the metric Λ. A query x = r + δ reads the mass M exp(δᵀμ + γS/2), since δᵀ(y − μ) has the variance γS; by
Jensen's inequality M exp(δᵀμ) is at most the exact mass. Taken as log-normal and independent, the errors of the keys
add up to a relative variance Q expm1(γS).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hrf._attention.summarised.causal.cells import Cells
from hrf._attention.summarised.causal.sizes import WIDTH, node_counts
from hrf._attention.summarised.tree import Parts
from hrf.numerics import finite

__all__ = ["EXTRA", "Nodes", "make_table"]

EXTRA = 4  # numbers of a row besides μ and V


class Nodes(NamedTuple):
    """Columns of a table of nodes, ``(..., nodes, ·)``.

    Attributes:
        mu: mean key, ``(..., d)``.
        value: mean value V, ``(..., d_v)``.
        log_mass: log M; −∞ for a node without key.
        variance: S.
        shares: Q.
        square: mean of ‖v‖².
    """

    mu: Tensor
    value: Tensor
    log_mass: Tensor
    variance: Tensor
    shares: Tensor
    square: Tensor

    @classmethod
    def of(cls, table: Tensor, dim: int) -> Nodes:
        """Cut a table ``(..., nodes, d + d_v + EXTRA)`` into its columns."""
        mu, value, numbers = table.split([dim, table.shape[-1] - dim - EXTRA, EXTRA], -1)
        return cls(mu, value, *numbers.unbind(-1))

    def rows(self) -> Tensor:
        """Put the columns into a table."""
        return torch.cat([*self[:2], torch.stack(self[2:], -1)], -1)


def make_table(cells: Cells, clusters: Parts, y: Tensor, v: Tensor) -> Tensor:
    """Summarise keys ``(M, n, d)`` and values: ``(M, G, nodes, d + d_v + EXTRA)``, roots first, clusters last."""
    level = _clusters(cells, clusters.take(y), clusters.take(v), clusters.filled)
    tables = [level.rows()]
    for _ in node_counts(clusters.tokens[0].numel())[1:]:
        level = _parents(cells, level)
        tables.insert(0, level.rows())
    return torch.cat(tables, -2)


def _clusters(cells: Cells, keys: Tensor, values: Tensor, filled: Tensor) -> Nodes:
    scores = (cells.centre @ keys.flatten(1, 2).mT).unflatten(-1, filled.shape[1:])  # (M, G, C, WIDTH)
    scores = scores.masked_fill(~filled[:, None], -torch.inf)
    log_mass = _logsumexp(scores)
    p = (scores - finite(log_mass)[..., None]).exp()
    by_cluster = p.transpose(1, 2)  # (M, C, G, WIDTH)
    # Distances from the mean of the cluster first, so that small ones are not lost in long keys.
    mean = keys.sum(-2, keepdim=True) / filled.sum(-1).clamp(min=1)[..., None, None]
    centred = ((keys - mean) * filled[..., None]) @ cells.metric_root[:, None]
    columns = torch.cat([keys, values, centred, _squares(centred), _squares(values)], -1)
    mu, value, offset, distance, square = (
        (by_cluster @ columns)
        .transpose(1, 2)
        .split([keys.shape[-1], values.shape[-1], keys.shape[-1], 1, 1], -1)
    )
    variance = (distance - _squares(offset))[..., 0].clamp(min=0)
    return Nodes(mu, value, log_mass, variance, p.square().sum(-1), square[..., 0])


def _parents(cells: Cells, level: Nodes) -> Nodes:
    mu, value, log_mass, variance, shares, square = (u.unflatten(2, (-1, WIDTH)) for u in level)
    total = _logsumexp(log_mass)
    w = (log_mass - finite(total)[..., None]).exp()  # (M, G, nodes, WIDTH)
    mean_key, mean_value = ((w[..., None] * u).sum(-2) for u in (mu, value))
    between = _squares((mu - mean_key[..., None, :]) @ cells.metric_root[:, None, None])[..., 0]
    own = (w * (variance + between)).sum(-1)
    return Nodes(mean_key, mean_value, total, own, (w.square() * shares).sum(-1), (w * square).sum(-1))


def _logsumexp(u: Tensor) -> Tensor:
    """Return log Σ exp over the last axis, −∞ with zero gradients where all are −∞."""
    top = finite(u.detach().amax(-1, keepdim=True))
    total = (u - top).exp().sum(-1)
    return (total.where(total > 0, 1).log() + top[..., 0]).masked_fill(total == 0, -torch.inf)


def _squares(u: Tensor) -> Tensor:
    return u.square().sum(-1, keepdim=True)

"""Sums over the keys of clusters that single queries open, in blocks of openings."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from hrf import tuning
from hrf._attention.recompute import recompute
from hrf._attention.summarised.plan import Plan
from hrf._attention.summarised.statistics import KeyClusters
from hrf.numerics import finite

__all__ = ["with_opened_pairs"]


def with_opened_pairs(
    found: Tensor, top: Tensor, x: Tensor, clusters: KeyClusters, plan: Plan
) -> tuple[Tensor, Tensor]:
    """Add the keys of opened clusters to ``found (N, G, queries, d_v + 1)``, which has the scale ``top``."""
    shape, rows = found.shape, (found.flatten(0, 2), top.flatten(0, 2), x.flatten(0, 2), *clusters[:2])
    found, top, x, keys, values = rows
    keys, values = keys.flatten(0, 1), values.flatten(0, 1)  # (N·C, width, ·)
    blocks = _blocks(len(plan.opened), keys[0].numel() + values[0].numel())
    query = plan.opened[:, 0]
    scale = top
    for some in blocks:
        with torch.no_grad():
            largest = _logits(plan, some, x, keys).amax(-1, keepdim=True)
        scale = scale.scatter_reduce(0, query[some, None], largest, "amax")
    found = found * (top - finite(scale)).exp()
    for some in blocks:
        part = recompute(partial(_sums, plan, some), x, keys, values, scale, learned=())[0]
        found = found.index_add(0, query[some], part)
    return found.view(shape), scale.view(*shape[:-1], 1)


def _blocks(n: int, floats: int) -> list[slice]:
    """Cut openings into blocks of at most `tuning.EXACT_FLOATS` floats."""
    step = max(1, tuning.EXACT_FLOATS // max(1, floats))
    return [slice(i, min(i + step, n)) for i in range(0, n, step)]


def _logits(plan: Plan, some: slice, x: Tensor, keys: Tensor) -> Tensor:
    """Return xᵀy of the keys of some openings, ``(openings, width)``; −∞ for keys that the group meets already."""
    query = plan.opened[some, 0]
    logits = (keys[_rows(plan, some)] @ x[query][..., None])[..., 0]
    return logits.masked_fill(~plan.unmet(some), -torch.inf)


def _sums(plan: Plan, some: slice, x: Tensor, keys: Tensor, values: Tensor, scale: Tensor) -> tuple[Tensor]:
    """Sum exp(xᵀy − m) (v, 1) over the keys of each opening, m the scale of its query."""
    weights = (_logits(plan, some, x, keys) - scale[plan.opened[some, 0]]).exp()
    mean = (weights[:, None] @ values[_rows(plan, some)])[:, 0]
    return (torch.cat([mean, weights.sum(-1, keepdim=True)], -1),)


def _rows(plan: Plan, some: slice) -> Tensor:
    """Return the opened clusters among those of all heads."""
    place, cluster = plan.opened[some].unbind(-1)
    head = place // plan.groups.tokens[0].numel()
    return head * plan.clusters.tokens.shape[1] + cluster

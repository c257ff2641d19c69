"""The plan of a call: groups, clusters, and which keys are met exactly. Constants to the gradient."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from hrf import tuning
from hrf._attention.summarised.heads import Heads
from hrf._attention.summarised.statistics import KeyClusters, QueryGroups, clusters_of, covariance, groups_of
from hrf._attention.summarised.tree import Parts, balanced_parts, root_of_metric

__all__ = [
    "Plan",
    "blocks_of_groups",
    "exact_plan",
    "log_errors",
    "log_limits",
    "log_weights",
    "make_trees",
    "opening_limits",
]

USUAL = 512  # keys for which a tolerance of 1 allows 1/512 per key
OPENING = 16  # a tolerance of 1 allows a cluster to be wrong by 1/16 of a query's mass


class Plan(NamedTuple):
    """Groups, clusters and exact pairs of N heads.

    Group i of head n meets the keys ``exact[starts[n·G + i] : starts[n·G + i + 1]]`` exactly. A query of ``opened``
    also meets the other keys of that cluster.

    Attributes:
        groups: parts of the queries, ``(N, G, ·)``.
        clusters: parts of the keys, ``(N, C, ·)``.
        starts: ``(N·G + 1,)``.
        exact: places of keys among the clusters, ``(pairs,)``: place c·width + k is key ``clusters.tokens[n, c, k]``;
            ascending within a group.
        opened: places of queries among the groups of all heads, and clusters that they open, ``(·, 2)``: place
            (n·G + i)·width + k is query ``groups.tokens[n, i, k]``.
    """

    groups: Parts
    clusters: Parts
    starts: Tensor
    exact: Tensor
    opened: Tensor

    def is_exact(self, block: slice) -> Tensor:
        """Booleans ``(N, groups of the block, C, width)``: which keys the groups meet exactly."""
        n, n_groups, _ = self.groups.tokens.shape
        shape = self.clusters.tokens.shape[1:]
        rows = torch.arange(n * n_groups, device=self.exact.device).reshape(n, n_groups)[:, block].flatten()
        sizes = self.starts.diff()[rows]
        row = torch.arange(len(rows), device=rows.device).repeat_interleave(sizes)
        first = sizes.cumsum(0) - sizes
        pair = torch.arange(len(row), device=rows.device) + (self.starts[rows] - first).repeat_interleave(
            sizes
        )
        mask = torch.zeros(len(rows), shape.numel(), dtype=torch.bool, device=rows.device)
        mask[row, self.exact[pair]] = True
        return mask.reshape(n, -1, *shape)

    def is_opened(self, block: slice) -> Tensor:
        """Booleans ``(N, groups of the block, queries, C)``: which clusters the queries open."""
        n, n_groups, width = self.groups.tokens.shape
        row, place = self.opened[:, 0] // width, self.opened[:, 0] % width
        head, group = row // n_groups, row % n_groups
        first, last, _ = block.indices(n_groups)
        own = (group >= first) & (group < last)
        shape = n, last - first, width, self.clusters.tokens.shape[1]
        mask = torch.zeros(shape, dtype=torch.bool, device=row.device)
        mask[head[own], group[own] - first, place[own], self.opened[own, 1]] = True
        return mask

    def unmet(self, some: slice) -> Tensor:
        """Booleans ``(openings, width)``: which keys of some opened clusters the group does not meet already."""
        place, cluster = self.opened[some].unbind(-1)
        _, n_clusters, width = self.clusters.tokens.shape
        row, n_groups = place // self.groups.tokens.shape[2], self.groups.tokens.shape[1]
        per_head = n_clusters * width
        every = torch.arange(len(self.starts) - 1, device=row.device).repeat_interleave(self.starts.diff())
        codes = every * per_head + self.exact  # ascending
        wanted = (row * per_head + cluster * width)[:, None] + torch.arange(width, device=row.device)
        at = torch.searchsorted(codes, wanted)
        met = codes[at.clamp(max=max(len(codes) - 1, 0))] == wanted if len(codes) else wanted < 0
        return self.clusters.filled[row // n_groups, cluster] & ~met


def blocks_of_groups(n_groups: int, floats_per_group: int) -> list[slice]:
    """Cut the groups of all heads into blocks whose weights of keys fit `tuning.SUMMARY_FLOATS`."""
    step = max(1, tuning.SUMMARY_FLOATS // max(1, floats_per_group))
    return [slice(i, min(i + step, n_groups)) for i in range(0, n_groups, step)]


def log_weights(mean: Tensor, clusters: KeyClusters, filled: Tensor) -> Tensor:
    """Return sᵢⱼ = rᵢᵀyⱼ for the means of some groups, −∞ at places without key: ``(N, g, C, width)``."""
    scores = (mean @ clusters.keys.flatten(1, 2).mT).unflatten(-1, filled.shape[1:])
    return scores.masked_fill(~filled[:, None], -torch.inf)


def log_errors(weights: Tensor, width: Tensor, clusters: KeyClusters) -> Tensor:
    """Return log(share of the mass · √expm1(γd²)), the relative error of a summary by the log-normal model.

    Args:
        weights: of `log_weights`, ``(N, g, C, width)``.
        width: γ of the groups, ``(N, g)``.
        clusters: of the keys.
    """
    variance = width[..., None, None] * clusters.spread[:, None]
    # log expm1(t) = t + log(1 − exp(−t)) cannot overflow.
    deviation = (variance + (-torch.expm1(-variance)).log()) / 2
    return weights - weights.flatten(2).logsumexp(-1)[..., None, None] + deviation


def log_limits(tolerance: Tensor, n_keys: Tensor) -> Tensor:
    """Return log(τ/S · ⁴√(S/512)), the largest relative error that the summary of one of S keys may have.

    Errors of S keys add up to √S times the error of one, or less: at τ/S the output would get better with the length,
    and the share of exact pairs would stay. The root, found by trial on text, lets that share fall for little error.
    """
    count = n_keys.clamp(min=1).to(tolerance.dtype)
    return tolerance.log() - 0.75 * count.log() - 0.25 * math.log(USUAL)


def opening_limits(tolerance: Tensor) -> Tensor:
    """Return τ/16, the share of a query's mass by which the summary of a cluster may be wrong."""
    return tolerance / OPENING


def make_trees(heads: Heads, n_groups: int, n_clusters: int) -> tuple[Parts, Parts, QueryGroups, KeyClusters]:
    """Group the queries in the metric of the keys, and cluster the keys in the metric of the residuals."""
    root = root_of_metric(covariance(heads.y, heads.keys))
    of_queries = balanced_parts(heads.x @ root, heads.queries, n_groups)
    groups = groups_of(heads, of_queries)
    of_keys = balanced_parts(heads.y @ root_of_metric(groups.metric), heads.keys, n_clusters)
    return of_queries, of_keys, groups, clusters_of(heads, of_keys, groups.metric)


@torch.no_grad()
def exact_plan(
    trees: tuple[Parts, Parts], groups: QueryGroups, clusters: KeyClusters, tolerance: Tensor
) -> Plan:
    """Choose the exact keys of each group; ``tolerance (N,)`` is τ per head. No query opens a cluster yet.

    Key j is exact for group i where the share of the mass times √expm1(γᵢd²ⱼ) is at least the limit.
    """
    of_queries, of_keys = trees
    n, n_groups, _ = of_queries.tokens.shape
    bound = log_limits(tolerance, of_keys.filled.sum((1, 2)))[:, None, None, None]
    rows, places = [], []
    for block in blocks_of_groups(n_groups, of_keys.tokens.numel()):
        weights = log_weights(groups.mean[:, block], clusters, of_keys.filled)
        errors = log_errors(weights, groups.width[:, block], clusters)
        chosen = (errors >= bound) & of_keys.filled[:, None] & (bound < torch.inf)
        head, group, place = chosen.flatten(2).nonzero(as_tuple=True)
        rows.append(head * n_groups + block.start + group)
        places.append(place)
    row, order = torch.cat(rows).sort(stable=True)
    sizes = torch.bincount(row, minlength=n * n_groups)
    starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    nothing = torch.empty(0, 2, dtype=torch.long, device=starts.device)
    return Plan(of_queries, of_keys, starts, torch.cat(places)[order], nothing)

"""Clusters that single queries open: plans, complete.

Exact keys are chosen for a whole group, from the weights of its mean query. A query far from that mean may find much of
its mass in a cluster of which the group sees little. After reading, the share p_c(x) of every summary is known, so a
query opens cluster c, and meets its keys one by one, where

    p_c(x) √expm1(γ(x) d²_c)  ≥  τ / 16        γ(x) = δᵀ Σ_y δ over its mean, d²_c the mean of d² over the cluster

that is share of the mass times relative standard deviation of a log-normal weight, as in the rule for keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hrf._attention.summarised.heads import Heads
from hrf._attention.summarised.plan import Plan, blocks_of_groups, exact_plan, make_trees, opening_limits
from hrf._attention.summarised.read import summary_logits, sums_and_scales
from hrf._attention.summarised.statistics import clusters_of, groups_of

__all__ = ["make_plan", "with_opened"]

LARGEST = 20.0  # of γd²: beyond, the log-normal model says nothing


@torch.no_grad()
def make_plan(heads: Heads, n_groups: int, n_clusters: int, tolerance: Tensor) -> Plan:
    """Choose groups, clusters, exact keys and opened clusters; ``tolerance (N,)`` is τ per head."""
    *trees, groups, clusters = make_trees(heads, n_groups, n_clusters)
    return with_opened(heads, exact_plan((trees[0], trees[1]), groups, clusters, tolerance), tolerance)


@torch.no_grad()
def with_opened(heads: Heads, plan: Plan, tolerance: Tensor) -> Plan:
    """Return the plan with the clusters that queries open."""
    groups = groups_of(heads, plan.groups)
    clusters = clusters_of(heads, plan.clusters, groups.metric)
    sizes = plan.clusters.filled.sum(-1)
    mean_spread = clusters.spread.sum(-1) / sizes.clamp(min=1)  # (N, C)
    sums, top = sums_and_scales(groups, clusters, plan)
    total = top + sums[..., -1:].log()  # (N, G, queries, 1)
    limit = opening_limits(tolerance).log()[:, None, None, None]
    found = []
    for block in blocks_of_groups(groups.mean.shape[1], plan.clusters.tokens.numel()):
        logits = summary_logits(groups, clusters, plan, block)[0]
        variance = (groups.query_width[:, block, :, None] * mean_spread[:, None, None]).clamp(max=LARGEST)
        errors = logits - total[:, block] + torch.expm1(variance).log() / 2
        chosen = (errors >= limit) & (logits > -torch.inf) & plan.groups.filled[:, block, :, None]
        head, group, place, cluster = (chosen & (limit < torch.inf)).nonzero(as_tuple=True)
        row = head * groups.mean.shape[1] + block.start + group
        found.append(torch.stack([row * plan.groups.tokens.shape[2] + place, cluster], -1))
    return plan._replace(opened=torch.cat(found))

"""Output of summarised attention, given a plan: a differentiable function of queries, keys and values.

    W̃ᵢⱼ = exp(rᵢᵀyⱼ + min(γᵢd²ⱼ/2, LARGEST))         for the keys j that group i does not meet exactly
    M = Σ W̃,  μ = Σ W̃ y / M,  V = Σ W̃ v / M         over each cluster, for each group
    A = M exp(−γᵢ|μ − ȳ|²/2)                         ȳ the mean of the cluster, |·| in the metric Σ_δ
    output(x) = (Σ_exact exp(xᵀy) v + Σ_c A exp(δᵀμ) V) / (the same with 1 for v)         x = rᵢ + δ

The mean of exp(δᵀ(y − ȳ)) over a normal δ is exp(γ d²/2), which W̃ has; exp(δᵀ(μ − ȳ)) has a mean of its own, which A
gives back. So the mean mass of every cluster over its group is that of exact attention. Where a query opens a cluster,
the keys of the cluster take the place of its summary.
Exponentials have one maximum per group and cluster, and one per query, taken out of them.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from hrf._attention.recompute import recompute
from hrf._attention.summarised.exact_pairs import blocks_by_count, exact_sums
from hrf._attention.summarised.heads import Heads
from hrf._attention.summarised.opened_pairs import with_opened_pairs
from hrf._attention.summarised.plan import Plan, blocks_of_groups, log_weights
from hrf._attention.summarised.statistics import KeyClusters, QueryGroups, clusters_of, groups_of
from hrf.numerics import finite

__all__ = ["LARGEST", "read", "summary_logits", "sums_and_scales"]

LARGEST = 10.0  # of γd²/2: beyond, the log-normal model says nothing


def read(heads: Heads, plan: Plan) -> Tensor:
    """Return the output of each query, ``(N, L, d_v)``; zeros for padding."""
    groups = groups_of(heads, plan.groups)
    clusters = clusters_of(heads, plan.clusters, groups.metric)
    found, _ = sums_and_scales(groups, clusters, plan)
    output = found[..., :-1] / found[..., -1:].where(plan.groups.filled[..., None], 1)
    return plan.groups.put(output, heads.x.shape[1])


def sums_and_scales(groups: QueryGroups, clusters: KeyClusters, plan: Plan) -> tuple[Tensor, Tensor]:
    """Return Σ w (v, 1) exp(−m) of each query, ``(N, G, queries, d_v + 1)``, and m."""
    sums, tops = [], []
    for block in blocks_of_groups(groups.mean.shape[1], plan.clusters.tokens.numel()):
        read_block = partial(_summary_sums, plan, block)
        part, top = recompute(read_block, *groups, *clusters, learned=())
        sums.append(part)
        tops.append(top)
    found, top = torch.cat(sums, 1), torch.cat(tops, 1)
    x = groups.mean[..., None, :] + groups.residual
    found, top = _with_exact(found, top, x, clusters, plan)
    return with_opened_pairs(found, top, x, clusters, plan)


def _summary_sums(plan: Plan, block: slice, *statistics: Tensor) -> tuple[Tensor, Tensor]:
    """Sum A exp(δᵀμ − m) (V, 1) over clusters; also return m, the largest logit of each query."""
    n = len(QueryGroups._fields)
    groups, clusters = QueryGroups(*statistics[:n]), KeyClusters(*statistics[n:])
    logits, mean_value = summary_logits(groups, clusters, plan, block)
    logits = logits.masked_fill(plan.is_opened(block), -torch.inf)
    top = logits.detach().amax(-1, keepdim=True)
    shares = (logits - finite(top)).exp()
    return torch.cat([shares @ mean_value, shares.sum(-1, keepdim=True)], -1), top


def summary_logits(
    groups: QueryGroups, clusters: KeyClusters, plan: Plan, block: slice
) -> tuple[Tensor, Tensor]:
    """Return δᵀμ + log A of the queries of some groups, ``(N, g, queries, C)``, and V, ``(N, g, C, d_v)``."""
    keys, values, spread, mean_key = clusters
    width = groups.width[:, block]
    tilt = (width[..., None, None] * spread[:, None] / 2).clamp(max=LARGEST)
    weights = log_weights(groups.mean[:, block], clusters, plan.clusters.filled) + tilt
    weights = weights.masked_fill(plan.is_exact(block), -torch.inf)
    largest = weights.detach().amax(-1)  # (N, g, C), −∞ where all keys are exact
    tilted = (weights - finite(largest)[..., None]).exp().transpose(1, 2)  # (N, C, g, width)
    mass = tilted.sum(-1, keepdim=True)
    some = mass.clamp(min=torch.finfo(mass.dtype).tiny)
    mu, mean_value = ((tilted @ u / some).transpose(1, 2) for u in (keys, values))  # (N, g, C, ·)
    offset = mu - mean_key[:, None]
    given_back = width[..., None] * ((offset @ groups.metric[:, None]) * offset).sum(-1) / 2  # (N, g, C)
    scale = largest + some[..., 0].mT.log() - given_back.clamp(max=LARGEST)
    scale = scale.masked_fill(mass[..., 0].mT == 0, -torch.inf)
    return groups.residual[:, block] @ mu.mT + scale[:, :, None], mean_value


def _with_exact(
    found: Tensor, top: Tensor, x: Tensor, clusters: KeyClusters, plan: Plan
) -> tuple[Tensor, Tensor]:
    """Add sums over the exact keys of groups to ``found (N, G, queries, d_v + 1)``, which has the scale ``top``."""
    x, found, top = x.flatten(0, 1), found.flatten(0, 1), top.flatten(0, 1)  # (N·G, queries, ·)
    keys, values = clusters.keys.flatten(0, 2), clusters.values.flatten(0, 2)
    counts = plan.starts.diff()
    n_groups, per_head = plan.groups.tokens.shape[1], plan.clusters.tokens[0].numel()
    for rows in blocks_by_count(counts, x.shape[1], keys.shape[-1] + values.shape[-1]):
        place = torch.arange(int(counts[rows[0]]), device=x.device)
        real = place < counts[rows, None]
        pair = (plan.starts[rows, None] + place).where(real, 0)
        places = plan.exact[pair] + (rows // n_groups * per_head)[:, None]
        part, own = recompute(partial(_exact, places, real), x[rows], keys, values, learned=())
        both = torch.maximum(top[rows], own)
        merged = found[rows] * (top[rows] - both).exp() + part * (own - both).exp()
        found, top = found.index_copy(0, rows, merged), top.index_copy(0, rows, both)
    return found.unflatten(0, (-1, n_groups)), top.unflatten(0, (-1, n_groups))


def _exact(places: Tensor, real: Tensor, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    return exact_sums(x, keys, values, places, real)

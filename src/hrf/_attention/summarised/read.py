"""Output of summarised attention, given a plan: a differentiable function of queries, keys and values.

    W̃ᵢⱼ = exp(rᵢᵀyⱼ + min(γᵢd²ⱼ/2, LARGEST_TILT))    for the keys j that group i does not compute exactly
    M = Σ W̃,  μ = Σ W̃ y / M,  V = Σ W̃ v / M         over each cluster, for each group
    A = M exp(−γᵢ|μ − ȳ|²/2)                         ȳ the mean of the cluster, |·| in the metric Σ_δ
    output(x) = (Σ_exact exp(xᵀy) v + Σ_c A exp(δᵀμ) V) / (the same with 1 for v)         x = rᵢ + δ

The mean of exp(δᵀ(y − ȳ)) over a normal δ is exp(γ d²/2), which W̃ has; exp(δᵀ(μ − ȳ)) has a mean of its own, which A
gives back. So the mean mass of every cluster over its group is that of exact attention. Exponentials have one maximum
per group and cluster, and one per query, taken out of them.

Exact keys are chosen for a whole group, from the weights of its mean query. A query far from that mean may find much of
its mass in a cluster of which the group sees little. After reading, the share p_c(x) of every summary is known, so a
query opens cluster c, and computes its keys one by one in place of the summary, where

    p_c(x) √expm1(γ(x) d²_c)  ≥  τ / 16        γ(x) = δᵀ Σ_y δ over its mean, d²_c the mean of d² over the cluster

that is share of the mass times relative standard deviation of a log-normal weight, as in the rule for keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from hrf import tuning
from hrf._attention.call import recompute
from hrf._attention.summarised.plan import (
    Heads,
    KeyClusters,
    Plan,
    QueryGroups,
    blocks_of_groups,
    clusters_of,
    exact_plan,
    groups_of,
    log_weights,
    make_trees,
    opening_limits,
)
from hrf.numerics import finite

__all__ = [
    "LARGEST_TILT",
    "exact_sums",
    "log_deviation",
    "make_plan",
    "read",
    "summary_logits",
    "sums_and_scales",
    "with_opened",
    "with_opened_pairs",
]


def blocks_by_count(counts: Tensor, queries: int, width: int) -> Iterator[Tensor]:
    """Yield groups that have exact keys, most first, in blocks of at most `tuning.EXACT_FLOATS` floats."""
    sizes, order = counts.sort(descending=True, stable=True)
    sizes_list = sizes.tolist()
    start = 0
    while start < len(sizes_list) and sizes_list[start]:
        largest = sizes_list[start]
        step = max(1, tuning.EXACT_FLOATS // (largest * (queries + width)))
        end = start + 1
        # A group with fewer than half of the keys of the first would be mostly padding.
        while end < min(start + step, len(sizes_list)) and 2 * sizes_list[end] >= largest:
            end += 1
        yield order[start:end]
        start = end


def exact_sums(
    x: Tensor, keys: Tensor, values: Tensor, places: Tensor, real: Tensor
) -> tuple[Tensor, Tensor]:
    """Sum exp(xᵀy − m) (v, 1) over the exact keys of some groups.

    Args:
        x: queries ``(groups, queries, d)``.
        keys: all keys of all heads, ``(keys, d)``.
        values: likewise, ``(keys, d_v)``.
        places: exact keys of each group, ``(groups, most)``.
        real: which of them are any, ``(groups, most)``.

    Returns:
        The sums ``(groups, queries, d_v + 1)`` and m, the largest logit of each query, ``(groups, queries, 1)``.
    """
    logits = (x @ keys[places].mT).masked_fill(~real[:, None], -torch.inf)
    top = logits.detach().amax(-1, keepdim=True)
    weights = (logits - top).exp()
    return torch.cat([weights @ values[places], weights.sum(-1, keepdim=True)], -1), top


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


LARGEST_TILT = 10.0  # of γd²/2: beyond, the log-normal model says nothing


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
    tilt = (width[..., None, None] * spread[:, None] / 2).clamp(max=LARGEST_TILT)
    weights = log_weights(groups.mean[:, block], clusters, plan.clusters.filled) + tilt
    weights = weights.masked_fill(plan.is_exact(block), -torch.inf)
    largest = weights.detach().amax(-1)  # (N, g, C), −∞ where all keys are exact
    tilted = (weights - finite(largest)[..., None]).exp().transpose(1, 2)  # (N, C, g, width)
    mass = tilted.sum(-1, keepdim=True)
    some = mass.clamp(min=torch.finfo(mass.dtype).tiny)
    mu, mean_value = ((tilted @ u / some).transpose(1, 2) for u in (keys, values))  # (N, g, C, ·)
    offset = mu - mean_key[:, None]
    given_back = width[..., None] * ((offset @ groups.metric[:, None]) * offset).sum(-1) / 2  # (N, g, C)
    scale = largest + some[..., 0].mT.log() - given_back.clamp(max=LARGEST_TILT)
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


LARGEST_VARIANCE = 160.0  # of γd²: beyond, the log-normal model says nothing


def log_deviation(variance: Tensor) -> Tensor:
    """Return log √expm1(t), the relative standard deviation of a log-normal weight, which cannot overflow."""
    t = variance.clamp(max=LARGEST_VARIANCE)
    return (t + (-torch.expm1(-t)).log()) / 2


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
        variance = groups.query_width[:, block, :, None] * mean_spread[:, None, None]
        errors = logits - total[:, block] + log_deviation(variance)
        chosen = (errors >= limit) & (logits > -torch.inf) & plan.groups.filled[:, block, :, None]
        head, group, place, cluster = (chosen & (limit < torch.inf)).nonzero(as_tuple=True)
        row = head * groups.mean.shape[1] + block.start + group
        found.append(torch.stack([row * plan.groups.tokens.shape[2] + place, cluster], -1))
    return plan._replace(opened=torch.cat(found))

"""Error of summarised attention: by a log-normal model, and from a few queries that are computed exactly.

For a query x = rᵢ + δ the weight of a summarised key j is wrong by the factor exp(δᵀ(yⱼ − ȳ)). Over a group with normal
δ it is log-normal with the variance γᵢd²ⱼ of its logarithm, so a share is wrong by 1 − exp(−γᵢd²ⱼ) of its second
moment, and the output o moves by (vⱼ − o) times that. With errors of different keys taken as independent the model is

    e(x) = E‖error‖² = Σⱼ pⱼ(x)² (1 − exp(−γᵢd²ⱼ)) ‖vⱼ − oᵢ‖²        over the summarised keys of the group of x

Shares p(x) = pᵢⱼ · ρ_c(x) follow from those of the mean query and, per cluster c, from the mean key μ:
ρ_c(x) = exp(δᵀμ) / Σ_c pᵢ_c exp(δᵀμ).

Keys and values of a cluster go together, and sharp heads are not log-normal, so the model alone misses by more than a
factor of two in one head of ten. `predicted_error` uses it only to pick queries: `SAMPLES` of them, at equal steps of
Σ e(x), are computed exactly, and Σ e(x) times the mean of ‖error‖² / e(x) over them estimates Σ‖error‖².
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hrf._attention.summarised.heads import Heads
from hrf._attention.summarised.plan import Plan, blocks_of_groups, log_errors, log_limits, log_weights
from hrf._attention.summarised.statistics import KeyClusters, QueryGroups, clusters_of, groups_of
from hrf._attention.summarised.tree import Parts

__all__ = ["predicted_error", "tolerance_for"]

# τ that "auto" chooses from: 2⁻¹⁰, 2⁻⁹·⁵, …, 2¹⁰; exact attention and no exact pairs lie beyond.
LOG2_TOLERANCES = torch.arange(-10, 10.5, 0.5)
SAMPLES = 64  # queries per head that are computed exactly
LARGEST_GROWTH = 40.0  # of log ρ: its square fits float32, and such a cluster has no share to speak of


class _Errors(NamedTuple):
    """Errors of some groups by the model.

    Attributes:
        log: logarithms that `Plan` compares, ``(N, g, C, width)``.
        square: of each key for the mean query, likewise.
        growth: ρ_c(x)² of each query and cluster, ``(N, g, queries, C)``; 0 at places without query.
        output: Σ ‖o(x)‖², ``(N,)``.
    """

    log: Tensor
    square: Tensor
    growth: Tensor
    output: Tensor


def _errors(groups: QueryGroups, clusters: KeyClusters, trees: tuple[Parts, Parts], block: slice) -> _Errors:
    of_queries, of_keys = trees
    width = groups.width[:, block]
    weights = log_weights(groups.mean[:, block], clusters, of_keys.filled)
    shares = weights.flatten(2).softmax(-1).unflatten(-1, weights.shape[2:])  # (N, g, C, width)
    values = clusters.values.flatten(1, 2)
    mean = shares.flatten(2) @ values  # (N, g, d_v)
    moved = values.square().sum(-1)[:, None] + mean.square().sum(-1)[..., None] - 2 * mean @ values.mT
    wrong = -torch.expm1(-width[..., None, None] * clusters.spread[:, None])
    square = shares.square() * wrong * moved.clamp(min=0).unflatten(-1, weights.shape[2:])
    growth, output = _growth(groups, clusters, shares, of_queries.filled, block)
    return _Errors(log_errors(weights, width, clusters), square, growth, output)


def _growth(
    groups: QueryGroups, clusters: KeyClusters, shares: Tensor, filled: Tensor, block: slice
) -> tuple[Tensor, Tensor]:
    """Return ρ_c(x)² of each query and cluster, and Σ_x ‖o(x)‖² over groups, ``(N,)``."""
    mass = shares.sum(-1)  # (N, g, C)
    some = mass.clamp(min=torch.finfo(mass.dtype).tiny)
    by_cluster = shares.transpose(1, 2)  # (N, C, g, width)
    mu, value = ((by_cluster @ u).transpose(1, 2) / some[..., None] for u in clusters[:2])  # (N, g, C, ·)
    present = filled[:, block][..., None]
    logits = groups.residual[:, block] @ mu.mT  # (N, g, queries, C)
    total = (logits + some.log()[:, :, None]).logsumexp(-1, keepdim=True)
    growth = (2 * (logits - total).clamp(max=LARGEST_GROWTH)).exp() * present
    output = (((logits - total).exp() * mass[:, :, None]) @ value) * present
    return growth, output.square().sum((1, 2, 3))


@torch.no_grad()
def predicted_error(heads: Heads, plan: Plan, output: Tensor) -> Tensor:
    """Predict ‖output − exact‖ / ‖exact‖ of each head, ``(N,)``, for the output ``(N, L, d_v)`` of a plan."""
    model = _by_query(heads, plan)
    total = model.sum(-1, keepdim=True)
    steps = (torch.arange(SAMPLES, dtype=model.dtype, device=model.device) + 0.5) / SAMPLES
    picks = torch.searchsorted(model.cumsum(-1), total * steps).clamp(max=model.shape[1] - 1)  # (N, SAMPLES)

    def taken(u: Tensor) -> Tensor:
        return u.gather(1, picks[..., None].expand(-1, -1, u.shape[-1]))

    logits = (taken(heads.x) @ heads.y.mT).masked_fill(~heads.keys[:, None], -torch.inf)
    found = (taken(output) - logits.softmax(-1) @ heads.v).square().sum(-1)
    tiny = torch.finfo(model.dtype).tiny
    error = total[:, 0] * (found / model.gather(1, picks).clamp(min=tiny)).mean(-1)
    # Without a summary that could err, there is nothing to pick.
    error = error.where(total[:, 0] > tiny, 0)
    return (error / output.square().sum((1, 2)).clamp(min=tiny)).sqrt()


def _by_query(heads: Heads, plan: Plan) -> Tensor:
    """Return e(x) of every query, ``(N, L)``."""
    groups = groups_of(heads, plan.groups)
    clusters = clusters_of(heads, plan.clusters, groups.metric)
    found = []
    for block in blocks_of_groups(groups.mean.shape[1], plan.clusters.tokens.numel()):
        errors = _errors(groups, clusters, (plan.groups, plan.clusters), block)
        summarised = errors.square.masked_fill(plan.is_exact(block), 0).sum(-1)  # (N, g, C)
        growth = errors.growth.masked_fill(plan.is_opened(block), 0)
        found.append(growth @ summarised[..., None])
    return plan.groups.put(torch.cat(found, 1), heads.x.shape[1])[..., 0]


@torch.no_grad()
def tolerance_for(
    heads: Heads, trees: tuple[Parts, Parts], groups: QueryGroups, clusters: KeyClusters, target: float
) -> Tensor:
    """Return the largest tolerance per head whose error by the model is at most a target, ``(N,)``; 0 if none is."""
    n = len(heads.x)
    tolerances = 2 ** LOG2_TOLERANCES.to(heads.x)
    edges = log_limits(tolerances, heads.keys.sum(-1, keepdim=True))  # (N, tolerances)
    histogram = heads.x.new_zeros(n, len(tolerances) + 1)
    output = heads.x.new_zeros(n)
    for block in blocks_of_groups(groups.mean.shape[1], trees[1].tokens.numel()):
        found = _errors(groups, clusters, trees, block)
        bins = torch.searchsorted(edges, found.log.flatten(1), right=True)
        square = found.square * found.growth.sum(-2)[..., None]
        histogram.scatter_add_(1, bins, square.flatten(1))
        output += found.output
    # With tolerance b, the keys in bins up to b are summarised.
    fits = histogram.cumsum(-1) <= target**2 * output[:, None]
    choices = torch.cat([tolerances.new_zeros(1), tolerances, tolerances.new_full((1,), torch.inf)])
    return choices[fits.sum(-1)]

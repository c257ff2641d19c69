"""Error of summarised attention, measured on a few queries that are computed exactly.

For a query x = rᵢ + δ the weight of a summarised key j is wrong by the factor exp(δᵀ(yⱼ − ȳ)). Over a group with normal
δ it is log-normal with the variance γᵢd²ⱼ of its logarithm, so a share is wrong by 1 − exp(−γᵢd²ⱼ) of its second
moment, and the output o moves by (vⱼ − o) times that. With errors of different keys taken as independent the model is

    e(x) = E‖error‖² = Σⱼ pⱼ(x)² (1 − exp(−γᵢd²ⱼ)) ‖vⱼ − oᵢ‖²        over the summarised keys of the group of x

Shares p(x) = pᵢⱼ · ρ_c(x) follow from those of the mean query and, per cluster c, from the mean key μ:
ρ_c(x) = exp(δᵀμ) / Σ_c pᵢ_c exp(δᵀμ).

The model does not see a key that has no weight for the mean query and much for x. So each query also meets the keys of
the few clusters that may have its largest logits: with õ(x) the output over these keys alone, and m(x) their share of
the mass, m² ‖o − õ‖² is what the output would be wrong by if the summaries had missed them.

`predicted_error` uses both, and a uniform sample, to pick queries: it computes `SAMPLES` at equal steps of the sum of
these errors and `SAMPLES` spread evenly over the sequence exactly, and weighs each by how likely it was to be picked.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hrf import tuning
from hrf._attention.summarised.blocks import Choices
from hrf._attention.summarised.plan import (
    Heads,
    KeyClusters,
    Parts,
    Plan,
    QueryGroups,
    blocks_of_groups,
    clusters_of,
    groups_of,
    log_weights,
)
from hrf._attention.summarised.recursion import CausalRows, causal_sums

__all__ = ["causal_error", "predicted_error"]

SAMPLES = 64  # queries per head of each kind that are computed exactly
NEAR = 4  # clusters per query whose keys are computed one by one
OUTERMOST = 8  # keys per cluster that say which clusters these are
GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, are spread evenly
LARGEST_GROWTH = 40.0  # of log ρ: its square fits float32, and such a cluster has no share to speak of


class _Errors(NamedTuple):
    """Errors of some groups by the model.

    Attributes:
        square: of each key for the mean query, ``(N, g, C, width)``.
        growth: ρ_c(x)² of each query and cluster, ``(N, g, queries, C)``; 0 at places without query.
        log_mass: log Σ exp(xᵀy) of each query by the same shares, ``(N, g, queries, 1)``.
    """

    square: Tensor
    growth: Tensor
    log_mass: Tensor


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
    growth, total = _growth(groups, clusters, shares, of_queries.filled, block)
    return _Errors(square, growth, weights.flatten(2).logsumexp(-1)[..., None, None] + total)


def _growth(
    groups: QueryGroups, clusters: KeyClusters, shares: Tensor, filled: Tensor, block: slice
) -> tuple[Tensor, Tensor]:
    """Return ρ_c(x)² of each query and cluster, and log Σ_c pᵢ_c exp(δᵀμ)."""
    mass = shares.sum(-1)  # (N, g, C)
    some = mass.clamp(min=torch.finfo(mass.dtype).tiny)
    mu = (shares.transpose(1, 2) @ clusters.keys).transpose(1, 2) / some[..., None]  # (N, g, C, d)
    logits = groups.residual[:, block] @ mu.mT  # (N, g, queries, C)
    total = (logits + some.log()[:, :, None]).logsumexp(-1, keepdim=True)
    growth = (2 * (logits - total).clamp(max=LARGEST_GROWTH)).exp()
    return growth * filled[:, block][..., None], total


@torch.no_grad()
def predicted_error(heads: Heads, plan: Plan, output: Tensor) -> Tensor:
    """Estimate ‖output − exact‖ / ‖exact‖ of each head, ``(N,)``, for the output ``(N, L, d_v)`` of a plan."""
    tiny = torch.finfo(output.dtype).tiny
    # Squares of values must neither overflow nor vanish.
    size = heads.v.abs().amax((1, 2), keepdim=True).clamp(min=tiny)
    heads, output = heads._replace(v=heads.v / size), output / size
    picked, chances = _picks(_suspected(heads, plan, output), heads.queries)

    def taken(u: Tensor) -> Tensor:
        return u.gather(1, picked[..., None].expand(-1, -1, u.shape[-1]))

    logits = (taken(heads.x) @ heads.y.mT).masked_fill(~heads.keys[:, None], -torch.inf)
    exact = logits.softmax(-1) @ heads.v
    squares = torch.stack([(taken(output) - exact).square().sum(-1), exact.square().sum(-1)])
    error, size = (squares / chances.clamp(min=tiny)).sum(-1)
    # The size by the sample is noisy; that of the output is too small if much is missing from it.
    return (error / torch.maximum(size, output.square().sum((1, 2))).clamp(min=tiny)).sqrt()


FINER = 4  # times smaller is the tolerance of the output that shows where errors may be


@torch.no_grad()
def causal_error(rows: CausalRows, choices: Choices, output: Tensor) -> Tensor:
    """Estimate ‖output − exact‖ / ‖exact‖ of each head, ``(B, H)``.

    Cells that pass their test leave errors to few queries, so half of the samples go where the output with other blocks
    and a smaller tolerance differs.
    """
    tiny = torch.finfo(output.dtype).tiny
    finer = choices._replace(tolerance=min(choices.tolerance, FINER) / FINER, base=2 * choices.base)
    other = output if int(rows.keys.max()) <= choices.base else causal_sums(rows, finer).output
    found = []
    for b in range(len(rows.x)):
        x, y, v, prefix = rows.item(b, choices.root)
        own, finer_own = (u[b, :, int(rows.first_query[b]) :][:, : x.shape[1]] for u in (output, other))
        if not x.shape[1]:
            found.append(own.new_zeros(len(own)))
            continue
        # Squares of values must neither overflow nor vanish.
        size = v.abs().amax((1, 2), keepdim=True).clamp(min=tiny)
        own, finer_own, v = own / size, finer_own / size, v / size
        moved = (own - finer_own).square().sum(-1)
        floor = torch.finfo(output.dtype).eps * own.square().sum(-1).mean(-1, keepdim=True)
        picked, chances = _picks(moved + floor, torch.ones_like(moved, dtype=torch.bool))
        index = picked[..., None]
        logits = x.gather(1, index.expand(-1, -1, x.shape[-1])) @ y.mT
        seen = torch.arange(y.shape[1], device=x.device) <= index + prefix
        exact = logits.masked_fill(~seen, -torch.inf).softmax(-1) @ v
        error = own.gather(1, index.expand(-1, -1, own.shape[-1])) - exact
        squares = torch.stack([error.square().sum(-1), exact.square().sum(-1)]) / chances.clamp(min=tiny)
        wrong, right = squares.sum(-1)
        right = torch.maximum(right, own.square().sum((1, 2))).clamp(min=tiny)
        found.append((wrong / right).sqrt())
    return torch.stack(found)


def _picks(suspected: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Pick queries, ``(N, 2·SAMPLES)``; also return how often each of them is expected among the picks.

    The first half goes at equal steps of the sum of suspected errors ``(N, L)``, the second over all real queries.
    """
    tiny = torch.finfo(suspected.dtype).tiny
    steps = (torch.arange(SAMPLES, dtype=suspected.dtype, device=suspected.device) + 0.5) / SAMPLES
    evenly = (steps[0] + GOLDEN * torch.arange(SAMPLES, device=steps.device)) % 1
    chances, picks = torch.zeros_like(suspected), []
    for weight, places in ((suspected, steps), (real.to(suspected.dtype), evenly)):
        sums = weight.cumsum(-1)
        total = sums[:, -1:]
        picks.append(torch.searchsorted(sums, total * places).clamp(max=real.shape[1] - 1))
        chances += SAMPLES * weight / total.clamp(min=tiny)
    picked = torch.cat(picks, -1)
    return picked, chances.gather(1, picked)


def _suspected(heads: Heads, plan: Plan, output: Tensor) -> Tensor:
    """Return the squared error that the model and the nearest clusters suggest for every query, ``(N, L)``."""
    groups = groups_of(heads, plan.groups)
    clusters = clusters_of(heads, plan.clusters, groups.metric)
    found, masses = [], []
    for block in blocks_of_groups(groups.mean.shape[1], plan.clusters.tokens.numel()):
        errors = _errors(groups, clusters, (plan.groups, plan.clusters), block)
        summarised = errors.square.masked_fill(plan.is_exact(block), 0).sum(-1)  # (N, g, C)
        growth = errors.growth.masked_fill(plan.is_opened(block), 0)
        found.append(growth @ summarised[..., None])
        masses.append(errors.log_mass)
    by_model, log_mass = (plan.groups.put(torch.cat(u, 1), heads.x.shape[1]) for u in (found, masses))
    return by_model[..., 0] + _missed(heads, plan.clusters.filled, clusters, output, log_mass)


def _missed(heads: Heads, filled: Tensor, clusters: KeyClusters, output: Tensor, log_mass: Tensor) -> Tensor:
    """Return m² ‖o − õ‖² of every query, ``(N, L)``: the error if summaries missed the keys of the nearest clusters."""
    outermost = _outermost(clusters.keys, clusters.mean, filled)  # (N, C, OUTERMOST, d)
    reach = (heads.x @ outermost.flatten(1, 2).mT).unflatten(-1, outermost.shape[1:3]).amax(-1)  # (N, L, C)
    near = reach.topk(min(NEAR, reach.shape[-1])).indices  # (N, L, NEAR)
    # All other clusters together have about this mass at most, whatever their summaries say.
    others = (reach + filled.sum(-1)[:, None].log()).scatter(-1, near, -torch.inf).logsumexp(-1, keepdim=True)
    log_mass = torch.minimum(log_mass, others)
    head = torch.arange(len(near), device=near.device)[:, None, None]
    floats = near.shape[-1] * (clusters.keys[0, 0].numel() + clusters.values[0, 0].numel())
    step, found = max(1, tuning.EXACT_FLOATS // (floats * len(near))), []
    for start in range(0, near.shape[1], step):
        rows = slice(start, start + step)
        keys, values, some = (u[head, near[:, rows]].flatten(2, 3) for u in (*clusters[:2], filled))
        logits = (keys @ heads.x[:, rows, :, None])[..., 0].masked_fill(~some, -torch.inf)
        share = (logits.logsumexp(-1, keepdim=True) - log_mass[:, rows]).sigmoid()
        moved = output[:, rows] - (logits.softmax(-1)[..., None, :] @ values)[..., 0, :]
        found.append((share * moved).square().sum(-1))
    return torch.cat(found, 1) * heads.queries


def _outermost(keys: Tensor, mean: Tensor, filled: Tensor) -> Tensor:
    """Pick keys of each cluster that are far from its mean and from each other: ``(N, C, OUTERMOST, d)``."""
    nearest, picked = torch.full_like(keys[..., 0], torch.inf).masked_fill(~filled, -torch.inf), []
    last = mean[:, :, None]
    for _ in range(OUTERMOST):
        nearest = torch.minimum(nearest, (keys - last).square().sum(-1))
        place = nearest.argmax(-1)[..., None, None].expand(-1, -1, 1, keys.shape[-1])
        last = keys.gather(2, place)
        picked.append(last)
    return torch.cat(picked, 2)

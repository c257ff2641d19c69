"""Error of summarised attention by the log-normal model, without exact attention to compare with.

For a query x = rᵢ + δ the weight of a summarised key j is wrong by the factor exp(δᵀ(yⱼ − ȳ)), whose relative variance over
the group is expm1(γᵢd²ⱼ) where δ is normal. The output o moves by pⱼ(vⱼ − o) times that, with pⱼ the share of key j.
Errors of different keys are taken as independent, so

    E‖error‖² = Σᵢ nᵢ Σⱼ pᵢⱼ² expm1(γᵢd²ⱼ) ‖vⱼ − oᵢ‖²         over groups of nᵢ queries and their summarised keys

with shares p and outputs o of the groups' mean queries; relative to Σᵢ nᵢ‖oᵢ‖².
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hrf._attention.summarised.heads import Heads
from hrf._attention.summarised.plan import Plan, blocks_of_groups, log_errors, log_weights
from hrf._attention.summarised.statistics import Clusters, Groups, clusters_of, groups_of
from hrf._attention.summarised.tree import Parts

__all__ = ["predicted_error", "tolerance_for"]

# τ that "auto" chooses from: 2⁻¹⁰, 2⁻⁹·⁵, …, 2¹⁰; exact attention and no exact pairs lie beyond.
LOG2_TOLERANCES = torch.arange(-10, 10.5, 0.5)


class _Errors(NamedTuple):
    """Errors of some groups: logarithms that `Plan` compares, and squares weighted by values, ``(N, g, C, width)``."""

    log: Tensor
    square: Tensor
    output: Tensor  # Σ nᵢ‖oᵢ‖², (N,)


def _errors(groups: Groups, clusters: Clusters, trees: tuple[Parts, Parts], block: slice) -> _Errors:
    of_queries, of_keys = trees
    sizes = of_queries.filled[:, block].sum(-1).to(groups.mean.dtype)  # (N, g)
    weights = log_weights(groups.mean[:, block], clusters, of_keys.filled)
    errors = log_errors(weights, groups.width[:, block], clusters)
    values = clusters.values.flatten(1, 2)
    output = weights.flatten(2).softmax(-1) @ values  # (N, g, d_v)
    squares = values.square().sum(-1)[:, None] + output.square().sum(-1)[..., None] - 2 * output @ values.mT
    moved = squares.clamp(min=0).unflatten(-1, of_keys.index.shape[1:]) * sizes[..., None, None]
    # A share cannot be wrong by more than all of it.
    square = (2 * errors.clamp(max=0)).exp() * moved
    return _Errors(errors, square, (output.square().sum(-1) * sizes).sum(-1))


@torch.no_grad()
def predicted_error(heads: Heads, plan: Plan) -> Tensor:
    """Predict ‖output − exact‖ / ‖exact‖ of each head, ``(N,)``."""
    groups = groups_of(heads, plan.groups)
    clusters = clusters_of(heads, plan.clusters, groups.metric)
    error, output = heads.x.new_zeros(2, len(heads.x))
    for block in blocks_of_groups(groups.mean.shape[1], plan.clusters.index.numel()):
        found = _errors(groups, clusters, (plan.groups, plan.clusters), block)
        error += found.square.masked_fill(plan.is_exact(block), 0).sum((1, 2, 3))
        output += found.output
    return (error / output.clamp(min=torch.finfo(output.dtype).tiny)).sqrt()


@torch.no_grad()
def tolerance_for(
    heads: Heads, trees: tuple[Parts, Parts], groups: Groups, clusters: Clusters, target: float
) -> Tensor:
    """Return the largest tolerance of each head whose predicted error is at most ``target``, ``(N,)``; 0 if none is."""
    n = len(heads.x)
    tolerances = 2 ** LOG2_TOLERANCES.to(heads.x)
    edges = (tolerances / heads.keys.sum(-1, keepdim=True)).log()  # (N, tolerances)
    histogram = heads.x.new_zeros(n, len(tolerances) + 1)
    output = heads.x.new_zeros(n)
    for block in blocks_of_groups(groups.mean.shape[1], trees[1].index.numel()):
        found = _errors(groups, clusters, trees, block)
        bins = torch.searchsorted(edges, found.log.flatten(1), right=True)
        histogram.scatter_add_(1, bins, found.square.flatten(1))
        output += found.output
    # With tolerance b, the keys in bins up to b are summarised.
    fits = histogram.cumsum(-1) <= target**2 * output[:, None]
    choices = torch.cat([tolerances.new_zeros(1), tolerances, tolerances.new_full((1,), torch.inf)])
    return choices[fits.sum(-1)]

"""Summarised attention beside the maps: no map, so that it has a record of its own. Not causal.

It is compared at equal cost: FLOPs per token of the whole attention, at the length in use, 2 per multiply-add. With G
groups, C clusters, a share s of exact pairs, and keys and values of widths d and e:

=============================  ========================================
trees                          26d per level: log₂ G + log₂ C levels of 6 power iterations and a projection
metrics, distances             12d²
mean queries against keys      2Gd
tilted sums                    2G(d + e)
queries against summaries      2C(d + e)
exact pairs                    s S (2d + 2e) for S keys
=============================  ========================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hrf._attention import SummarisedAttention, SummaryReport, attention
from hrf.advice.errors import Problem
from hrf.features.base import FeatureMap

__all__ = ["SummaryFinding", "find_summaries", "map_flops", "summary_flops"]

_TOLERANCES = (0.5, 1.0, 2.0, math.inf)


@dataclass(frozen=True)
class SummaryFinding:
    """Summarised attention on held-out data.

    Attributes:
        tolerance: the smallest of a few τ that is within the cost of attention with the budget's positive features,
            or ∞ if none is.
        error: relative error of the attention output, with as many groups and clusters as the held-out data get by
            default: fewer than a longer sequence gets.
        exact_share: share of pairs that were computed exactly.
        flops: FLOPs per token of attention, at the length in use and this share.
        relative_cost: ``flops`` over the FLOPs of attention with the budget's positive features.
    """

    tolerance: float
    error: float
    exact_share: float
    flops: int
    relative_cost: float


def find_summaries(problem: Problem, reference: FeatureMap, length: int) -> SummaryFinding | None:
    """Measure summarised attention; ``None`` without values, or where sequences are so short that it is exact.

    Args:
        problem: held-out data, with the objective.
        reference: the map whose attention costs as much as the budget allows.
        length: number of keys per sequence in use.
    """
    sizes = SummarisedAttention().sizes
    if problem.values is None or problem.objective != "output" or sizes(length, length) == (0, 0):
        return None
    if sizes(len(problem.queries), len(problem.keys)) == (0, 0):
        return None
    dim, value_dim = problem.keys.shape[-1], problem.values.shape[-1]
    allowed = map_flops(reference, value_dim)
    q, k, v = (u[None].float() for u in (problem.queries, problem.keys, problem.values))
    finding = None
    for tolerance in _TOLERANCES:
        report = SummaryReport()
        output = attention(q, k, v, SummarisedAttention(tolerance=tolerance, report=report), scale=1.0)
        flops, error = summary_flops(length, dim, value_dim, report.exact_share), problem.error_of(output[0])
        finding = SummaryFinding(tolerance, error, report.exact_share, round(flops), flops / allowed)
        if flops <= allowed:
            break
    return finding


def summary_flops(length: int, dim: int, value_dim: int, exact_share: float) -> float:
    """Count operations per token of summarised attention with default sizes, as in the table of this file."""
    groups, clusters = SummarisedAttention().sizes(length, length)
    both = dim + value_dim
    trees = 26 * dim * math.log2(groups * clusters) + 12 * dim**2
    return trees + 2 * groups * (dim + both) + 2 * clusters * both + exact_share * length * 2 * both


def map_flops(feature_map: FeatureMap, value_dim: int) -> float:
    """Count operations per token of attention with a map: map query and key, add to the state, read it."""
    return 2 * feature_map.flops() + 4.0 * feature_map.active_width * (value_dim + 1)

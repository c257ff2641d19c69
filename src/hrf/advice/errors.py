"""Error of a map on held-out queries and keys, with a confidence interval over redraws of ω.

The attention weights W are the rows of the kernel K over their sums; Ŵ are the weights that `hrf.attention`
computes from the estimates K̂, under its rule for denominators that are too small and for outputs outside the box.

=============  ===========================================================
objective      error of one draw
=============  ===========================================================
``attention``  ‖Ŵ − W‖/‖W‖, Frobenius norms
``output``     ‖ŴV − WV‖/‖WV‖ for the values V
``kernel``     √ of the mean over draws of (K̂/K − 1)², median over pairs
=============  ===========================================================
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import torch
from scipy.stats import t as student
from torch import Generator, Tensor

from hrf import kernels
from hrf._attention import SummarisedAttention, SummaryReport, attention
from hrf._attention.denominator import FLOOR, Denominator, Visible, bounded, log_bound
from hrf.features.base import FeatureMap
from hrf.numerics import Features

__all__ = [
    "FLOOR",
    "OBJECTIVES",
    "GramObjective",
    "GramProblem",
    "LabelledRows",
    "Objective",
    "Problem",
    "SummaryFinding",
    "attention_outputs",
    "find_summaries",
    "map_flops",
    "plain_features",
    "predicted_error",
    "predicted_gram_error",
    "relative_errors",
    "summary_flops",
]

Objective = Literal["attention", "output", "kernel"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

_LEVEL = 0.95
_PREDICTED_PAIRS = 64  # queries and keys whose closed-form errors are computed


class Interval(NamedTuple):
    """An estimate with the bounds of its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Problem:
    """Queries ``(L, d)``, keys ``(S, d)``, optional values ``(S, d_v)``, and the objective to score maps by."""

    queries: Tensor
    keys: Tensor
    values: Tensor | None
    objective: Objective

    def error(self, feature_map: FeatureMap, n_redraws: int, generator: Generator) -> Interval:
        """Measure the error over ``n_redraws`` draws, the first of them the map's own; the map is left unchanged.

        The interval is a jackknife over the draws with a t-quantile. For a map without randomness it has width 0.
        """
        return interval_over_draws(feature_map, n_redraws, generator, self._score, self._statistic)

    def error_of(self, estimated: Tensor) -> float:
        """Return the relative error of given outputs ``(L, d_v)``, or weights ``(L, S)``."""
        return float(relative_errors(estimated.to(self._exact), self._exact))

    def uniform(self) -> float:
        """Return the error of attention that ignores queries and keys: all weights of a row are equal."""
        if self.objective == "kernel":
            log_mean = self._log_kernel.logsumexp(-1, keepdim=True) - math.log(len(self.keys))
            score = ((log_mean - self._log_kernel).exp() - 1).square()
        else:
            weights = torch.full_like(self._log_kernel, 1 / len(self.keys))
            score = relative_errors(self._observed(weights), self._exact)
        return float(self._statistic(score.unsqueeze(0)))

    def estimate(self, feature_map: FeatureMap) -> Tensor:
        """Return attention as the map computes it: outputs ``(L, d_v)`` for the objective ``output``, else weights."""
        values = self.values if self.objective == "output" else None
        return attention_outputs(feature_map, self.queries, self.keys, values)[0]

    @cached_property
    def _log_kernel(self) -> Tensor:
        return kernels.log_softmax_kernel(self.queries, self.keys)

    @cached_property
    def _exact(self) -> Tensor:
        return self._observed(self._log_kernel.softmax(-1))

    def _observed(self, weights: Tensor) -> Tensor:
        """Turn attention weights into the quantity that is compared: the weights themselves, or the output."""
        return weights @ self.values if self.values is not None and self.objective == "output" else weights

    def _score(self, feature_map: FeatureMap) -> Tensor:
        """Score one draw: a number, or for ``kernel`` one number per pair."""
        if self.objective == "kernel":
            values, log_scale = feature_map.scaled_estimate(self.queries, self.keys)
            return (values * (log_scale - self._log_kernel).exp() - 1).square()
        return relative_errors(self.estimate(feature_map), self._exact)

    def _statistic(self, draws: Tensor) -> Tensor:
        return draws.mean(0).median().sqrt() if self.objective == "kernel" else draws.mean()


def attention_outputs(
    feature_map: FeatureMap, queries: Tensor, keys: Tensor, values: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute `hrf.attention` with ``scale=1`` from the matrix of estimates, in quadratic time.

    Args:
        feature_map: a map of the softmax kernel.
        queries: ``(..., L, d)``.
        keys: ``(..., S, d)``.
        values: ``(..., S, d_v)``; ``None`` is the identity, so that outputs are attention weights.

    Returns:
        The outputs ``(..., L, d_v or S)``, and the rows whose denominators were too small, booleans ``(..., L)``.
    """
    estimates, log_scale = feature_map.scaled_estimate(queries, keys)
    scale = log_scale.amax(-1, keepdim=True)
    kernel = estimates * (log_scale - scale).exp()
    moments = torch.cat([torch.ones_like(keys[..., :1]), keys], -1).sum(-2, keepdim=True)
    bound = log_bound(feature_map, queries, moments)
    used, small = Denominator("clamp").settle(kernel.sum(-1, keepdim=True), scale, bound)
    v = torch.eye(keys.shape[-2], dtype=keys.dtype, device=keys.device) if values is None else values
    total = torch.cat([v, torch.ones_like(v[..., :1])], -1).sum(-2, keepdim=True)
    seen = Visible(total, v.amin(-2, keepdim=True), v.amax(-2, keepdim=True))
    quotients = kernel / used if values is None else kernel @ values / used
    return bounded(quotients, small, seen)[0], small.squeeze(-1)


def relative_errors(estimated: Tensor, exact: Tensor) -> Tensor:
    """Return ‖estimated − exact‖/‖exact‖ of the matrices in the last two axes."""
    return torch.linalg.matrix_norm(estimated - exact) / torch.linalg.matrix_norm(exact)


def interval_over_draws(
    feature_map: FeatureMap,
    n_redraws: int,
    generator: Generator,
    score: Callable[[FeatureMap], Tensor],
    statistic: Callable[[Tensor], Tensor],
) -> Interval:
    """Score ``n_redraws`` draws, the first of them the map's own, and take the statistic of the stacked scores."""
    draws = [score(feature_map)]
    other = copy.deepcopy(feature_map) if feature_map.is_random else feature_map
    for _ in range(n_redraws - 1 if feature_map.is_random else 0):
        draws.append(score(other.redraw_(generator)))
    return _jackknife(torch.stack(draws), statistic)


def _jackknife(draws: Tensor, statistic: Callable[[Tensor], Tensor]) -> Interval:
    value, n = float(statistic(draws)), len(draws)
    if n == 1:
        return Interval(value, value, value)
    others = torch.stack([statistic(torch.cat([draws[:k], draws[k + 1 :]])) for k in range(n)])
    deviation = float(((n - 1) / n * (others - others.mean()).square().sum()).sqrt())
    half = float(student.ppf((1 + _LEVEL) / 2, n - 1)) * deviation
    return Interval(value, max(0.0, value - half), value + half)


def predicted_error(feature_map: FeatureMap, queries: Tensor, keys: Tensor) -> float | None:
    """Return the median of √MSE/K over pairs in closed form, or ``None`` where no closed form is known.

    FAVOR# has a closed form for independent rows only, which stands in for orthogonal rows. Centres that follow
    the keys would follow the few keys sampled here, so such maps get no prediction.
    """
    if feature_map.follows_keys:
        return None
    independent = copy.deepcopy(feature_map)
    for omega in independent.all_projections():
        omega.kind = "iid"
    for twin in (feature_map, independent):
        try:
            return float(twin.relative_error(queries[:_PREDICTED_PAIRS], keys[:_PREDICTED_PAIRS]).median())
        except NotImplementedError:
            continue
    return None


# Error of a map on held-out rows, as a kernel machine sees it: a linear model on features φ(x), queries of the map.
#
# =============  ==================================================================================
# objective      error of one draw
# =============  ==================================================================================
# ``gram``       root of the mean squared difference between φ(x)·φ(y) and K(x, y) over pairs of rows
# ``ridge``      ‖ŷ − y‖/‖y − ȳ‖ of ridge regression, at the best of a few penalties per map
# =============  ==================================================================================


GramObjective = Literal["gram", "ridge"]

_PENALTIES = torch.logspace(-7, 2, 10, dtype=torch.float64)
_PREDICTED_ROWS = 64  # rows per side whose closed-form errors are computed


class LabelledRows(NamedTuple):
    """Rows ``(N, d)``, scaled as the kernel needs them, and perhaps targets ``(N, k)``."""

    x: Tensor
    y: Tensor | None

    def part(self, rows: Tensor | slice) -> LabelledRows:
        """Select rows."""
        return LabelledRows(self.x[rows], None if self.y is None else self.y[rows])


@dataclass(frozen=True)
class GramProblem:
    """Rows to fit a ridge regression to, and held-out rows to measure errors on."""

    fitted: LabelledRows
    held_out: LabelledRows

    @property
    def objective(self) -> GramObjective:
        """``ridge`` where there are targets."""
        return "gram" if self.held_out.y is None else "ridge"

    def error(self, feature_map: FeatureMap, n_redraws: int, generator: Generator) -> Interval:
        """Measure the error over draws of ω, as `hrf.advice.errors.Problem.error` does."""
        return interval_over_draws(feature_map, n_redraws, generator, self._score, self._statistic)

    def uniform(self, feature_map: FeatureMap) -> float:
        """Return the error without features: of the mean of the kernel values, or of the targets."""
        if self.held_out.y is not None:
            return 1.0
        exact = feature_map.log_kernel(*self._pair).exp()
        return float((exact - exact.mean()).square().mean().sqrt())

    @cached_property
    def _pair(self) -> tuple[Tensor, Tensor]:
        """Two halves of the held-out rows, so that no row meets itself."""
        half = len(self.held_out.x) // 2
        return self.held_out.x[:half], self.held_out.x[half:]

    def _score(self, feature_map: FeatureMap) -> Tensor:
        if self.fitted.y is not None and self.held_out.y is not None:
            features = [plain_features(feature_map, rows.x).double() for rows in (self.fitted, self.held_out)]
            return _ridge_error(features[0], self.fitted.y, features[1], self.held_out.y)
        x, y = self._pair
        exact = feature_map.log_kernel(x, y).exp()
        return (
            (plain_features(feature_map, x) @ plain_features(feature_map, y).mT - exact)
            .double()
            .square()
            .mean()
        )

    def _statistic(self, draws: Tensor) -> Tensor:
        return draws.mean().sqrt() if self.held_out.y is None else draws.mean()


def plain_features(
    feature_map: FeatureMap, x: Tensor, scaled: Callable[[Tensor], Features] | None = None
) -> Tensor:
    """Return queries of the map ``(N, D)``; a row so far out that all its features are too small gets zeros."""
    values, log_scale = (scaled or feature_map.scaled_queries)(x)
    features = values.mul_(log_scale.exp())
    if not math.isfinite(float(features.sum())):
        raise OverflowError(
            f"features reach exp({float(log_scale.max()):.0f}), which {x.dtype} cannot hold; scale the columns "
            "(StandardScaler), lower gamma, or use trigonometric features"
        )
    return features


def _ridge_error(features: Tensor, targets: Tensor, new_features: Tensor, new_targets: Tensor) -> Tensor:
    """Return the relative error on new rows of the best ridge regression with an intercept."""
    mean, mean_target = features.mean(0), targets.mean(0)
    f, g, residuals = features - mean, new_features - mean, targets - mean_target
    if len(f) < f.shape[1]:  # the smaller of the two Gram matrices
        values, vectors = torch.linalg.eigh(f @ f.mT)
        new, weights = g @ f.mT @ vectors, vectors.mT @ residuals
    else:
        values, vectors = torch.linalg.eigh(f.mT @ f)
        new, weights = g @ vectors, vectors.mT @ (f.mT @ residuals)
    shrunk = weights / (values.clamp(min=0)[:, None] + _PENALTIES[:, None, None])  # (penalties, D, k)
    errors = torch.linalg.matrix_norm(new @ shrunk + mean_target - new_targets)
    return errors.min() / torch.linalg.matrix_norm(new_targets - mean_target)


def predicted_gram_error(feature_map: FeatureMap, x: Tensor) -> float | None:
    """Return the root of the mean MSE over pairs of rows in closed form.

    ``None`` where no form is known, or where the two sides of the map differ.
    """
    half = min(_PREDICTED_ROWS, len(x) // 2)
    first, second = x[:half], x[half : 2 * half]
    if not torch.equal(feature_map.scaled_queries(first).values, feature_map.scaled_keys(first).values):
        return None
    try:
        return float(feature_map.mse(first, second).mean().sqrt())
    except NotImplementedError:
        return None


# Summarised attention beside the maps: no map, so that it has a record of its own. Not causal.
#
# It is compared at equal cost: FLOPs per token of the whole attention, at the length in use, 2 per multiply-add. With G
# groups, C clusters, a share s of exact pairs, and keys and values of widths d and e:
#
# =============================  ========================================
# trees                          26d per level: log₂ G + log₂ C levels of 6 power iterations and a projection
# metrics, distances             12d²
# mean queries against keys      2Gd
# tilted sums                    2G(d + e)
# queries against summaries      2C(d + e)
# exact pairs                    s S (2d + 2e) for S keys
# =============================  ========================================


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

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
from hrf._attention.denominator import FLOOR, Denominator, Visible, bounded, log_bound
from hrf.features.base import FeatureMap

__all__ = [
    "FLOOR",
    "OBJECTIVES",
    "Interval",
    "Objective",
    "Problem",
    "attention_outputs",
    "interval_over_draws",
    "predicted_error",
    "relative_errors",
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

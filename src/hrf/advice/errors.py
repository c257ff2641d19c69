"""How wrong a map is on held-out queries and keys, with an interval over redraws of ω.

The attention weights W are the rows of the kernel K over their sums, and their estimate Ŵ is the same with K̂.
A sum that is not positive, or below a thousandth of Σ|K̂|, counts as that much: else a single row decides all.

=============  ===========================================================
objective      error of a draw
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
from typing import NamedTuple

import torch
from scipy.stats import t as student
from torch import Generator, Tensor

from hrf import kernels
from hrf.features.base import FeatureMap, Features
from hrf.features.clustered import ClusteredHybrid

__all__ = ["FLOOR", "OBJECTIVES", "Interval", "Problem", "predicted_error", "relative_errors", "weights_of"]

OBJECTIVES = ("attention", "output", "kernel")

#: The least denominator of a row, as a share of the sum of the magnitudes of its estimates.
FLOOR = 1e-3

_LEVEL = 0.95
_PREDICTED_PAIRS = 64  # queries and keys whose closed-form errors are looked at


class Interval(NamedTuple):
    """A value between two bounds that hold 95 % of the time."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Problem:
    """Queries ``(L, d)``, keys ``(S, d)``, perhaps values ``(S, d_v)``, and what is asked of an estimate."""

    queries: Tensor
    keys: Tensor
    values: Tensor | None
    objective: str

    def error(self, feature_map: FeatureMap, n_redraws: int, generator: Generator) -> Interval:
        """The error over ``n_redraws`` draws, the first of them the map's own; the map is left as it is.

        The interval is a jackknife over the draws with a t-quantile. Without randomness it has no width.
        """
        draws = [self._sample(feature_map.scaled_estimate(self.queries, self.keys))]
        random = any(True for _ in feature_map.all_projections())
        other = copy.deepcopy(feature_map) if random else feature_map
        for _ in range(n_redraws - 1 if random else 0):
            other.redraw_(generator)
            draws.append(self._sample(other.scaled_estimate(self.queries, self.keys)))
        return _jackknife(torch.stack(draws), self._statistic)

    def uniform(self) -> float:
        """The error of attention that ignores queries and keys: all weights of a row are equal."""
        log_mean = self._log_kernel.logsumexp(-1, keepdim=True) - math.log(len(self.keys))
        ones = torch.ones_like(self._log_kernel)
        sample = self._sample(Features(ones, log_mean.expand_as(ones)))
        return float(self._statistic(sample.unsqueeze(0)))

    @cached_property
    def _log_kernel(self) -> Tensor:
        return kernels.log_softmax_kernel(self.queries, self.keys)

    @cached_property
    def _exact(self) -> Tensor:
        return self._seen(self._log_kernel.softmax(-1))

    def _seen(self, weights: Tensor) -> Tensor:
        """What is looked at of attention weights: themselves, or the output."""
        return weights @ self.values if self.values is not None and self.objective == "output" else weights

    def _sample(self, estimate: Features) -> Tensor:
        """What one draw contributes: a number, or for ``kernel`` a number a pair."""
        if self.objective == "kernel":
            values, log_scale = estimate
            return (values * (log_scale - self._log_kernel).exp() - 1).square()
        return relative_errors(self._seen(weights_of(estimate)[0]), self._exact)

    def _statistic(self, draws: Tensor) -> Tensor:
        return draws.mean(0).median().sqrt() if self.objective == "kernel" else draws.mean()


def weights_of(estimate: Features) -> tuple[Tensor, Tensor]:
    """Attention weights, estimates over their sums: ``(..., L, S)``, and which sums were below the floor.

    Args:
        estimate: of the kernel, ``(..., L, S)``, at any scale.
    """
    values, log_scale = estimate
    kernel = values * (log_scale - log_scale.amax(-1, keepdim=True)).exp()
    total, floor = kernel.sum(-1, keepdim=True), FLOOR * kernel.abs().sum(-1, keepdim=True)
    return kernel / total.maximum(floor), (total < floor).squeeze(-1)


def relative_errors(estimated: Tensor, exact: Tensor) -> Tensor:
    """‖estimated − exact‖/‖exact‖ of the matrices in the last two axes."""
    return torch.linalg.matrix_norm(estimated - exact) / torch.linalg.matrix_norm(exact)


def _jackknife(draws: Tensor, statistic: Callable[[Tensor], Tensor]) -> Interval:
    value, n = float(statistic(draws)), len(draws)
    if n == 1:
        return Interval(value, value, value)
    others = torch.stack([statistic(torch.cat([draws[:k], draws[k + 1 :]])) for k in range(n)])
    deviation = float(((n - 1) / n * (others - others.mean()).square().sum()).sqrt())
    half = float(student.ppf((1 + _LEVEL) / 2, n - 1)) * deviation
    return Interval(value, max(0.0, value - half), value + half)


def predicted_error(feature_map: FeatureMap, queries: Tensor, keys: Tensor) -> float | None:
    """The median of √MSE/K over pairs by closed form, or ``None`` where no form is known.

    FAVOR# has one for independent rows only, which stands in for that of orthogonal ones. Centres that follow
    the keys would follow the few that are looked at here, so there is none for them.
    """
    if isinstance(feature_map, ClusteredHybrid) and feature_map.recenter:
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

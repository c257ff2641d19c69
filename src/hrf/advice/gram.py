"""Error of a map on held-out rows, as a kernel machine sees it: a linear model on features φ(x), queries of the map.

=============  ==================================================================================
objective      error of one draw
=============  ==================================================================================
``gram``       root of the mean squared difference between φ(x)·φ(y) and K(x, y) over pairs of rows
``ridge``      ‖ŷ − y‖/‖y − ȳ‖ of ridge regression, at the best of a few penalties per map
=============  ==================================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor

from hrf.advice.errors import Interval, interval_over_draws
from hrf.features.base import FeatureMap

__all__ = ["GramObjective", "GramProblem", "LabelledRows", "plain_features", "predicted_gram_error"]

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


def plain_features(feature_map: FeatureMap, x: Tensor) -> Tensor:
    """Return queries of the map ``(N, D)``; a row so far out that all its features are too small gets zeros."""
    values, log_scale = feature_map.scaled_queries(x)
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

"""What all models of hrf.learn share: features, streaming `fit` and `partial_fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from typing_extensions import Self

from hrf.advice.kernel_advisor import KernelName
from hrf.features.base import FeatureMap
from hrf.learn.random_features import RandomFeatures
from hrf.learn.rows import Array, Block, Rows, as_columns
from hrf.learn.storage import Saved
from hrf.learn.sums import Sums
from hrf.learn.validation import rows_of
from hrf.projections import ProjectionKind

__all__ = ["FeatureModel", "WeightedModel", "row_sums"]


class FeatureModel(Saved, BaseEstimator):
    """A linear model on random features; subclasses define `_begin` and `_add`.

    `fit` and `partial_fit` read rows block by block and keep what does not grow with their number.
    """

    def __init__(
        self,
        kernel: KernelName,
        gamma: float | str,
        feature_map: str | FeatureMap,
        n_features: int,
        projection: ProjectionKind,
        random_state: Any,
    ) -> None:
        self.kernel = kernel
        self.gamma = gamma
        self.feature_map = feature_map
        self.n_features = n_features
        self.projection = projection
        self.random_state = random_state

    # Arguments of scikit-learn's ``validate_data`` for targets.
    _target_checks: ClassVar[dict[str, Any]] = {}

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from rows ``X (N, d)`` and targets y: arrays, data frames, or Dask collections."""
        return self._learn(X, y, reset=True)

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Continue with more rows; the first call chooses γ and the map by its rows."""
        return self._learn(X, y, reset=not hasattr(self, "features_"))

    def _learn(self, x: Any, y: Any, weight: Any = None, *, reset: bool) -> Self:
        rows = self._rows(x, y, weight, reset=reset)
        if reset:
            self._begin(rows)
        self._add(rows)
        return self

    def _begin(self, rows: Rows) -> None:
        """Forget everything; choose γ and the map."""
        self.features_ = self._features().fit_rows(rows, self._numbers)

    def _add(self, rows: Rows) -> None:
        raise NotImplementedError(f"{type(self).__name__} does not define how it learns")

    def _features(self, **changes: Any) -> RandomFeatures:
        """Return the transformer with the parameters of the model, not fitted."""
        arguments = {
            "kernel": self.kernel,
            "gamma": self.gamma,
            "feature_map": self.feature_map,
            "n_components": self.n_features,
            "projection": self.projection,
            "random_state": self.random_state,
        }
        return RandomFeatures(**arguments | changes)

    def _numbers(self, y: Array) -> Array:
        """Turn targets into numbers ``(n, k)`` to choose a map by."""
        return as_columns(y).astype(np.float64)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _rows(self, x: Any, y: Any, weight: Any = None, *, reset: bool) -> Rows:
        if y is None and self.__sklearn_tags__().target_tags.required:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None; expected one target per row"
            )
        return rows_of(self, x, y, weight, width=self.n_features, reset=reset, **self._target_checks)

    def _new_rows(self, x: Any) -> Rows:
        """Check rows to predict for."""
        check_is_fitted(self, "features_")
        return rows_of(self, x, width=self.n_features, reset=False)


class WeightedModel(FeatureModel):
    """A model whose rows may have weights: a row of weight w counts as w equal rows, except where maps are chosen."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from rows ``X (N, d)``, targets y, and weights ``(N,)``: arrays, data frames, or Dask collections."""
        return self._learn(X, y, sample_weight, reset=True)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Continue with more rows; the first call chooses γ and the map by its rows."""
        return self._learn(X, y, sample_weight, reset=not hasattr(self, "features_"))


def row_sums(features: RandomFeatures, numbers: Callable[[Array], Array] | None, block: Block) -> Sums:
    """Step of `Rows`: normal equations of a block, with targets turned into numbers unless they are left out."""
    y = None if numbers is None else numbers(block.y)
    return Sums.of(block._replace(x=features.block(block.x), y=y))

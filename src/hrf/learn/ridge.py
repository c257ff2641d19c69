"""`KernelRidge`: ridge regression on features, by the normal equations."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from sklearn.base import MultiOutputMixin, RegressorMixin

from hrf.advice.kernel_advisor import KernelName
from hrf.features.base import FeatureMap
from hrf.learn.base import WeightedModel, row_sums
from hrf.learn.random_features import RandomFeatures
from hrf.learn.rows import Array, Rows
from hrf.learn.sums import Spectrum, Sums
from hrf.projections import ProjectionKind

__all__ = ["KernelRidge", "linear_step"]


class KernelRidge(MultiOutputMixin, RegressorMixin, WeightedModel):
    """Kernel ridge regression: min Σ ‖y − wᵀφ(x) − b‖² + α‖w‖², with an intercept b that is not penalised.

    Sums of D² + Dk numbers are all that is kept of the rows, so that memory does not depend on how many there are.

    Args:
        alpha: the penalty α.
        kernel: ``"rbf"`` or ``"softmax"``, as in `RandomFeatures`.
        gamma: γ or ``"scale"``, as in `RandomFeatures`.
        feature_map: ``"auto"``, a name or a map, as in `RandomFeatures`.
        n_features: the largest number D of features.
        projection: one of `hrf.projections.KINDS`.
        random_state: a seed, a ``RandomState`` or ``None``.

    Attributes:
        features_: the fitted `RandomFeatures`.
        coef_: w, ``(D,)``, or ``(D, k)`` for k targets per row.
        intercept_: b.
        sums_: the normal equations, for `partial_fit`.

    >>> import numpy as np
    >>> from hrf.learn import KernelRidge
    >>> x = np.random.default_rng(0).uniform(-3, 3, size=(1000, 1))
    >>> model = KernelRidge(alpha=1e-3, gamma=0.5, random_state=0).fit(x, np.sin(x[:, 0]))
    >>> model.score(x, np.sin(x[:, 0])) > 0.999
    True
    """

    _target_checks: ClassVar = {"multi_output": True, "y_numeric": True}

    def __init__(
        self,
        alpha: float = 1.0,
        kernel: KernelName = "rbf",
        gamma: float | str = "scale",
        feature_map: str | FeatureMap = "auto",
        n_features: int = 256,
        projection: ProjectionKind = "orthogonal",
        random_state: Any = None,
    ) -> None:
        super().__init__(kernel, gamma, feature_map, n_features, projection, random_state)
        self.alpha = alpha

    def predict(self, X: Any) -> Any:
        """Return predictions ``(N,)`` or ``(N, k)``; lazily for Dask collections."""
        rows = self._new_rows(X)
        return rows.map(partial(linear_step, self.features_, self.coef_, self.intercept_))

    def _begin(self, rows: Rows) -> None:
        if not (isinstance(self.alpha, int | float) and self.alpha >= 0):
            raise ValueError(f"alpha is {self.alpha!r}; expected a number, 0 or more")
        super()._begin(rows)
        self.sums_: Sums | None = None
        self.flat_ = rows.flat_targets

    def _add(self, rows: Rows) -> None:
        sums = rows.reduce(partial(row_sums, self.features_, self._numbers), Sums.plus)
        if self.sums_ is not None and len(sums.targets) != len(self.sums_.targets):
            raise ValueError(
                f"y has {len(sums.targets)} targets per row; expected {len(self.sums_.targets)}, as in the rows before"
            )
        self.sums_ = sums if self.sums_ is None else self.sums_.plus(sums)
        centred = self.sums_.centred()
        coef = Spectrum.of(centred.gram).solve(self.alpha, centred.cross)
        intercept = (self.sums_.targets - self.sums_.features @ coef) / self.sums_.n_rows
        self.coef_, self.intercept_ = (coef[:, 0], intercept[0]) if self.flat_ else (coef, intercept)


def linear_step(features: RandomFeatures, coef: Array, intercept: Any, x: Array) -> Array:
    """Step of `Rows`: φᵀw + b of a block, in the precision of x."""
    return (features.block(x) @ coef.astype(x.dtype) + intercept).astype(x.dtype)

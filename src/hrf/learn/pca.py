"""`KernelPCA`: principal components of features."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from hrf.advice.kernel_advisor import KernelName
from hrf.checks import check_count
from hrf.features.base import FeatureMap
from hrf.learn.base import FeatureModel, row_sums
from hrf.learn.ridge import linear_step
from hrf.learn.rows import Rows
from hrf.learn.sums import Spectrum, Sums
from hrf.projections import ProjectionKind

__all__ = ["KernelPCA"]


class KernelPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, FeatureModel):
    """Kernel principal components: projections of φ(x) less its mean on the axes of largest variance.

    The projections are those of scikit-learn's ``KernelPCA``, up to signs and the error of the features; nothing of the
    size of the kernel matrix is made.

    Args:
        n_components: number of axes.
        kernel: ``"rbf"`` or ``"softmax"``, as in `RandomFeatures`.
        gamma: γ or ``"scale"``, as in `RandomFeatures`.
        feature_map: ``"auto"``, a name or a map, as in `RandomFeatures`.
        n_features: the largest number D of features.
        projection: one of `hrf.projections.KINDS`.
        random_state: a seed, a ``RandomState`` or ``None``.

    Attributes:
        features_: the fitted `RandomFeatures`.
        components_: the axes in feature space, ``(n_components, D)``, of length 1.
        eigenvalues_: sums of squares along the axes: the eigenvalues of the centred kernel matrix.
        explained_variance_ratio_: their shares of the total.

    >>> import numpy as np
    >>> from hrf.learn import KernelPCA
    >>> x = np.random.default_rng(0).normal(size=(300, 4))
    >>> KernelPCA(n_components=3, random_state=0).fit_transform(x).shape
    (300, 3)
    """

    def __init__(
        self,
        n_components: int = 2,
        kernel: KernelName = "rbf",
        gamma: float | str = "scale",
        feature_map: str | FeatureMap = "auto",
        n_features: int = 256,
        projection: ProjectionKind = "orthogonal",
        random_state: Any = None,
    ) -> None:
        super().__init__(kernel, gamma, feature_map, n_features, projection, random_state)
        self.n_components = n_components

    def transform(self, X: Any) -> Any:
        """Project rows ``X (N, d)`` on the axes: ``(N, n_components)``; lazily for Dask collections."""
        rows = self._new_rows(X)
        axes = self.components_.T
        return rows.map(partial(linear_step, self.features_, axes, -self.mean_ @ axes))

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _rows(self, x: Any, y: Any, weight: Any = None, *, reset: bool) -> Rows:
        return super()._rows(x, None, reset=reset)

    def _begin(self, rows: Rows) -> None:
        super()._begin(rows)
        width = self.features_.feature_map_.feature_dim
        if check_count("n_components", self.n_components) > width:
            raise ValueError(
                f"n_components is {self.n_components}; expected at most the number of features, {width}"
            )
        self.sums_: Sums | None = None

    def _add(self, rows: Rows) -> None:
        sums = rows.reduce(partial(row_sums, self.features_, None), Sums.plus)
        self.sums_ = sums if self.sums_ is None else self.sums_.plus(sums)
        values, vectors = Spectrum.of(self.sums_.centred().gram)
        axes = np.ascontiguousarray(vectors[:, ::-1][:, : self.n_components].T)
        # One sign for one axis, whatever LAPACK returns.
        largest = np.take_along_axis(axes, np.abs(axes).argmax(1)[:, None], 1)
        self.components_ = axes * np.where(largest < 0, -1.0, 1.0)
        self.eigenvalues_ = values[::-1][: self.n_components].copy()
        self.explained_variance_ratio_ = self.eigenvalues_ / max(float(values.sum()), np.finfo(float).tiny)
        self.mean_ = self.sums_.features / self.sums_.n_rows

"""`KernelKMeans`: k-means of features."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import ClusterMixin
from sklearn.cluster import KMeans
from typing_extensions import Self

from hrf.advice.kernel_advisor import KernelName
from hrf.checks import check_count
from hrf.features.base import FeatureMap
from hrf.learn.linear_models import WeightedModel
from hrf.learn.random_features import RandomFeatures, seed_of
from hrf.learn.rows import Array, Block, Rows
from hrf.projections import ProjectionKind

__all__ = ["KernelKMeans"]

_SAMPLED = 4096  # rows that the first centres are found on
_STARTS = 4


class KernelKMeans(ClusterMixin, WeightedModel):
    """Kernel k-means: clusters of rows whose features are near each other.

    The first centres are those of k-means on a sample of rows. `fit` then passes over all rows until no centre moves;
    `partial_fit` moves each centre to the mean of all rows that were ever assigned to it.

    Args:
        n_clusters: number k of clusters.
        max_iter: most passes over the rows.
        tol: `fit` stops when the centres move by less than this share of the features' spread, as squares.
        kernel: ``"rbf"`` or ``"softmax"``, as in `RandomFeatures`.
        gamma: γ or ``"scale"``, as in `RandomFeatures`.
        feature_map: a name, ``"auto"`` or a map, as in `RandomFeatures`.
        n_features: the largest number D of features, or ``"auto"``, as in `RandomFeatures`.
        projection: one of `hrf.projections.KINDS`.
        random_state: a seed, a ``RandomState`` or ``None``.

    Attributes:
        features_: the fitted `RandomFeatures`.
        cluster_centers_: centres in feature space, ``(k, D)``.
        labels_: the cluster of every row of the last `fit`, ``(N,)``; a lazy array for Dask collections.
        inertia_: sum of squared distances of features to their centres.
        n_iter_: number of passes.

    >>> import numpy as np
    >>> from hrf.learn import KernelKMeans
    >>> x = np.random.default_rng(0).normal(size=(300, 2)) + np.repeat([[0, 0], [9, 0], [0, 9]], 100, axis=0)
    >>> np.bincount(KernelKMeans(n_clusters=3, random_state=0).fit_predict(x)).tolist()
    [100, 100, 100]
    """

    def __init__(
        self,
        n_clusters: int = 8,
        max_iter: int = 100,
        tol: float = 1e-4,
        kernel: KernelName = "rbf",
        gamma: float | str = "scale",
        feature_map: str | FeatureMap = "trigonometric",
        n_features: int | str = 256,
        projection: ProjectionKind = "orthogonal",
        random_state: Any = None,
    ) -> None:
        super().__init__(kernel, gamma, feature_map, n_features, projection, random_state)
        self.n_clusters = n_clusters
        self.max_iter = max_iter
        self.tol = tol

    cluster_centers_: Array

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Find clusters of rows ``X (N, d)`` with weights ``(N,)``; y is ignored."""
        rows = self._rows(X, None, sample_weight, reset=True)
        self._begin(rows)
        rows.width = self.features_.width
        for passes in range(check_count("max_iter", self.max_iter)):
            self.n_iter_, found = passes + 1, self._pass(rows)
            self.counts_, self.inertia_ = found.counts, float(found.inertia)
            centres = found.means(self.cluster_centers_)
            moved = float(np.square(centres - self.cluster_centers_).sum())
            self.cluster_centers_ = centres
            if moved <= self.tol * self.inertia_ / max(float(found.counts.sum()), 1.0):
                break
        self.labels_ = self._labels(rows)
        return self

    def predict(self, X: Any) -> Any:
        """Return the cluster of every row, ``(N,)``; lazily for Dask collections."""
        return self._labels(self._new_rows(X))

    def _rows(self, x: Any, y: Any, weight: Any = None, *, reset: bool) -> Rows:
        return super()._rows(x, None, weight, reset=reset)

    def _begin(self, rows: Rows) -> None:
        super()._begin(rows)
        seed = seed_of(self.random_state)
        sample = rows.sample(_SAMPLED, seed)
        order = np.lexsort(
            sample.x.T
        )  # one order of rows, so that equal rows and weighted rows have equal starts
        features = self.features_.block(sample.x[order]).astype(np.float64)
        weight = None if sample.weight is None else sample.weight[order]
        start = KMeans(check_count("n_clusters", self.n_clusters), n_init=_STARTS, random_state=seed)
        self.cluster_centers_ = start.fit(features, sample_weight=weight).cluster_centers_
        self.counts_ = np.zeros(self.n_clusters)

    def _add(self, rows: Rows) -> None:
        found = self._pass(rows)
        before = self.counts_[:, None] * self.cluster_centers_
        self.counts_ = self.counts_ + found.counts
        self.inertia_ = float(found.inertia)
        self.cluster_centers_ = _Clusters(self.counts_, found.sums + before, found.inertia).means(
            self.cluster_centers_
        )

    def _pass(self, rows: Rows) -> _Clusters:
        return rows.reduce(partial(_cluster_sums, self.features_, self.cluster_centers_), _Clusters.plus)

    def _labels(self, rows: Rows) -> Any:
        return rows.map(partial(_nearest, self.features_, self.cluster_centers_))


class _Clusters(NamedTuple):
    """Rows per cluster ``(k,)``, sums of their features ``(k, D)``, and the sum of squared distances."""

    counts: Array
    sums: Array
    inertia: Array

    def plus(self, other: _Clusters) -> _Clusters:
        return _Clusters(*(a + b for a, b in zip(self, other, strict=True)))

    def means(self, empty: Array) -> Array:
        """Return the centres; a cluster without rows keeps its own from ``empty``."""
        return np.where(
            self.counts[:, None] > 0, self.sums / np.where(self.counts > 0, self.counts, 1)[:, None], empty
        )


def _distances(features: Array, centres: Array) -> Array:
    """Return ‖φ − c‖² − ‖φ‖² of all pairs, ``(n, k)``."""
    return np.square(centres).sum(-1) - 2 * features @ centres.T


def _nearest(features: RandomFeatures, centres: Array, x: Array) -> Array:
    """Step of `Rows`: the nearest centre of every row."""
    return _distances(features.block(x), centres).argmin(-1).astype(np.int32)


def _cluster_sums(features: RandomFeatures, centres: Array, block: Block) -> _Clusters:
    """Step of `Rows`: sums by nearest centre."""
    f = features.block(block.x).astype(np.float64, copy=False)
    distances = _distances(f, centres)
    member = block.weighted(
        np.equal(distances.argmin(-1)[:, None], np.arange(len(centres))).astype(np.float64)
    )
    inertia = block.weighted((distances.min(-1) + np.square(f).sum(-1)).clip(min=0)).sum()
    return _Clusters(member.sum(0), member.T @ f, np.array(inertia))

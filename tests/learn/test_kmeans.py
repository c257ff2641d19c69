"""KernelKMeans: clusters of features."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from hrf.learn import KernelKMeans
from learn.models import ROWS, rows

X = rows()
TRUE = np.arange(ROWS) % 3
GIVEN = {"n_clusters": 3, "gamma": 0.3, "feature_map": "trigonometric", "n_features": 64, "random_state": 0}


def test_it_is_k_means_of_features():
    model = KernelKMeans(tol=0, **GIVEN).fit(X)
    exact = KMeans(3, n_init=4, random_state=0, tol=0).fit(model.features_.transform(X))
    assert adjusted_rand_score(model.labels_, exact.labels_) == 1
    assert model.inertia_ == pytest.approx(exact.inertia_, rel=1e-9)
    assert adjusted_rand_score(model.labels_, TRUE) == 1
    assert np.array_equal(model.predict(X), model.labels_)


def test_passes_go_on_until_no_centre_moves():
    """From a sample of one cluster's rows, the first centres are far from the best."""
    model = KernelKMeans(tol=0, **GIVEN).fit(X)
    f = model.features_.transform(X)
    for k in range(3):
        np.testing.assert_allclose(model.cluster_centers_[k], f[model.labels_ == k].mean(0), atol=1e-12)
    assert KernelKMeans(max_iter=1, **GIVEN).fit(X).n_iter_ == 1


def test_partial_fit_keeps_the_means_of_all_rows():
    model = KernelKMeans(**GIVEN)
    for part in np.array_split(np.arange(ROWS), 4):
        model.partial_fit(X[part])
    assert model.counts_.sum() == ROWS
    labels = model.predict(X)
    assert adjusted_rand_score(labels, TRUE) == 1
    f = model.features_.transform(X)
    for k in range(3):
        np.testing.assert_allclose(model.cluster_centers_[k], f[labels == k].mean(0), atol=1e-12)


def test_an_empty_cluster_keeps_its_centre():
    model = KernelKMeans(**GIVEN).partial_fit(X)
    before = model.cluster_centers_.copy()
    one = X[TRUE == 0][::2]
    model.partial_fit(one)
    moved = np.abs(model.cluster_centers_ - before).max(1) > 0
    assert moved.sum() == 1
    assert np.isfinite(model.cluster_centers_).all()


def test_more_clusters_than_rows():
    with pytest.raises(ValueError, match="n_samples=5 should be >= n_clusters=8"):
        KernelKMeans().fit(X[:5])

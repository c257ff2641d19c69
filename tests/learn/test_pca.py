"""KernelPCA: principal components of the kernel matrix that the features make."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import KernelPCA as ExactPCA

from hrf.learn import KernelPCA
from learn.models import rows

X = rows()
GIVEN = {"gamma": 0.3, "feature_map": "trigonometric", "random_state": 0}


def test_it_is_scikit_learns_on_the_kernel_of_the_features():
    model = KernelPCA(n_components=3, n_features=64, **GIVEN).fit(X)
    f = model.features_.transform(X)
    exact = ExactPCA(n_components=3, kernel="precomputed").fit(f @ f.T)
    expected, found = exact.transform(f @ f.T), model.transform(X)
    signs = np.sign((expected * found).sum(0))
    np.testing.assert_allclose(found, signs * expected, atol=1e-8)
    np.testing.assert_allclose(model.eigenvalues_, exact.eigenvalues_, rtol=1e-9)
    centred = f - f.mean(0)
    shares = model.eigenvalues_ / np.square(centred).sum()
    np.testing.assert_allclose(model.explained_variance_ratio_, shares, rtol=1e-9)


def test_many_features_approach_the_exact_kernel():
    exact = ExactPCA(n_components=2, kernel="rbf", gamma=0.3).fit_transform(X)
    found = KernelPCA(n_components=2, n_features=1024, **GIVEN).fit_transform(X)
    # The first two axes span a plane that is known; axes within it are nearly degenerate for three equal clusters.
    rotation = np.linalg.lstsq(found, exact, rcond=None)[0]
    assert np.abs(found @ rotation - exact).max() < 0.1 * np.abs(exact).max()


def test_axes_have_length_one_and_names():
    model = KernelPCA(n_components=3, n_features=32, **GIVEN).fit(X)
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(3), atol=1e-10)
    assert model.get_feature_names_out().tolist() == ["kernelpca0", "kernelpca1", "kernelpca2"]


def test_no_more_axes_than_features():
    with pytest.raises(ValueError, match="n_components is 33; expected at most the number of features, 32"):
        KernelPCA(n_components=33, n_features=32, **GIVEN).fit(X)

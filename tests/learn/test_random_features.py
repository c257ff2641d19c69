"""RandomFeatures: which kernel, which map, how large an error."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import rbf_kernel

import hrf
from hrf.advice.kernel_advisor import ADVISED, NAMES
from hrf.learn import RandomFeatures
from hrf.learn.random_features import combined_moments, moments, targets_of_any_kind
from hrf.learn.rows import Block
from learn.models import COLUMNS, rows

X = rows()


@pytest.mark.parametrize("name", NAMES)
def test_every_map_by_name(name):
    features = RandomFeatures(feature_map=name, n_components=48, random_state=0).fit(X)
    assert features.map_name_ == name
    assert 40 <= features.transform(X).shape[1] <= 48
    assert features.get_feature_names_out()[0] == "randomfeatures0"
    assert features.set_output(transform="pandas").transform(X).shape == features.transform(X).shape


@pytest.mark.stat
@pytest.mark.parametrize("name", ADVISED)
def test_products_estimate_the_kernel(name):
    """The mean over draws is the kernel, to five standard errors."""
    x, draws = X[:12] / 3, 60
    exact = rbf_kernel(x, gamma=0.7)
    estimates = np.stack(
        [
            f @ f.T
            for f in (
                RandomFeatures(gamma=0.7, feature_map=name, n_components=64, random_state=seed).fit_transform(
                    x
                )
                for seed in range(draws)
            )
        ]
    )
    errors = estimates.std(0, ddof=1) / np.sqrt(draws)
    assert (np.abs(estimates.mean(0) - exact) <= 5 * errors + 1e-6).all()  # ω is rounded to float32


def test_the_softmax_kernel():
    features = RandomFeatures("softmax", gamma=0.1, feature_map="positive", n_components=4000, random_state=0)
    f = features.fit_transform(X)
    exact = np.exp(0.1 * X @ X.T)
    assert np.median(np.abs(f @ f.T / exact - 1)) < 0.2
    assert features.feature_map_.kernel == "softmax"


def test_gamma_scale_is_that_of_scikit_learn():
    assert RandomFeatures(feature_map="positive").fit(X).gamma_ == pytest.approx(
        1 / (COLUMNS * X.var()), rel=1e-12
    )
    assert RandomFeatures(feature_map="positive").fit(np.ones((9, 2))).gamma_ == 1.0


def test_moments_of_parts_make_the_moments_of_all():
    parts = [moments(Block(part)) for part in np.array_split(X + 1e4, 7)]
    total = parts[0]
    for part in parts[1:]:
        total = combined_moments(total, part)
    n, mean, squares = total
    assert (n, mean, squares / n) == pytest.approx((X.size, X.mean() + 1e4, X.var()), rel=1e-9)
    assert combined_moments((0, 0.0, 0.0), (0, 0.0, 0.0)) == (0, 0.0, 0.0)


@pytest.mark.stat
def test_the_error_is_that_of_the_closed_form_or_measured():
    """Over draws, the mean squared error of pairs is the square of `error_`, which no draw changes."""
    pairs = np.random.default_rng(0).normal(size=(128, COLUMNS))
    exact = rbf_kernel(pairs[:64], pairs[64:], gamma=0.5)
    squares = []
    for seed in range(60):
        features = RandomFeatures(
            gamma=0.5, feature_map="trigonometric", n_components=32, random_state=seed
        ).fit(pairs)
        f = features.transform(pairs)
        squares.append(np.square(f[:64] @ f[64:].T - exact).mean())
    deviation = np.std(squares, ddof=1) / np.sqrt(len(squares))
    assert abs(np.mean(squares) - features.error_**2) <= 5 * deviation
    phi = hrf.GaussianKernel(
        hrf.ClusteredHybrid.fit(*torch.from_numpy(pairs).chunk(2), n_clusters=(2, 2), n_projections=4, seed=0)
    )
    measured = RandomFeatures(gamma=0.5, feature_map=phi, random_state=0).fit(pairs)
    f = measured.transform(pairs)
    assert measured.error_ == pytest.approx(np.sqrt(np.square(f[:64] @ f[64:].T - exact).mean()), rel=1e-5)


def test_auto_takes_the_map_with_the_least_error():
    auto = RandomFeatures(gamma=0.3, feature_map="auto", n_components=32, random_state=0).fit(X)
    errors = {
        name: RandomFeatures(gamma=0.3, feature_map=name, n_components=32, random_state=0).fit(X).error_
        for name in ADVISED
    }
    assert errors[auto.map_name_] <= 1.5 * min(errors.values())
    assert max(errors.values()) > 2 * errors[auto.map_name_]


def test_auto_asks_the_targets():
    """Positive features do better on targets that live where the density is low."""
    advised = (
        RandomFeatures(feature_map="auto", random_state=0, n_components=32)
        .fit(X, np.sin(X[:, 0]))
        .feature_map_
    )
    by_advice = hrf.advise_kernel(
        X,
        np.sin(X[:, 0]),
        gamma=1 / (COLUMNS * X.var()),
        budget=32,
        seed=int(np.random.RandomState(0).randint(2**31 - 1)),
    ).best
    x = torch.tensor(X)
    assert torch.equal(advised.queries(x), by_advice.queries(x))


def test_few_rows_get_trigonometric_features():
    assert RandomFeatures().fit(X[:3]).map_name_ == "trigonometric"
    assert np.isnan(RandomFeatures().fit(X[:1]).error_)


def test_a_map_of_ones_own():
    given = hrf.Trigonometric(COLUMNS, n_projections=5, seed=3)
    features = RandomFeatures(gamma=0.5, feature_map=given).fit(X)
    assert features.map_name_ == "Trigonometric"
    expected = hrf.GaussianKernel(given).queries(torch.tensor(X)).numpy()
    np.testing.assert_allclose(features.transform(X), expected, rtol=1e-6, atol=1e-12)
    same = RandomFeatures(gamma=0.5, feature_map=hrf.GaussianKernel(given)).fit(X)
    assert np.array_equal(same.transform(X), features.transform(X))
    with pytest.raises(
        ValueError, match="estimates the Gaussian kernel; expected one for the softmax kernel"
    ):
        RandomFeatures("softmax", feature_map=hrf.GaussianKernel(given)).fit(X)


def test_a_row_far_out_gets_zeros_and_not_an_error():
    features = RandomFeatures(gamma=1.0, feature_map="positive", random_state=0).fit(X)
    assert not features.transform(np.full((1, COLUMNS), 100.0)).any()


def test_features_that_overflow_are_named():
    features = RandomFeatures("softmax", gamma=1.0, feature_map="trigonometric", random_state=0).fit(X)
    with pytest.raises(OverflowError, match=r"features reach exp\(\d+\), which torch.float64 cannot hold"):
        features.transform(np.full((1, COLUMNS), 100.0))


def test_targets_of_any_kind():
    assert targets_of_any_kind(np.array(["b", "a", "b"])).tolist() == [[0, 1], [1, 0], [0, 1]]
    assert targets_of_any_kind(np.array([0.5, 1.5])).tolist() == [[0.5], [1.5]]
    assert targets_of_any_kind(np.arange(200)).shape == (200, 1)
    assert targets_of_any_kind(np.arange(6).reshape(3, 2)).shape == (3, 2)

"""Kernel machines against exact methods and textbook formulas: ridge, components, processes, classifiers, k-means."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.cluster import KMeans
from sklearn.decomposition import KernelPCA as ExactPCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge as ExactRidge
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score
from sklearn.svm import LinearSVC

from hrf.learn import (
    KernelClassifier,
    KernelGaussianProcess,
    KernelKMeans,
    KernelPCA,
    KernelRidge,
    classifier,
)
from hrf.learn.classifier import LOSSES
from learn.models import FIXED, ROWS, rows, targets

X = rows()

Y = targets("ridge", X)


def test_it_solves_the_penalised_problem():
    """The gradient of Σ ‖y − wᵀφ − b‖² + α‖w‖² is 0 at the solution, to rounding."""
    model = KernelRidge(alpha=0.1, n_features=64, **FIXED).fit(X, Y)
    f = model.features_.transform(X)
    residual = Y - f @ model.coef_ - model.intercept_
    scale = np.abs(f).sum(0).max() * np.abs(Y).max()
    assert np.abs(f.T @ residual - 0.1 * model.coef_).max() < 1e-10 * scale
    assert abs(residual.sum()) < 1e-10 * scale
    np.testing.assert_allclose(model.predict(X), f @ model.coef_ + model.intercept_, rtol=1e-12)


def test_many_features_approach_the_exact_method():
    y = Y - Y.mean()
    exact = ExactRidge(alpha=1.0, kernel="rbf", gamma=0.3).fit(X, y).predict(X)
    few, many = (KernelRidge(n_features=n, **FIXED).fit(X, y).predict(X) for n in (32, 512))
    assert np.sqrt(np.mean((many - exact) ** 2)) < 0.03 < np.sqrt(np.mean((few - exact) ** 2))


def test_targets_in_columns_are_solved_one_by_one():
    two = np.stack([Y, Y**2], 1)
    both = KernelRidge(**GIVEN).fit(X, two).predict(X)
    for k in range(2):
        np.testing.assert_allclose(both[:, k], KernelRidge(**GIVEN).fit(X, two[:, k]).predict(X), rtol=1e-8)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (KernelRidge(alpha=-1.0), "alpha is -1.0; expected a number, 0 or more, or 'auto'"),
        (KernelRidge(alpha="big"), "alpha is 'big'; expected a number, 0 or more"),
        (KernelPCA(n_components=33, n_features=32), "33; expected at most the number of features, 32"),
        (KernelGaussianProcess(noise=0), "noise is 0; expected a positive variance or 'evidence'"),
        (KernelKMeans(n_clusters=401), "n_samples=400 should be >= n_clusters=401"),
        (KernelClassifier(alpha=0.0), "alpha is 0.0; expected"),
        (KernelClassifier(max_iter=0), "max_iter is 0; expected"),
        (KernelClassifier(loss="hinge"), "loss is 'hinge'; expected one of logistic, squared_hinge"),
    ],
)
def test_numbers_out_of_range_are_named(model, said):
    with pytest.raises(ValueError, match=said):
        model.fit(X, TWO if isinstance(model, KernelClassifier) else Y)


def test_no_penalty_is_least_squares():
    model = KernelRidge(alpha=0, n_features=16, **FIXED).fit(X, Y)
    f = np.hstack([model.features_.transform(X), np.ones((len(X), 1))])
    expected = f @ np.linalg.lstsq(f, Y, rcond=None)[0]
    np.testing.assert_allclose(model.predict(X), expected, atol=1e-8)


def test_the_number_of_targets_stays_the_same():
    y = np.stack([Y, Y**2, Y**3], 1)
    model = KernelRidge(**GIVEN).partial_fit(X, y[:, :2])
    for n in (1, 3):
        with pytest.raises(ValueError, match=f"y has {n} targets per row; expected 2, as in the rows before"):
            model.partial_fit(X, y[:, :n])
    assert len(model.sums_.targets) == 2


# Principal components.


def test_it_is_scikit_learns_on_the_kernel_of_the_features():
    model = KernelPCA(n_components=3, n_features=64, **FIXED).fit(X)
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
    found = KernelPCA(n_components=2, n_features=1024, **FIXED).fit_transform(X)
    # The first two axes span a plane that is known; axes within it are nearly degenerate for three equal clusters.
    rotation = np.linalg.lstsq(found, exact, rcond=None)[0]
    assert np.abs(found @ rotation - exact).max() < 0.1 * np.abs(exact).max()


# Gaussian processes.


GIVEN = {"gamma": 0.3, "feature_map": "trigonometric", "n_features": 32, "random_state": 0}

FEW = rows(90)

FEW_TARGETS = targets("process", FEW)


def covariance(model, x):
    """Of f, as the features have it."""
    f = model.features_.transform(x)
    return model.amplitude_ * f @ f.T


@pytest.mark.parametrize("n", [20, 90])
def test_the_evidence_is_the_density_of_the_targets(n):
    """With fewer rows than features, and with more."""
    model = KernelGaussianProcess(**GIVEN).fit(FEW[:n], FEW_TARGETS[:n])
    total = covariance(model, FEW[:n]) + model.noise_ * np.eye(n)
    density = multivariate_normal(np.full(n, FEW_TARGETS[:n].mean()), total).logpdf(FEW_TARGETS[:n])
    assert model.log_evidence_ == pytest.approx(density, rel=1e-7)


def test_noise_and_amplitude_have_the_most_evidence():
    model = KernelGaussianProcess(**GIVEN).fit(FEW, FEW_TARGETS)
    f = model.features_.transform(FEW)

    def density(noise, amplitude):
        total = amplitude * f @ f.T + noise * np.eye(len(FEW))
        return multivariate_normal(np.full(len(FEW), FEW_TARGETS.mean()), total).logpdf(FEW_TARGETS)

    best = density(model.noise_, model.amplitude_)
    for factor in (0.95, 1.05):
        assert density(factor * model.noise_, model.amplitude_) < best
        assert density(model.noise_, factor * model.amplitude_) < best


def test_mean_and_deviation_are_those_of_the_conditional():
    model = KernelGaussianProcess(**GIVEN).fit(FEW, FEW_TARGETS)
    new = rows(15, seed=5)
    both = covariance(model, np.vstack([FEW, new]))
    k, cross, own = both[: len(FEW), : len(FEW)], both[len(FEW) :, : len(FEW)], both[len(FEW) :, len(FEW) :]
    inverse = np.linalg.inv(k + model.noise_ * np.eye(len(FEW)))
    mean, deviation = model.predict(new, return_std=True)
    np.testing.assert_allclose(
        mean, FEW_TARGETS.mean() + cross @ inverse @ (FEW_TARGETS - FEW_TARGETS.mean()), rtol=1e-6
    )
    variance = np.diag(own - cross @ inverse @ cross.T) + model.noise_
    np.testing.assert_allclose(deviation, np.sqrt(variance), rtol=1e-6)
    np.testing.assert_allclose(model.predict(new), mean)


def test_gamma_by_evidence_is_the_best_of_those_tried():
    model = KernelGaussianProcess(**GIVEN | {"gamma": "evidence"}).fit(FEW, FEW_TARGETS)
    assert len(model.log_evidences_) == 9
    assert model.log_evidence_ == model.log_evidences_.max()
    gammas = [features.gamma_ for features in model.candidates_]
    assert model.features_.gamma_ == gammas[int(model.log_evidences_.argmax())]
    alone = KernelGaussianProcess(**GIVEN | {"gamma": gammas[2]}).fit(FEW, FEW_TARGETS)
    assert alone.log_evidence_ == pytest.approx(model.log_evidences_[2], rel=1e-9)


@pytest.mark.stat
def test_the_band_holds_as_many_targets_as_it_says():
    generator = np.random.default_rng(0)
    x = generator.uniform(-3, 3, size=(4000, 1))
    y = np.sin(2 * x[:, 0]) + 0.3 * generator.normal(size=4000)
    model = KernelGaussianProcess(n_features=64, random_state=0).fit(x[:1000], y[:1000])
    assert model.noise_ == pytest.approx(0.09, rel=5 * math.sqrt(2 / 1000))
    mean, deviation = model.predict(x[1000:], return_std=True)
    inside = (np.abs(y[1000:] - mean) < 1.96 * deviation).mean()
    assert abs(inside - 0.95) < 5 * math.sqrt(0.95 * 0.05 / 3000) + 0.02  # the noise is estimated


def test_a_given_noise_is_kept():
    model = KernelGaussianProcess(noise=0.04, **GIVEN).fit(FEW, FEW_TARGETS)
    assert model.noise_ == pytest.approx(0.04, rel=1e-12)


def test_constant_targets_have_no_noise():
    mean, deviation = KernelGaussianProcess(**GIVEN).fit(FEW, np.ones(len(FEW))).predict(FEW, return_std=True)
    np.testing.assert_allclose(mean, 1)
    assert deviation.max() < 1e-6


@pytest.mark.parametrize(("factor", "said"), [(1e150, "is 4e"), (1e200, "overflows"), (1e-80, "is 4e")])
def test_targets_whose_squares_are_no_numbers_are_refused(factor, said):
    with pytest.raises(
        ValueError, match=rf"root mean square of the targets {said}.*; expected between 1e-60"
    ):
        KernelGaussianProcess(**GIVEN).fit(FEW, factor * FEW_TARGETS)


@pytest.mark.parametrize("factor", [2.0**-180, 2.0**320])
def test_targets_of_any_size_have_deviations_of_their_size(factor):
    expected = KernelGaussianProcess(**GIVEN).fit(FEW, FEW_TARGETS).predict(FEW, return_std=True)
    found = KernelGaussianProcess(**GIVEN).fit(FEW, factor * FEW_TARGETS).predict(FEW, return_std=True)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine / factor, theirs, rtol=1e-6)


def test_features_that_underflow_leave_the_mean_of_the_targets():
    """Positive features of long rows are about exp(−γ‖x‖²), here below 1e-400 for all γ that are tried."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 4)) + 1e3, rng.normal(size=50)
    model = KernelGaussianProcess(feature_map="positive", n_features=16, random_state=0).fit(x, y)
    mean, deviation = model.predict(x, return_std=True)
    assert mean == pytest.approx(np.full(50, y.mean()))
    assert deviation == pytest.approx(np.full(50, y.std()), rel=0.05)


# k-means of features.


TRUE = np.arange(ROWS) % 3

CLUSTERS = {
    "n_clusters": 3,
    "gamma": 0.3,
    "feature_map": "trigonometric",
    "n_features": 64,
    "random_state": 0,
}


def test_it_is_k_means_of_features():
    model = KernelKMeans(tol=0, **CLUSTERS).fit(X)
    exact = KMeans(3, n_init=4, random_state=0, tol=0).fit(model.features_.transform(X))
    assert adjusted_rand_score(model.labels_, exact.labels_) == 1
    assert model.inertia_ == pytest.approx(exact.inertia_, rel=1e-9)
    assert adjusted_rand_score(model.labels_, TRUE) == 1
    assert np.array_equal(model.predict(X), model.labels_)


def test_partial_fit_keeps_the_means_of_all_rows():
    model = KernelKMeans(**CLUSTERS)
    for part in np.array_split(np.arange(ROWS), 4):
        model.partial_fit(X[part])
    assert model.counts_.sum() == ROWS
    labels = model.predict(X)
    assert adjusted_rand_score(labels, TRUE) == 1
    f = model.features_.transform(X)
    for k in range(3):
        np.testing.assert_allclose(model.cluster_centers_[k], f[labels == k].mean(0), atol=1e-12)


def test_an_empty_cluster_keeps_its_centre():
    model = KernelKMeans(**CLUSTERS).partial_fit(X)
    before = model.cluster_centers_.copy()
    one = X[TRUE == 0][::2]
    model.partial_fit(one)
    moved = np.abs(model.cluster_centers_ - before).max(1) > 0
    assert moved.sum() == 1
    assert np.isfinite(model.cluster_centers_).all()


# Classifiers.


TWO = np.where(X[:, 0] + 0.3 * X[:, 1] > 1.2, "yes", "no")

THREE = np.digitize(X[:, 0] - X[:, 1], [-1.0, 1.0])


@pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
def test_logistic_weights_are_scikit_learns(y):
    model = KernelClassifier(alpha=0.5, tol=1e-7, **GIVEN).fit(X, y)
    f, k = model.features_.transform(X), len(np.unique(y))
    exact = LogisticRegression(C=2.0, tol=1e-10, max_iter=10_000).fit(f, y)
    np.testing.assert_allclose(model.predict_proba(X), exact.predict_proba(f), atol=1e-4)
    assert np.array_equal(model.classes_[model.predict_proba(X).argmax(1)], model.predict(X))
    assert model.decision_function(X).shape == ((ROWS,) if k == 2 else (ROWS, k))


def test_squared_hinge_weights_are_scikit_learns():
    """Its intercept is penalised, by little if the column that stands for it is long; C is 1/α."""
    model = KernelClassifier(loss="squared_hinge", alpha=1.0, tol=1e-7, **GIVEN).fit(X, TWO)
    f = model.features_.transform(X)
    svc = LinearSVC(C=1.0, tol=1e-8, intercept_scaling=1e2, max_iter=200_000, dual=False)
    exact = svc.fit(f, TWO).decision_function(f)
    np.testing.assert_allclose(model.decision_function(X), exact, atol=2e-2)
    assert not hasattr(model, "predict_proba")


both_losses = pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])

ORDERS = {"by class": np.argsort(TWO, kind="stable"), "by a column": np.argsort(X[:, 1])}


def in_parts(order, y=TWO, n_parts=4, **given):
    model = KernelClassifier(**GIVEN | given)
    for part in np.array_split(order, n_parts):
        model.partial_fit(X[part], y[part], classes=np.unique(y))
    return model


@both_losses
def test_a_sample_of_rows_comes_close_to_all_rows(loss, monkeypatch):
    monkeypatch.setattr(classifier, "_KEPT", 120)
    whole = KernelClassifier(loss=loss, **GIVEN).fit(X, THREE)
    for order in (np.argsort(THREE, kind="stable"), ORDERS["by a column"]):
        model = in_parts(order, THREE, loss=loss)
        assert len(model.kept_[0]) <= 120
        assert (model.predict(X) == whole.predict(X)).mean() > 0.95


def test_rows_that_are_left_out_leave_the_minimum_where_it_was(monkeypatch):
    """A part without information, of weight 0 but for one row, does not move the weights by more than that row."""
    monkeypatch.setattr(classifier, "_KEPT", 120)
    model = KernelClassifier(tol=1e-7, **GIVEN).fit(X, TWO)
    before = model.decision_function(X)
    model.partial_fit(X, TWO, sample_weight=np.append(1e-9, np.zeros(ROWS - 1)))
    np.testing.assert_allclose(model.decision_function(X), before, atol=1e-4)


def test_a_rare_class_is_kept(monkeypatch):
    monkeypatch.setattr(classifier, "_KEPT", 40)
    rare = np.where(np.arange(ROWS) == 7, "rare", "common")
    model = in_parts(np.arange(ROWS), rare)
    assert np.bincount(model.kept_[1]).tolist() == [20, 1]
    assert model.kept_[4].tolist() == [ROWS - 1, 1]


def test_classes_are_told_beforehand():
    with pytest.raises(ValueError, match="first call of partial_fit has no classes"):
        KernelClassifier().partial_fit(X, TWO)
    model = KernelClassifier(**GIVEN).fit(X, TWO)
    with pytest.raises(ValueError, match=r"y has the class .*maybe.*; expected one of .*no.*, .*yes"):
        model.partial_fit(X[:3], ["yes", "maybe", "no"])
    with pytest.raises(ValueError, match=r"the targets have 1 class, .*yes.*; expected 2 or more classes"):
        KernelClassifier().fit(X, np.full(ROWS, "yes"))
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        KernelClassifier().fit(X, X[:, 0])


def test_classes_stay_the_same():
    model = KernelClassifier(**GIVEN).partial_fit(X, TWO, classes=["no", "yes"])
    model.partial_fit(X, TWO, classes=["yes", "no"])
    with pytest.raises(ValueError, match=r"classes=\['no', 'maybe'\] is not the same as on last call"):
        model.partial_fit(X, TWO, classes=["no", "maybe"])


def test_too_few_steps_are_said():
    with pytest.warns(ConvergenceWarning, match=r"Newton's method stopped after 1 steps \(max_iter\)"):
        KernelClassifier(max_iter=1, alpha=1e-6, **GIVEN).fit(X, TWO)


GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("k", [1, 4])
def test_slopes_are_derivatives(name, k):
    loss = LOSSES[name]
    scores, codes = GENERATOR.normal(size=(6, k)), GENERATOR.integers(max(k, 2), size=6)
    slope, step = loss.slope(scores, codes), 1e-6
    curvature = np.zeros_like(scores)
    for place in np.ndindex(scores.shape):
        up, down = scores.copy(), scores.copy()
        up[place] += step
        down[place] -= step
        rise = (loss.value(up, codes) - loss.value(down, codes)).sum()
        assert rise / (2 * step) == pytest.approx(slope[place], abs=1e-7)
        curvature[place] = (loss.slope(up, codes) - loss.slope(down, codes))[place] / (2 * step)
    assert curvature.max() <= loss.bound + 1e-7

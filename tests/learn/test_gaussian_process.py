"""KernelGaussianProcess: evidence, mean and deviation against the textbook formulas on the kernel matrix."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from hrf.learn import KernelGaussianProcess
from learn.models import rows, targets

GIVEN = {"gamma": 0.3, "feature_map": "trigonometric", "n_features": 32, "random_state": 0}
X = rows(90)
Y = targets("process", X)


def covariance(model, x):
    """Of f, as the features have it."""
    f = model.features_.transform(x)
    return model.amplitude_ * f @ f.T


@pytest.mark.parametrize("n", [20, 90])
def test_the_evidence_is_the_density_of_the_targets(n):
    """With fewer rows than features, and with more."""
    model = KernelGaussianProcess(**GIVEN).fit(X[:n], Y[:n])
    total = covariance(model, X[:n]) + model.noise_ * np.eye(n)
    density = multivariate_normal(np.full(n, Y[:n].mean()), total).logpdf(Y[:n])
    assert model.log_evidence_ == pytest.approx(density, rel=1e-7)


def test_noise_and_amplitude_have_the_most_evidence():
    model = KernelGaussianProcess(**GIVEN).fit(X, Y)
    f = model.features_.transform(X)

    def density(noise, amplitude):
        total = amplitude * f @ f.T + noise * np.eye(len(X))
        return multivariate_normal(np.full(len(X), Y.mean()), total).logpdf(Y)

    best = density(model.noise_, model.amplitude_)
    for factor in (0.95, 1.05):
        assert density(factor * model.noise_, model.amplitude_) < best
        assert density(model.noise_, factor * model.amplitude_) < best


def test_mean_and_deviation_are_those_of_the_conditional():
    model = KernelGaussianProcess(**GIVEN).fit(X, Y)
    new = rows(15, seed=5)
    both = covariance(model, np.vstack([X, new]))
    k, cross, own = both[: len(X), : len(X)], both[len(X) :, : len(X)], both[len(X) :, len(X) :]
    inverse = np.linalg.inv(k + model.noise_ * np.eye(len(X)))
    mean, deviation = model.predict(new, return_std=True)
    np.testing.assert_allclose(mean, Y.mean() + cross @ inverse @ (Y - Y.mean()), rtol=1e-6)
    variance = np.diag(own - cross @ inverse @ cross.T) + model.noise_
    np.testing.assert_allclose(deviation, np.sqrt(variance), rtol=1e-6)
    np.testing.assert_allclose(model.predict(new), mean)


def test_gamma_by_evidence_is_the_best_of_those_tried():
    model = KernelGaussianProcess(**GIVEN | {"gamma": "evidence"}).fit(X, Y)
    assert len(model.log_evidences_) == 9
    assert model.log_evidence_ == model.log_evidences_.max()
    gammas = [features.gamma_ for features in model.candidates_]
    assert model.features_.gamma_ == gammas[int(model.log_evidences_.argmax())]
    alone = KernelGaussianProcess(**GIVEN | {"gamma": gammas[2]}).fit(X, Y)
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
    model = KernelGaussianProcess(noise=0.04, **GIVEN).fit(X, Y)
    assert model.noise_ == pytest.approx(0.04, rel=1e-12)
    with pytest.raises(ValueError, match="noise is 0; expected a positive variance or 'evidence'"):
        KernelGaussianProcess(noise=0).fit(X, Y)


def test_constant_targets_have_no_noise():
    mean, deviation = KernelGaussianProcess(**GIVEN).fit(X, np.ones(len(X))).predict(X, return_std=True)
    np.testing.assert_allclose(mean, 1)
    assert deviation.max() < 1e-6


@pytest.mark.parametrize(("factor", "said"), [(1e150, "is 4e"), (1e200, "overflows"), (1e-80, "is 4e")])
def test_targets_whose_squares_are_no_numbers_are_refused(factor, said):
    with pytest.raises(
        ValueError, match=rf"the root mean square of the targets {said}.*; expected between 1e-60"
    ):
        KernelGaussianProcess(**GIVEN).fit(X, factor * Y)


@pytest.mark.parametrize("factor", [2.0**-180, 2.0**320])
def test_targets_of_any_size_have_deviations_of_their_size(factor):
    expected = KernelGaussianProcess(**GIVEN).fit(X, Y).predict(X, return_std=True)
    found = KernelGaussianProcess(**GIVEN).fit(X, factor * Y).predict(X, return_std=True)
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

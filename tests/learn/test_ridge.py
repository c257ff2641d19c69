"""KernelRidge: the limit of exact kernel ridge regression, on the normal equations."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge as ExactRidge

from hrf.learn import KernelRidge
from hrf.learn.rows import Block, Spectrum, Sums
from learn.models import rows, targets

X = rows()
Y = targets("ridge", X)


def test_it_solves_the_penalised_problem():
    """The gradient of Σ ‖y − wᵀφ − b‖² + α‖w‖² is 0 at the solution, to rounding."""
    model = KernelRidge(alpha=0.1, gamma=0.3, feature_map="trigonometric", n_features=64, random_state=0).fit(
        X, Y
    )
    f = model.features_.transform(X)
    residual = Y - f @ model.coef_ - model.intercept_
    scale = np.abs(f).sum(0).max() * np.abs(Y).max()
    assert np.abs(f.T @ residual - 0.1 * model.coef_).max() < 1e-10 * scale
    assert abs(residual.sum()) < 1e-10 * scale
    np.testing.assert_allclose(model.predict(X), f @ model.coef_ + model.intercept_, rtol=1e-12)


def test_many_features_approach_the_exact_method():
    y = Y - Y.mean()
    exact = ExactRidge(alpha=1.0, kernel="rbf", gamma=0.3).fit(X, y).predict(X)
    differences = [
        np.sqrt(np.mean((KernelRidge(gamma=0.3, n_features=n, feature_map="trigonometric", random_state=0)
                         .fit(X, y).predict(X) - exact) ** 2))
        for n in (32, 512)
    ]  # fmt: skip
    assert differences[1] < 0.03 < differences[0]


def test_targets_in_columns_are_solved_one_by_one():
    two = np.stack([Y, Y**2], 1)
    given = {"gamma": 0.3, "feature_map": "trigonometric", "n_features": 32, "random_state": 0}
    both = KernelRidge(**given).fit(X, two).predict(X)
    for k in range(2):
        np.testing.assert_allclose(both[:, k], KernelRidge(**given).fit(X, two[:, k]).predict(X), rtol=1e-8)


@pytest.mark.parametrize("alpha", [-1.0, "big", None])
def test_alpha_is_a_number(alpha):
    with pytest.raises(ValueError, match=r"alpha is .*; expected a number, 0 or more"):
        KernelRidge(alpha=alpha).fit(X, Y)


def test_no_penalty_is_least_squares():
    model = KernelRidge(alpha=0, gamma=0.3, feature_map="trigonometric", n_features=16, random_state=0).fit(
        X, Y
    )
    f = np.hstack([model.features_.transform(X), np.ones((len(X), 1))])
    expected = f @ np.linalg.lstsq(f, Y, rcond=None)[0]
    np.testing.assert_allclose(model.predict(X), expected, atol=1e-8)


@pytest.mark.parametrize(("first", "later"), [(1, 2), (2, 1), (3, 2)])
def test_the_number_of_targets_stays_the_same(first, later):
    y = np.stack([Y, Y**2, Y**3], 1)
    model = KernelRidge(gamma=0.3, feature_map="trigonometric", n_features=16).partial_fit(X, y[:, :first])
    with pytest.raises(
        ValueError, match=f"y has {later} targets per row; expected {first}, as in the rows before"
    ):
        model.partial_fit(X, y[:, :later])
    assert len(model.sums_.targets) == first


def test_targets_are_required():
    with pytest.raises(ValueError, match="requires y to be passed, but the target y is None"):
        KernelRidge().fit(X)


def test_sums_of_parts_are_sums_of_all():
    f = np.random.default_rng(0).normal(size=(30, 4)) + 5
    y = f[:, :1]
    whole = Sums.of(Block(f, y))
    parts = Sums.of(Block(f[:11], y[:11])).plus(Sums.of(Block(f[11:], y[11:])))
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)
    centred = f - f.mean(0)
    np.testing.assert_allclose(whole.centred().gram, centred.T @ centred, atol=1e-10)
    np.testing.assert_allclose(whole.centred().cross, centred.T @ centred[:, :1], atol=1e-10)
    np.testing.assert_allclose(whole.centred().squares, np.square(centred[:, 0]).sum(), atol=1e-10)


def test_a_spectrum_solves_and_leaves_out_what_is_not_there():
    g = np.diag([0.0, 1.0, 2.0])
    assert Spectrum.of(g).solve(0, np.ones((3, 1))).ravel().tolist() == [0.0, 1.0, 0.5]
    assert Spectrum.of(g).solve(1, np.ones((3, 1))).ravel().tolist() == pytest.approx([1.0, 0.5, 1 / 3])
    assert Spectrum.of(np.diag([-1e-18, 1.0])).values.tolist() == [0.0, 1.0]

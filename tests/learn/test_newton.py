"""Conjugate gradients and Newton's method against normal equations, scipy and definitions."""

from __future__ import annotations

import pickle

import dask
import dask.array as da
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from hrf.learn import KernelClassifier, KernelRidge, load, newton
from hrf.learn.classifier import LOSSES
from hrf.learn.linear_models import _path
from hrf.learn.rows import Block
from learn.models import FIXED, ROWS, rows, targets
from learn.test_estimators import CHOSEN_WITHOUT_WEIGHTS, WEIGHTS, checked, repeated

X = rows()
Y = targets("ridge", X)
ITERATIVE = {"solver": "iterative", "tol": 1e-6, "alpha": 0.1, "n_features": 64}


@pytest.fixture(params=["trigonometric", "landmarks"])
def model(request):
    return KernelRidge(**FIXED | ITERATIVE | {"feature_map": request.param})


def check(model, found, x, y, **weights):
    """Compare with normal equations; kernel values in float32, whitened, are good for three digits."""
    expected = clone(model).set_params(solver="direct").fit(x, y, **weights).predict(X)
    np.testing.assert_allclose(found, expected, atol=2e-3 if model.feature_map == "landmarks" else 2e-4)


@pytest.mark.parametrize("settings", [{}, {"_HELD_BYTES": 0}, {"_HELD_BYTES": 0, "_CHUNK_NUMBERS": 700}])
@pytest.mark.parametrize("sketched", [8192, 50, 7])
def test_it_solves_the_normal_equations(model, settings, sketched, monkeypatch):
    """Features held or not, and sketches of all rows, of fewer rows than columns, and of next to none."""
    for name, value in settings.items() | {("_SKETCHED_ROWS", sketched)}:
        monkeypatch.setattr(newton, name, value)
    check(model, model.fit(X, Y).predict(X), X, Y)
    assert model.sums_ is None


def test_wide_maps_sketch_fewer_rows(model, monkeypatch):
    found = []
    rows = newton._sketched_rows

    def recorded(*arguments):
        found.append(rows(*arguments))
        return found[-1]

    monkeypatch.setattr(newton, "_SKETCHED_NUMBERS", 10_000)
    monkeypatch.setattr(newton, "_sketched_rows", recorded)
    check(model, model.fit(X, Y).predict(X), X, Y)
    assert all(u.size <= 10_000 + len(u) for u in found)


def test_targets_in_columns_far_from_zero_and_of_other_precision(model):
    y = np.stack([Y, 1e6 + Y**2], 1)
    check(model, model.fit(X, y).predict(X), X, y)
    single = X.astype(np.float32)
    assert model.fit(single, Y).predict(single).dtype == np.float32


def test_fewer_rows_than_features_equal_rows_and_constant_columns(model):
    few = X[:20]
    check(model, model.fit(few, Y[:20]).predict(X), few, Y[:20])
    twice = np.hstack([np.repeat(X[:60], 3, axis=0), np.ones((180, 1))])
    y = np.repeat(Y[:60], 3)
    direct = clone(model).set_params(solver="direct").fit(twice, y).predict(twice)
    np.testing.assert_allclose(model.fit(twice, y).predict(twice), direct, atol=2e-3)
    assert np.isfinite(model.fit(np.ones((9, 2)), np.arange(9.0)).predict(np.ones((1, 2)))).all()


def test_weights_are_repeated_rows():
    ridge = KernelRidge(**FIXED | ITERATIVE)
    found = ridge.fit(X, Y, sample_weight=WEIGHTS).predict(X)
    check(ridge, found, repeated(X), repeated(Y))


def test_dask_and_empty_partitions(model):
    parts = [X[:70], X[:0], X[70:300], X[300:]]
    labels = [Y[:70], Y[:0], Y[70:300], Y[300:]]
    lazy, y = (da.concatenate([da.from_array(u, chunks=u.shape) for u in us]) for us in (parts, labels))
    with dask.config.set(scheduler="synchronous"):
        found = clone(model).fit(lazy, y).predict(X)
    check(model, found, X, Y)


def test_a_file_and_what_cannot_go_on(model, tmp_path, monkeypatch):
    model.fit(X, Y).save(tmp_path / "model.safetensors")
    copy = load(tmp_path / "model.safetensors")
    assert np.array_equal(copy.predict(X), model.predict(X))
    assert not hasattr(copy, "partial_fit")
    with pytest.raises(ValueError, match=r"conjugate gradients for 64 features and kept no normal equations"):
        copy.set_params(solver="auto").partial_fit(X, Y)
    with pytest.raises(ValueError, match="alpha is 0; expected a positive penalty for conjugate gradients"):
        clone(model).set_params(alpha=0.0).fit(X, Y)
    with pytest.raises(ValueError, match="solver is 'qr'; expected one of auto, direct, iterative"):
        clone(model).set_params(solver="qr").fit(X, Y)
    monkeypatch.setattr(newton, "_INNER", 1)
    monkeypatch.setattr(newton, "_SKETCHED_ROWS", 7)
    with pytest.warns(ConvergenceWarning, match=r"conjugate gradients did not reach tol=1e-06"):
        clone(model).fit(X, Y)
    with pytest.raises(ValueError, match="Input X contains NaN"):
        clone(model).fit(np.full_like(X, np.nan), Y)


@pytest.mark.parametrize("feature_map", ["trigonometric", "landmarks"])
def test_scikit_learn_finds_nothing_in_the_iterative_solver(feature_map):
    ridge = KernelRidge(solver="iterative", feature_map=feature_map, n_features=32, random_state=0)
    assert (
        checked(ridge, CHOSEN_WITHOUT_WEIGHTS) == []
    )  # and float32 keeps fewer digits than the check asks for


def test_auto_is_direct_on_narrow_maps_only(monkeypatch):
    assert KernelRidge(**FIXED, n_features=64).fit(X, Y).sums_ is not None
    monkeypatch.setattr("hrf.learn.linear_models._DIRECT_WIDTH", 63)
    assert KernelRidge(**FIXED, n_features=64).fit(X, Y).sums_ is None
    assert KernelRidge(**FIXED, n_features=64).partial_fit(X, Y).sums_ is not None
    assert KernelRidge(**FIXED, n_features=64, alpha=0).fit(X, Y).sums_ is not None


def test_products_in_single_precision_change_little(monkeypatch):
    expected = KernelRidge(**FIXED, alpha=1e-3, n_features=128).fit(X, Y).predict(X)
    monkeypatch.setattr("hrf.learn.linear_models.SINGLE_WIDTH", 64)
    found = KernelRidge(**FIXED, alpha=1e-3, n_features=128).fit(X, Y).predict(X)
    assert 0 < np.abs(found - expected).max() < 1e-3


# The method by itself.


def spd(n, seed=0):
    f = np.random.default_rng(seed).normal(size=(2 * n, n)) * np.logspace(0, -2, n)
    return f.T @ f


@pytest.mark.parametrize("axis", [0, None])
def test_conjugate_gradients_end_at_the_solution(axis):
    h, right = spd(12), np.random.default_rng(1).normal(size=(12, 3))
    right[:, 2] = 0  # a column that is solved at once
    found, solved = newton.conjugate_gradients(
        lambda v: h @ v, right, lambda r: r / h.diagonal()[:, None], 1e-12, axis
    )
    np.testing.assert_allclose(found, np.linalg.solve(h, right), rtol=1e-6, atol=1e-8)
    assert solved


def test_an_exact_preconditioner_needs_one_product():
    h, calls = spd(9), []
    right = np.ones((9, 1))

    def product(v):
        calls.append(1)
        return h @ v

    newton.conjugate_gradients(product, right, lambda r: np.linalg.solve(h, r), 1e-8, 0)
    assert len(calls) <= 2


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("feature_map", ["trigonometric", "landmarks"])
def test_classifiers_reach_the_optimum_of_l_bfgs(loss, classes, feature_map):
    y = np.digitize(X[:, 0], [0.5, 2.0][: classes - 1])
    given = FIXED | {"feature_map": feature_map, "n_features": 24, "tol": 1e-8, "alpha": 0.3}
    model = KernelClassifier(loss=loss, **given).fit(X, y)
    f = np.hstack([model.features_.transform(X), np.ones((ROWS, 1))])
    shape = model.weights_.shape

    def objective(flat):
        w = flat.reshape(shape)
        scores, penalised = f @ w, w * model.penalty_
        value = LOSSES[loss].value(scores, y).sum() + 0.5 * (w * penalised).sum()
        return value, (f.T @ LOSSES[loss].slope(scores, y) + penalised).ravel()

    options = {"maxiter": 20_000, "maxfun": 50_000, "ftol": 0, "gtol": 1e-8}
    best = minimize(objective, np.zeros(np.prod(shape)), jac=True, method="L-BFGS-B", options=options)
    assert objective(model.weights_.ravel())[0] <= best.fun * (1 + 1e-9)
    np.testing.assert_allclose(model.weights_.ravel(), best.x, atol=2e-4 * np.abs(best.x).max())


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("k", [1, 4])
def test_bends_are_derivatives_of_slopes(name, k):
    generator, loss, step = np.random.default_rng(3), LOSSES[name], 1e-6
    scores, along = generator.normal(size=(2, 6, k))
    codes = generator.integers(max(k, 2), size=6)
    up, down = (loss.slope(scores + sign * step * along, codes) for sign in (1, -1))
    np.testing.assert_allclose(loss.bend(scores, codes, along), (up - down) / (2 * step), atol=1e-7)


def test_wide_classifiers_in_single_precision(monkeypatch):
    y = np.where(X[:, 0] > 1, "yes", "no")
    expected = KernelClassifier(**FIXED, n_features=64).fit(X, y).decision_function(X)
    monkeypatch.setattr("hrf.learn.linear_models.SINGLE_WIDTH", 1)
    monkeypatch.setattr(newton, "_SKETCHED_ROWS", 40)
    found = KernelClassifier(**FIXED, n_features=64).fit(X, y).decision_function(X)
    np.testing.assert_allclose(found, expected, atol=5e-3)


@pytest.mark.parametrize("n_features", [512, 600])
def test_equal_rows_leave_a_factor(n_features):
    """Products of equal rows in float32 make a matrix that is indefinite by more than the least penalty."""
    given = {"gamma": 0.3, "n_features": n_features, "alpha": 1e-6, "random_state": 0}
    model = KernelClassifier(**given).fit(np.ones((700, 4)), np.arange(700) % 7 == 0)
    np.testing.assert_allclose(model.predict_proba(np.ones((1, 4))), [[6 / 7, 1 / 7]], atol=1e-3)


def test_a_larger_penalty_factorises_what_rounding_made_indefinite():
    a = np.random.default_rng(0).normal(size=(9, 4))
    gram = a @ a.T - 2e-3 * np.eye(9)  # five eigenvalues of −0.002
    added = np.linspace(1e-4, 2e-4, 9)
    factor = np.tril(newton._factor(gram.copy(), added))
    assert np.abs(factor @ factor.T - gram - np.diag(100 * added)).max() < 1e-13 * np.abs(gram).max()


def test_landmarks_with_a_tiny_penalty_are_not_in_single_precision(monkeypatch):
    y, given = X[:, 0] > 1, FIXED | {"feature_map": "landmarks", "n_features": 300, "alpha": 1e-6}
    expected = KernelClassifier(**given).fit(X, y).predict_proba(X)
    monkeypatch.setattr("hrf.learn.linear_models.SINGLE_WIDTH", 1)
    found = KernelClassifier(**given).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("solver", ["direct", "iterative"])
@pytest.mark.parametrize("feature_map", ["trigonometric", "landmarks"])
def test_rows_far_from_zero_in_single_precision(solver, feature_map, monkeypatch):
    """‖x‖²/2 is added and subtracted: float32 would lose what is in between."""
    given = FIXED | {"feature_map": feature_map, "n_features": 64, "solver": solver}
    expected = KernelRidge(**given).fit(X, Y).score(X, Y)
    monkeypatch.setattr("hrf.learn.linear_models.SINGLE_WIDTH", 1)
    far = X + 1e5
    assert KernelRidge(**given).fit(far, Y).score(far, Y) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("size", [2.0**-200, 2.0**150, 2.0**600])
def test_targets_of_any_size_in_single_precision(size, monkeypatch):
    monkeypatch.setattr("hrf.learn.linear_models.SINGLE_WIDTH", 1)
    model = KernelRidge(**FIXED | ITERATIVE)
    expected = clone(model).fit(X, Y).predict(X)
    np.testing.assert_array_equal(model.fit(X, size * Y).predict(X), size * expected)


@pytest.mark.parametrize("alpha", [np.float32(0.5), np.int64(1)])
def test_penalties_of_numpy_are_numbers(alpha):
    given = FIXED | {"n_features": 32}
    found, expected = (KernelRidge(alpha=a, **given).fit(X, Y).predict(X) for a in (alpha, float(alpha)))
    np.testing.assert_array_equal(found, expected)


def test_steps_of_classifiers_leave_the_kept_rows_at_home():
    model = KernelClassifier(**FIXED, n_features=32).fit(X, X[:, 0] > 1)
    with_rows = clone(model).fit(np.tile(X, (9, 1)), np.tile(X[:, 0] > 1, 9))
    sizes = [len(pickle.dumps(one._problem([]))) for one in (model, with_rows)]
    assert sizes[1] < 1.1 * sizes[0]


def test_weights_of_zero_on_dask_are_said():
    lazy, y, nothing = (da.from_array(u) for u in (X, X[:, 0] > 1, np.zeros(ROWS)))
    with dask.config.set(scheduler="synchronous"), pytest.raises(ValueError, match="is 0 for all rows"):
        KernelClassifier(**FIXED).fit(lazy, y, sample_weight=nothing)


# γ and penalty from a sample.


@pytest.mark.slow
def test_gamma_and_penalty_are_searched_on_held_out_rows():
    generator = np.random.default_rng(0)
    x = generator.uniform(-3, 3, size=(1200, 2))
    y = np.sin(3 * x[:, 0]) + 0.3 * generator.normal(size=1200)
    model = KernelRidge(alpha="auto", gamma="auto", random_state=0).fit(x[:1000], y[:1000])
    scale = 1 / (2 * x[:1000].var())
    assert np.isclose(model.features_.gamma_ / scale, 2.0 ** np.arange(-5, 3)).any()
    new, truth = x[1000:], np.sin(3 * x[1000:, 0])
    error = np.sqrt(np.mean((model.predict(new) - truth) ** 2))
    given = {"random_state": 0, "gamma": model.features_.gamma_}
    for alpha in (1e-3 * model.alpha_, 1e3 * model.alpha_):
        other = KernelRidge(alpha=alpha, **given).fit(x[:1000], y[:1000])
        assert error < np.sqrt(np.mean((other.predict(new) - truth) ** 2))
    same = KernelRidge(alpha=model.alpha_, **given).fit(x[:1000], y[:1000])
    assert np.array_equal(same.predict(new), model.predict(new))


def test_the_path_is_ridge_regression_at_every_penalty():
    model = KernelRidge(**FIXED, n_features=32)
    features = model.fit(X[:300], Y[:300]).features_
    found = dict(
        _path(features, model._numbers, Block(X[:300], Y[:300]), Block(X[300:], Y[300:]), [1e-4, 1.0])
    )
    for alpha, error in found.items():
        fitted = KernelRidge(**FIXED, n_features=32, alpha=alpha).fit(X[:300], Y[:300])
        assert error == pytest.approx(np.square(fitted.predict(X[300:]) - Y[300:]).sum(), rel=1e-5)


def test_a_search_among_few_rows_takes_what_is_usual():
    model = KernelRidge(alpha="auto", gamma="auto", random_state=0).fit(X[:4], Y[:4])
    assert model.alpha_ == pytest.approx(1e-2)
    assert np.isfinite(model.predict(X)).all()

"""KernelClassifier: the minimum of its objective, and parts in place of all rows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from hrf.learn import KernelClassifier, classifier
from learn.models import ROWS, rows

X = rows()
TWO = np.where(X[:, 0] + 0.3 * X[:, 1] > 1.2, "yes", "no")
THREE = np.digitize(X[:, 0] - X[:, 1], [-1.0, 1.0])
GIVEN = {"gamma": 0.3, "feature_map": "trigonometric", "n_features": 32, "random_state": 0}


@pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
def test_logistic_weights_are_scikit_learns(y):
    model = KernelClassifier(alpha=0.5, tol=1e-7, **GIVEN).fit(X, y)
    f = model.features_.transform(X)
    exact = LogisticRegression(C=2.0, tol=1e-10, max_iter=10_000).fit(f, y)
    np.testing.assert_allclose(model.predict_proba(X), exact.predict_proba(f), atol=1e-4)
    assert (model.predict(X) == exact.predict(f)).mean() > 0.99


def test_squared_hinge_weights_are_scikit_learns():
    """Its intercept is penalised, by little if the column that stands for it is long; C is 1/α."""
    model = KernelClassifier(loss="squared_hinge", alpha=1.0, tol=1e-7, **GIVEN).fit(X, TWO)
    f = model.features_.transform(X)
    svc = LinearSVC(C=1.0, tol=1e-8, intercept_scaling=1e2, max_iter=200_000, dual=False)
    exact = svc.fit(f, TWO).decision_function(f)
    np.testing.assert_allclose(model.decision_function(X), exact, atol=2e-2)
    assert not hasattr(model, "predict_proba")


@pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
def test_shapes(y):
    model = KernelClassifier(**GIVEN).fit(X, y)
    k = len(np.unique(y))
    assert model.decision_function(X).shape == ((ROWS,) if k == 2 else (ROWS, k))
    probability = model.predict_proba(X)
    assert probability.shape == (ROWS, k)
    assert np.array_equal(model.classes_[probability.argmax(1)], model.predict(X))


both_losses = pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
ORDERS = {"by class": np.argsort(TWO, kind="stable"), "by a column": np.argsort(X[:, 1])}


def in_parts(order, y=TWO, n_parts=4, **given):
    model = KernelClassifier(**GIVEN | given)
    for part in np.array_split(order, n_parts):
        model.partial_fit(X[part], y[part], classes=np.unique(y))
    return model


@both_losses
@pytest.mark.parametrize("order", ORDERS)
def test_parts_in_any_order_are_a_fit_while_all_rows_are_kept(loss, order):
    """The minimum is the same; the searches for it end within the tolerance of each other."""
    model = in_parts(ORDERS[order], loss=loss, tol=1e-7)
    whole = KernelClassifier(loss=loss, tol=1e-7, **GIVEN).fit(X, TWO)
    np.testing.assert_allclose(model.decision_function(X), whole.decision_function(X), atol=1e-3)
    assert len(model.kept_[0]) == ROWS


@both_losses
@pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
def test_a_sample_of_rows_comes_close_to_all_rows(loss, y, monkeypatch):
    monkeypatch.setattr(classifier, "_KEPT", 120)
    whole = KernelClassifier(loss=loss, **GIVEN).fit(X, y)
    for order in (np.argsort(y, kind="stable"), ORDERS["by a column"]):
        model = in_parts(order, y, loss=loss)
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


def test_one_part_is_a_fit():
    first = KernelClassifier(**GIVEN).partial_fit(X, TWO, classes=np.unique(TWO))
    assert np.array_equal(first.coef_, KernelClassifier(**GIVEN).fit(X, TWO).coef_)


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
    sentence = r"classes=\['no', 'maybe'\] is not the same as on last call to partial_fit; expected .*no.*yes"
    with pytest.raises(ValueError, match=sentence):
        model.partial_fit(X, TWO, classes=["no", "maybe"])


def test_too_few_steps_are_said():
    with pytest.warns(ConvergenceWarning, match=r"L-BFGS stopped after 1 steps \(max_iter\)"):
        KernelClassifier(max_iter=1, alpha=1e-6, **GIVEN).fit(X, TWO)


@pytest.mark.parametrize(("name", "value"), [("alpha", 0.0), ("max_iter", 0)])
def test_numbers_out_of_range_are_named(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}; expected"):
        KernelClassifier(**{name: value}).fit(X, TWO)

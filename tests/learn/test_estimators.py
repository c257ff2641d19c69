"""What holds for every estimator: scikit-learn's own checks, pipelines, searches, frames, precision, blocks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import hrf
from hrf.learn import KernelClassifier, KernelKMeans, KernelRidge, RandomFeatures
from hrf.learn import rows as rows_module
from learn.models import COLUMNS, MODELS, ROWS, output, rows, targets

NAMES = sorted(MODELS)


# "auto" chooses a map by rows without their weights; scikit-learn's own KMeans fails these two checks as well.
CHOSEN_WITHOUT_WEIGHTS = {
    f"check_sample_weight_equivalence_on_{kind}_data": "the map is chosen without weights"
    for kind in ("dense", "sparse")
}


def checked(estimator, expected=None):
    """Run scikit-learn's checks; those that are skipped need a setting of the environment."""
    results = check_estimator(estimator, on_skip=None, on_fail=None, expected_failed_checks=expected)
    assert {r["check_name"] for r in results if r["status"] == "skipped"} <= {"check_array_api_input"}
    return [(r["check_name"], r["exception"]) for r in results if r["status"] == "failed"]


@pytest.mark.parametrize("name", NAMES)
def test_scikit_learn_finds_nothing_to_complain_about(name):
    width = {"n_components": 32} if name == "features" else {"n_features": 32}
    given = {"gamma": "scale"} | width
    assert checked(clone(MODELS[name]).set_params(**given)) == []


@pytest.mark.slow
@pytest.mark.parametrize("cls", sorted({type(model) for model in MODELS.values()}, key=lambda c: c.__name__))
def test_nor_with_default_arguments(cls):
    if cls is KernelKMeans:  # a few checks have four rows
        assert checked(cls(n_clusters=3), CHOSEN_WITHOUT_WEIGHTS) == []
    else:
        assert checked(cls()) == []


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def fitted(name):
    x = rows()
    return clone(MODELS[name]).fit(x, targets(name, x))


def test_clone_keeps_the_parameters(name):
    assert clone(MODELS[name]).get_params() == MODELS[name].get_params()


def test_one_seed_gives_one_model(name, fitted):
    x = rows()
    again = clone(MODELS[name]).fit(x, targets(name, x))
    assert np.array_equal(output(again, x), output(fitted, x))


def test_float32_is_kept(name):
    x = rows().astype(np.float32)
    model = clone(MODELS[name]).fit(x, targets(name, x))
    found = output(model, x)
    if found.dtype.kind == "f":
        assert found.dtype == np.float32
        double = output(clone(MODELS[name]).fit(x.astype(np.float64), targets(name, x)), x.astype(np.float64))
        assert double.dtype == np.float64


def test_blocks_of_rows_change_nothing_but_rounding(name, fitted, monkeypatch):
    x = rows()
    monkeypatch.setattr(rows_module, "_BLOCK_NUMBERS", 64 * 37)  # 37 rows
    blocked = clone(MODELS[name]).fit(x, targets(name, x))
    np.testing.assert_allclose(output(blocked, x), output(fitted, x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_frames(name, fitted, frame):
    x = rows()
    table = frame({f"column {k}": x[:, k] for k in range(COLUMNS)})
    model = clone(MODELS[name]).fit(table, targets(name, x))
    assert model.feature_names_in_.tolist() == ["column 0", "column 1", "column 2"]
    # Columns of a frame lie one after another in memory, so that products round differently.
    np.testing.assert_allclose(output(model, table), output(fitted, x), rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="feature names should match"):
        output(model, frame({f"other {k}": x[:, k] for k in range(COLUMNS)}))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(name, fitted, bad):
    x = rows()
    x[3, 1] = bad
    for call in (lambda: output(fitted, x), lambda: clone(fitted).fit(x, targets(name, rows()))):
        with pytest.raises(ValueError, match=r"contains NaN|contains infinity"):
            call()


def test_texts_and_other_columns_are_refused(fitted):
    with pytest.raises(ValueError, match="could not convert string to float"):
        output(fitted, np.full((2, COLUMNS), "one"))
    with pytest.raises(ValueError, match=r"X has 2 features, but .* is expecting 3 features"):
        output(fitted, rows()[:, :2])


def test_a_model_is_fitted_first(name):
    with pytest.raises(NotFittedError):
        output(clone(MODELS[name]), rows())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"gamma": -1.0}, "gamma is -1.0; expected a positive number or 'scale'"),
        ({"gamma": "wide"}, "gamma is 'wide'; expected a positive number or 'scale'"),
        ({"feature_map": "cosine"}, "feature_map is 'cosine'; expected 'auto', one of trigonometric, "),
        ({"kernel": "laplace"}, "kernel is 'laplace'; expected 'rbf' or 'softmax'"),
        ({"projection": "random"}, "projection is 'random'; expected one of iid"),
        (
            {"feature_map": hrf.Positive(7, n_projections=4)},
            "the feature map has dim=7, heads=None; expected dim=3",
        ),
    ],
)
def test_parameters_that_are_wrong_are_named(name, given, sentence):
    x = rows()
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        clone(MODELS[name]).set_params(**given).fit(x, targets(name, x))


def test_pipeline_search_and_cross_validation():
    x = rows()
    y = targets("ridge", x)
    pipeline = make_pipeline(
        StandardScaler(), RandomFeatures(n_components=32, random_state=0), Ridge(alpha=0.01)
    )
    assert cross_val_score(pipeline, x, y, cv=3).min() > 0.9
    search = GridSearchCV(
        KernelRidge(n_features=32, random_state=0), {"alpha": [1e-3, 1e3], "gamma": [0.1]}, cv=3
    )
    assert search.fit(x, y).best_params_ == {"alpha": 1e-3, "gamma": 0.1}
    classes = targets("logistic", x)
    assert cross_val_score(KernelClassifier(n_features=32, random_state=0), x, classes, cv=3).min() > 0.8


def test_partial_fit_of_parts_is_fit_of_all():
    """For the models that keep sums, which is all but the classifier and k-means."""
    x = rows()
    for name in ("ridge", "process", "pca"):
        y, model, whole = targets(name, x), clone(MODELS[name]), clone(MODELS[name])
        model.set_params(feature_map="trigonometric", gamma=0.3)
        for part in np.array_split(np.arange(ROWS), 5):
            model.partial_fit(x[part], None if y is None else y[part])
        whole.fit(x, y)
        np.testing.assert_allclose(output(model, x), output(whole, x), rtol=1e-7, atol=1e-7)

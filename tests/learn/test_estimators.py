"""All estimators: scikit-learn's checks, frames, precision, blocks, weights, sparse rows, files; RandomFeatures."""

from __future__ import annotations

import pickle

import dask
import dask.array as da
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import hrf
from hrf.advice.kernel_advisor import ADVISED
from hrf.advice.kernel_advisor import NAMES as MAP_NAMES
from hrf.learn import KernelClassifier, KernelKMeans, KernelRidge, RandomFeatures, load
from hrf.learn import rows as rows_module
from hrf.learn.random_features import width_of
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
    width = {"n_components": 32} if name in ("features", "landmarks") else {"n_features": 32}
    given = {"gamma": "scale"} | width
    expected = CHOSEN_WITHOUT_WEIGHTS if name == "ridge on landmarks" else None
    assert checked(clone(MODELS[name]).set_params(**given), expected) == []


@pytest.mark.slow
@pytest.mark.parametrize("cls", [KernelRidge, KernelKMeans])
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
def test_frames(frame):
    x = rows()
    table = frame({f"column {k}": x[:, k] for k in range(COLUMNS)})
    for name in ("features", "ridge"):
        model, y = clone(MODELS[name]), targets(name, x)
        # Columns of a frame lie one after another in memory, so that products round differently.
        expected = output(clone(model).fit(x, y), x)
        np.testing.assert_allclose(output(model.fit(table, y), table), expected, rtol=1e-6, atol=1e-6)
        assert model.feature_names_in_.tolist() == ["column 0", "column 1", "column 2"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"gamma": -1.0}, "gamma is -1.0; expected a positive number, 'scale' or, for KernelRidge, 'auto'"),
        (
            {"gamma": "wide"},
            "gamma is 'wide'; expected a positive number, 'scale' or, for KernelRidge, 'auto'",
        ),
        ({"feature_map": "cosine"}, "feature_map is 'cosine'; expected 'auto', one of trigonometric, "),
        ({"kernel": "laplace"}, "kernel is 'laplace'; expected 'rbf' or 'softmax'"),
        ({"projection": "random"}, "projection is 'random'; expected one of iid"),
        ({"feature_map": hrf.Positive(7, n_projections=4)}, "dim=7, heads=None; expected dim=3"),
    ],
)
def test_parameters_that_are_wrong_are_named(given, sentence):
    for model in (RandomFeatures(), KernelRidge()):
        with pytest.raises(ValueError, match=sentence):
            model.set_params(**given).fit(X, X[:, 0])


def test_pipeline_search_and_cross_validation():
    given = {"random_state": 0, "n_features": 32}
    y, classes = targets("ridge", X), targets("logistic", X)
    pipeline = make_pipeline(
        StandardScaler(), RandomFeatures(n_components=32, random_state=0), Ridge(alpha=0.01)
    )
    assert cross_val_score(pipeline, X, y, cv=3).min() > 0.9
    search = GridSearchCV(KernelRidge(**given), {"alpha": [1e-3, 1e3], "gamma": [0.1]}, cv=3)
    assert search.fit(X, y).best_params_ == {"alpha": 1e-3, "gamma": 0.1}
    assert cross_val_score(KernelClassifier(**given), X, classes, cv=3).min() > 0.8


def test_partial_fit_of_parts_is_fit_of_all():
    """For the models that keep sums, which is all but the classifier and k-means."""
    x = rows()
    for name in ("ridge", "process", "pca"):
        y, model, whole = targets(name, x), clone(MODELS[name]), clone(MODELS[name])
        for part in np.array_split(np.arange(ROWS), 5):
            model.partial_fit(x[part], None if y is None else y[part])
        whole.fit(x, y)
        np.testing.assert_allclose(output(model, x), output(whole, x), rtol=1e-7, atol=1e-7)


# Weights of rows, and sparse rows.


X = rows()

WEIGHTS = np.random.default_rng(2).integers(0, 4, size=ROWS)

WEIGHTED = ["ridge", "logistic", "hinge", "k-means"]


def repeated(values):
    return None if values is None else np.repeat(values, WEIGHTS, axis=0)


def model_of(name, gamma="scale"):
    """A model that ends its search late; γ follows the rows, and with them the weights."""
    more = {"tol": 1e-9, "max_iter": 5000} if name in ("logistic", "hinge") else {}
    return clone(MODELS[name]).set_params(gamma=gamma, **more)


@pytest.mark.parametrize("name", WEIGHTED)
def test_whole_weights_are_repeated_rows(name):
    y = targets(name, X)
    expected = model_of(name).fit(repeated(X), repeated(y))
    model = model_of(name).fit(X, y, sample_weight=WEIGHTS)
    assert model.features_.gamma_ == pytest.approx(expected.features_.gamma_, rel=1e-12)
    np.testing.assert_allclose(output(model, X), output(expected, X), rtol=1e-5, atol=1e-5)
    if name == "k-means":
        assert model.inertia_ == pytest.approx(expected.inertia_, rel=1e-9)
    else:
        score = expected.score(repeated(X), repeated(y))
        assert model.score(X, y, sample_weight=WEIGHTS) == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_in_parts_and_on_dask(name):
    y = targets(name, X)
    classes = {"classes": np.unique(y)} if name in ("logistic", "hinge") else {}
    expected = model_of(name, gamma=0.3).fit(repeated(X), repeated(y))
    lazy = [None if u is None else da.from_array(u, chunks=(70, *u.shape[1:])) for u in (X, y, WEIGHTS)]
    with dask.config.set(scheduler="synchronous"):
        distributed = model_of(name, gamma=0.3).fit(*lazy[:2], sample_weight=lazy[2])
    parts = model_of(name, gamma=0.3)
    for part in np.array_split(np.arange(ROWS), 3):
        parts.partial_fit(X[part], None if y is None else y[part], sample_weight=WEIGHTS[part], **classes)
    for model in (distributed, parts):
        found = output(model, X)
        if name == "k-means":  # clusters may be numbered differently
            assert len(set(zip(found.tolist(), output(expected, X).tolist(), strict=True))) == 3
        else:
            np.testing.assert_allclose(found, output(expected, X), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("weight", "sentence"),
    [
        (np.ones(ROWS - 1), r"sample_weight has shape \(399,\); expected one weight per row, \(400,\)"),
        (np.append(-1.0, np.ones(ROWS - 1)), "sample_weight has the value -1; expected weights of 0 or more"),
        (np.zeros(ROWS), "sample_weight is 0 for all 400 rows; expected at least one non-zero number"),
        (np.full(ROWS, np.nan), "Input sample_weight contains NaN"),
        (da.zeros(ROWS - 1), "X has 400 rows and sample_weight has 399; expected one weight per row"),
        (da.full(ROWS, -2.0, chunks=70), "sample_weight has the value -2; expected weights of 0 or more"),
        (da.zeros(ROWS, chunks=70), r"Found array with 0 sample\(s\)"),
    ],
)
def test_weights_that_cannot_be_used_get_a_sentence(weight, sentence):
    x, y = X, targets("ridge", X)
    if isinstance(weight, da.Array):
        x, y = da.from_array(X, chunks=(70, 3)), da.from_array(y, chunks=70)
    with pytest.raises(ValueError, match=sentence):
        clone(MODELS["ridge"]).fit(x, y, sample_weight=weight)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_sparse_rows_are_made_dense_block_by_block(name, monkeypatch):
    monkeypatch.setattr(rows_module, "_BLOCK_NUMBERS", 64 * 37)  # 37 rows
    x, y = np.where(np.abs(X) > 0.5, X, 0.0), targets(name, X)
    expected = output(clone(MODELS[name]).fit(x, y), x)
    form = sparse.csc_array if name in ("ridge", "pca") else sparse.csr_matrix
    model = clone(MODELS[name]).fit(form(x), y)
    np.testing.assert_allclose(output(model, form(x)), expected, rtol=1e-6, atol=1e-6)


def test_a_block_of_wide_rows_has_few_rows(monkeypatch):
    monkeypatch.setattr(rows_module, "_BLOCK_NUMBERS", 1000)
    wide = rows_module.ArrayRows(sparse.csr_array((50, 100)), None, width=4)
    assert wide.reduce(lambda block: [block.x.shape], lambda a, b: a + b) == [(10, 100)] * 5


# Files: the same answers, the same continuation, and no pickle.


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_loaded_model_says_and_learns_the_same(name, tmp_path):
    model = clone(MODELS[name]).fit(pd.DataFrame(X, columns=list("abc")), targets(name, X))
    model.save(tmp_path / "model.safetensors")
    copy = load(tmp_path / "model.safetensors")
    assert type(copy) is type(model)
    assert repr(copy) == repr(model)
    frame = pd.DataFrame(rows(50, seed=3), columns=list("abc"))
    assert np.array_equal(output(copy, frame), output(model, frame))
    assert copy.feature_names_in_.tolist() == ["a", "b", "c"]
    assert copy.get_params() == model.get_params()
    if name not in ("features", "landmarks"):
        for each in (model, copy):
            each.partial_fit(frame, targets(name, frame.to_numpy()))
        assert np.array_equal(output(copy, frame), output(model, frame))


def test_maps_chosen_and_given_are_saved(tmp_path):
    given = hrf.Positive(3, n_projections=4, seed=0)
    for model in (RandomFeatures(feature_map=given), RandomFeatures(random_state=0), RandomFeatures()):
        model.fit(X).save(tmp_path / "features.safetensors")
        copy = load(tmp_path / "features.safetensors")
        assert np.array_equal(copy.transform(X), model.transform(X))
        assert copy.map_name_ == model.map_name_
    assert copy.error_ == model.error_


def test_no_pickle_is_read_or_written(tmp_path):
    model, path = KernelRidge(random_state=0, n_features=16).fit(X, X[:, 0]), tmp_path / "model.safetensors"
    model.save(path)
    assert b"pickle" not in path.read_bytes()
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
    with pytest.raises(ValueError, match="is not a safetensors file"):
        load(tmp_path / "model.pickle")
    with pytest.raises(TypeError, match=r"random_state is RandomState.* cannot be saved without pickle"):
        KernelRidge(random_state=np.random.RandomState(0)).fit(X, X[:, 0]).save(path)


def test_files_of_the_other_kind_are_refused(tmp_path):
    hrf.Positive(3, n_projections=4).save(tmp_path / "map.safetensors")
    with pytest.raises(ValueError, match=r"describes a Positive; expected an estimator of hrf\.learn"):
        load(tmp_path / "map.safetensors")
    KernelRidge().save(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="describes a Stored; expected a feature map"):
        hrf.load(tmp_path / "model.safetensors")


# RandomFeatures: which kernel, which map, how large an error.


@pytest.mark.parametrize("name", MAP_NAMES)
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
    x, draws, given = X[:12] / 3, 40, {"gamma": 0.7, "feature_map": name, "n_components": 64}
    features = [RandomFeatures(random_state=seed, **given).fit_transform(x) for seed in range(draws)]
    estimates = np.stack([f @ f.T for f in features])
    errors = estimates.std(0, ddof=1) / np.sqrt(draws)
    # ω is rounded to float32.
    assert (np.abs(estimates.mean(0) - rbf_kernel(x, gamma=0.7)) <= 5 * errors + 1e-6).all()


def test_the_softmax_kernel():
    features = RandomFeatures("softmax", gamma=0.1, feature_map="positive", n_components=4000, random_state=0)
    f = features.fit_transform(X)
    exact = np.exp(0.1 * X @ X.T)
    assert np.median(np.abs(f @ f.T / exact - 1)) < 0.2
    assert features.feature_map_.kernel == "softmax"


def test_gamma_scale_is_that_of_scikit_learn():
    fitted = RandomFeatures(feature_map="positive").fit(X)
    assert fitted.gamma_ == pytest.approx(1 / (COLUMNS * X.var()), rel=1e-12)
    assert RandomFeatures(feature_map="positive").fit(np.ones((9, 2))).gamma_ == 1.0


@pytest.mark.stat
def test_the_error_is_that_of_the_closed_form_or_measured():
    """Over draws, the mean squared error of pairs is the square of `error_`, which no draw changes."""
    pairs = np.random.default_rng(0).normal(size=(128, COLUMNS))
    exact = rbf_kernel(pairs[:64], pairs[64:], gamma=0.5)

    def fit(feature_map, seed):
        given = {"gamma": 0.5, "n_components": 32, "random_state": seed}
        features = RandomFeatures(feature_map=feature_map, **given).fit(pairs)
        f = features.transform(pairs)
        return features.error_, np.square(f[:64] @ f[64:].T - exact).mean()

    errors, squares = zip(*(fit("trigonometric", seed) for seed in range(40)), strict=True)
    deviation = np.std(squares, ddof=1) / np.sqrt(len(squares))
    assert abs(np.mean(squares) - errors[0] ** 2) <= 5 * deviation
    parts = torch.from_numpy(pairs).chunk(2)
    phi = hrf.ClusteredHybrid.fit(*parts, n_clusters=(2, 2), n_projections=4, seed=0)
    error, square = fit(hrf.GaussianKernel(phi), 0)
    assert error == pytest.approx(np.sqrt(square), rel=1e-5)


def test_auto_takes_the_map_with_the_least_error():
    auto = RandomFeatures(gamma=0.3, feature_map="auto", n_components=32, random_state=0).fit(X)
    errors = {
        name: RandomFeatures(gamma=0.3, feature_map=name, n_components=32, random_state=0).fit(X).error_
        for name in ADVISED
    }
    assert errors[auto.map_name_] <= 1.5 * min(errors.values())
    assert max(errors.values()) > 2 * errors[auto.map_name_]


def test_auto_asks_the_targets():
    """The features that learn these waves best are not those that estimate the kernel best."""
    x = np.random.default_rng(0).uniform(-3, 3, size=(2000, 6))
    auto = RandomFeatures(gamma=0.5, feature_map="auto", random_state=0, n_components=64)
    by_kernel, by_targets = (auto.fit(x, y).map_name_ for y in (None, np.cos(3 * x[:, 0])))
    assert by_kernel != by_targets


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
    with pytest.raises(ValueError, match="the Gaussian kernel; expected one for the softmax kernel"):
        RandomFeatures("softmax", feature_map=hrf.GaussianKernel(given)).fit(X)


def test_a_row_far_out_gets_zeros_or_a_sentence():
    far, given = np.full((1, COLUMNS), 100.0), {"gamma": 1.0, "random_state": 0}
    assert not RandomFeatures(feature_map="positive", **given).fit(X).transform(far).any()
    with pytest.raises(OverflowError, match=r"features reach exp\(\d+\), which torch.float64 cannot hold"):
        RandomFeatures("softmax", feature_map="trigonometric", **given).fit(X).transform(far)


def test_features_of_single_precision_far_from_zero_estimate_the_kernel():
    far = (X + 1e4).astype(np.float32)
    f = RandomFeatures(gamma=0.3, n_components=512, random_state=0).fit(far).transform(far)
    assert f.dtype == np.float32
    np.testing.assert_allclose((f * f).sum(1), 1, atol=1e-3)


@pytest.mark.parametrize(("n", "width"), [(1, 256), (500, 256), (4000, 1024), (36_000, 2048), (10**7, 2048)])
def test_the_width_follows_the_rows(n, width):
    assert width_of(n) == width


def test_auto_width_counts_weights_and_reads_dask():
    assert KernelRidge(random_state=0).fit(X, X[:, 0]).features_.width == 256
    heavy = KernelRidge(random_state=0).fit(X, X[:, 0], sample_weight=np.full(ROWS, 10.0))
    assert heavy.features_.width == width_of(10 * ROWS) == 1024
    lazy = da.from_array(np.tile(X, (10, 1)), chunks=(1000, COLUMNS))
    with dask.config.set(scheduler="synchronous"):
        assert RandomFeatures(n_components="auto", gamma=0.3).fit(lazy).width == 1024
    with pytest.raises(ValueError, match="number of features is 'many'; expected a whole number or 'auto'"):
        RandomFeatures(n_components="many").fit(X)

"""Weights of rows: a row of weight w counts as w equal rows; and sparse rows, which count as dense ones."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from hrf.learn import rows as rows_module
from learn.models import MODELS, ROWS, output, rows, targets

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
        assert model.score(X, y, sample_weight=WEIGHTS) == pytest.approx(
            expected.score(repeated(X), repeated(y)), abs=1e-5
        )


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
    ],
)
@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_that_cannot_be_used_get_a_sentence(name, weight, sentence):
    with pytest.raises(ValueError, match=sentence):
        clone(MODELS[name]).fit(X, targets(name, X), sample_weight=weight)


def test_lazy_weights_are_checked_where_they_are():
    lazy = da.from_array(X, chunks=(70, 3))
    y = da.from_array(targets("ridge", X), chunks=70)
    for weight, sentence in (
        (
            da.zeros(ROWS - 1),
            f"X has {ROWS} rows and sample_weight has {ROWS - 1}; expected one weight per row",
        ),
        (da.full(ROWS, -2.0, chunks=70), "sample_weight has the value -2; expected weights of 0 or more"),
        (da.zeros(ROWS, chunks=70), r"Found array with 0 sample\(s\)"),
    ):
        with pytest.raises(ValueError, match=sentence):
            clone(MODELS["ridge"]).fit(lazy, y, sample_weight=weight)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_sparse_rows_are_made_dense_block_by_block(name, monkeypatch):
    monkeypatch.setattr(rows_module, "_BLOCK_NUMBERS", 64 * 37)  # 37 rows
    x = np.where(np.abs(X) > 0.5, X, 0.0)
    y = targets(name, X)
    expected = output(clone(MODELS[name]).fit(x, y), x)
    for form in (sparse.csr_matrix, sparse.csc_array, sparse.coo_array):
        model = clone(MODELS[name]).fit(form(x), y)
        np.testing.assert_allclose(output(model, form(x)), expected, rtol=1e-6, atol=1e-6)


def test_a_block_of_wide_rows_has_few_rows(monkeypatch):
    monkeypatch.setattr(rows_module, "_BLOCK_NUMBERS", 1000)
    wide = rows_module.ArrayRows(sparse.csr_array((50, 100)), None, 4)
    assert wide.reduce(lambda block: [block.x.shape], lambda a, b: a + b) == [(10, 100)] * 5

"""Dask collections: the same models, chunk by chunk, on a cluster whose workers may die."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from hrf.learn import KernelRidge, progress
from hrf.learn import dask_rows as module
from learn.models import COLUMNS, MODELS, ROWS, output, rows, targets

CHUNK = 70
X = rows()
LAZY = da.from_array(X, chunks=(CHUNK, COLUMNS))


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def lazy_targets(name):
    y = targets(name, X)
    return None if y is None else da.from_array(y, chunks=CHUNK)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_arrays_give_the_model_of_one_process(name):
    alone = clone(MODELS[name]).fit(X, targets(name, X))
    model = clone(MODELS[name]).fit(LAZY, lazy_targets(name))
    found = output(model, LAZY)
    assert isinstance(found, da.Array)
    expected = output(alone, X)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if name == "k-means":  # clusters may be numbered differently
        pairs = set(zip(found.compute().tolist(), expected.tolist(), strict=True))
        assert len(pairs) == len(np.unique(expected))
        assert np.array_equal(model.labels_.compute(), found.compute())
    else:
        np.testing.assert_allclose(found.compute(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["ridge", "logistic", "pca"])
def test_frames_of_unknown_lengths(name):
    frame = pd.DataFrame(X, columns=list("abc"))
    lazy = dd.from_pandas(frame, npartitions=5)
    y = targets(name, X)
    series = None if y is None else dd.from_pandas(pd.Series(y), npartitions=5)
    model = clone(MODELS[name]).fit(lazy, series)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    expected = output(clone(MODELS[name]).fit(frame, y), frame)
    np.testing.assert_allclose(output(model, lazy).compute(), expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="feature names should match"):
        output(model, lazy.rename(columns={"a": "z"}))


def test_gamma_and_auto_on_lazy_rows():
    model = KernelRidge(n_features=32, random_state=0).fit(LAZY, targets("ridge", X))
    assert model.features_.gamma_ == pytest.approx(1 / (COLUMNS * X.var()), rel=1e-12)
    alone = KernelRidge(n_features=32, random_state=0).fit(X, targets("ridge", X))
    assert model.features_.map_name_ == alone.features_.map_name_
    np.testing.assert_allclose(model.coef_, alone.coef_, rtol=1e-6, atol=1e-9)


def test_probabilities_and_deviations_are_lazy_too():
    model = clone(MODELS["logistic"]).fit(LAZY, lazy_targets("logistic"))
    found = model.predict_proba(LAZY)
    assert found.shape == (ROWS, 2)
    np.testing.assert_allclose(found.sum(1).compute(), 1, rtol=1e-12)
    process = clone(MODELS["process"]).fit(LAZY, lazy_targets("process"))
    mean, deviation = process.predict(LAZY, return_std=True)
    assert mean.shape == deviation.shape == (ROWS,)


def test_targets_in_other_chunks_or_in_memory_and_precision():
    expected = clone(MODELS["ridge"]).fit(LAZY, lazy_targets("ridge")).coef_
    y = targets("ridge", X)
    for given in (y, da.from_array(y, chunks=33)):
        np.testing.assert_allclose(clone(MODELS["ridge"]).fit(LAZY, given).coef_, expected, rtol=1e-9)
    two, single = da.from_array(np.stack([y, y], 1), chunks=(CHUNK, 1)), LAZY.astype(np.float32)
    found = clone(MODELS["ridge"]).fit(single, two).predict(single)
    assert found.shape == (ROWS, 2)
    assert found.dtype == found.compute().dtype == np.float32


def unknown_lengths(parts):
    """A Dask array of blocks whose lengths it does not know."""
    blocks = [da.from_delayed(dask.delayed(u), (np.nan, *u.shape[1:]), u.dtype) for u in parts]
    return da.concatenate(blocks, allow_unknown_chunksizes=True)


def test_rows_outside_the_sampled_blocks_are_found():
    """Only block 1 of 40 has rows, and 16 blocks from 0 to 39 are sampled first."""
    blocks = [slice(None) if k == 1 else slice(0) for k in range(40)]
    lazy, series = (unknown_lengths([u[rows] for rows in blocks]) for u in (X, targets("ridge", X)))
    model = clone(MODELS["ridge"]).fit(lazy, series)
    alone = clone(MODELS["ridge"]).fit(X, targets("ridge", X))
    np.testing.assert_allclose(model.coef_, alone.coef_, rtol=1e-6)


def bad(k, value):
    """Rows with a value in the k-th block."""
    x = X.copy()
    x[k * CHUNK + 3, 1] = value
    return da.from_array(x, chunks=(CHUNK, COLUMNS))


TEXTS = da.from_array(np.full((9, 2), "one"), chunks=3)
NO_NUMBERS = da.full(ROWS, np.nan, chunks=CHUNK)
TWO = da.from_array(np.stack([X[:, 0]] * 2, 1), chunks=(CHUNK, 2))


@pytest.mark.parametrize(
    ("model", "x", "y", "error", "sentence"),
    [
        (
            "features",
            LAZY.rechunk((CHUNK, 2)),
            None,
            ValueError,
            "X has 2 chunks along its features, of 2, 1 col",
        ),
        ("features", LAZY[:, 0], None, ValueError, r"X has shape \(400,\); expected a Dask array \(N, d\)"),
        ("features", bad(4, np.nan), None, ValueError, "Input contains NaN"),
        ("features", bad(4, np.inf), None, ValueError, "Input contains infinity"),
        ("features", TEXTS, None, ValueError, "could not convert string to float"),
        ("features", LAZY[LAZY[:, 0] > 99], None, ValueError, r"Found array with 0 sample\(s\)"),
        ("features", LAZY[:, :0], None, ValueError, r"Found array with 0 feature\(s\)"),
        ("ridge", LAZY, da.zeros(ROWS - 1), ValueError, "X has 400 rows and y has 399; expected one target"),
        ("ridge", X, da.zeros(ROWS), TypeError, "X is of type ndarray; expected a Dask array or data frame"),
        ("ridge", LAZY, [0.0] * ROWS, TypeError, "y is of type list; expected a Dask array"),
        ("ridge", LAZY, NO_NUMBERS, ValueError, "y has values that are NaN or infinite"),
        ("process", LAZY, TWO, ValueError, r"y has shape \(400, 2\); expected one target per row, \(N,\)"),
        ("logistic", LAZY, TWO, ValueError, r"y has shape \(400, 2\); expected one target per row, \(N,\)"),
        ("logistic", LAZY, LAZY[:, 0], ValueError, "Unknown label type: continuous"),
    ],
)
def test_what_cannot_be_used_gets_a_sentence(model, x, y, error, sentence):
    with pytest.raises(error, match=sentence):
        clone(MODELS[model]).set_params(gamma="scale").fit(x, y)


def test_partitions_of_unknown_lengths_have_to_match():
    frame = dd.from_pandas(pd.DataFrame(X), npartitions=5)
    with pytest.raises(ValueError, match="X has 5 blocks of rows and y has 1, of unknown lengths"):
        KernelRidge().fit(frame, da.zeros(ROWS, chunks=ROWS))
    # Filters that drop other rows keep the number of partitions.
    with pytest.raises(ValueError, match=r"a block has \d+ rows and 80 targets; expected one target per row"):
        KernelRidge().fit(frame[frame[0] > 1], dd.from_pandas(pd.Series(X[:, 0]), npartitions=5))


def test_results_of_blocks_meet_in_a_tree(monkeypatch):
    """No task combines more results than the fan-in, so none holds more than that many Gram matrices."""
    seen = []
    original = module.reduce
    monkeypatch.setattr(module, "reduce", lambda f, group: seen.append(len(group)) or original(f, group))
    x = da.from_array(X, chunks=(5, COLUMNS))  # 80 blocks
    total = module.DaskRows(x, None).reduce(lambda block: len(block.x), lambda a, b: a + b)
    assert total == ROWS
    assert seen == [8] * 10 + [8, 2] + [2]


def test_blocks_are_read_in_smaller_blocks(monkeypatch):
    """Features are wider than rows: a chunk of any size makes no more of them than a block in memory."""
    monkeypatch.setattr("hrf.learn.rows._BLOCK_NUMBERS", 64 * 10)
    seen = module.DaskRows(LAZY, None, width=64).reduce(lambda block: [len(block.x)], lambda a, b: a + b)
    assert max(seen) == 10
    assert sum(seen) == ROWS


def dying(x, block_info=None, marker=None):
    """Rows of a block; the first worker that comes to the third block dies over it."""
    if block_info and block_info[0]["chunk-location"][0] == 3:
        try:
            Path(marker).touch(exist_ok=False)
        except FileExistsError:
            return x
        os._exit(1)
    return x


@pytest.mark.slow
def test_a_worker_that_dies_loses_nothing(tmp_path):
    distributed = pytest.importorskip("distributed")
    y = targets("ridge", X)
    expected = clone(MODELS["ridge"]).fit(X, y).coef_
    settings = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with (
        dask.config.set(scheduler=None, **{"distributed.comm.timeouts.connect": "60s"}),
        distributed.LocalCluster(silence_logs=50, **settings) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.run(lambda path: sys.path.append(path), str(Path(__file__).parents[1]))
        before = set(client.scheduler_info()["workers"])
        x = LAZY.map_blocks(dying, marker=str(tmp_path / "died"), dtype=float, meta=X[:0])
        with progress():
            coef = clone(MODELS["ridge"]).fit(x, da.from_array(y, chunks=CHUNK)).coef_
        assert (tmp_path / "died").exists()
        assert set(client.scheduler_info()["workers"]) != before
    np.testing.assert_allclose(coef, expected, rtol=1e-6)

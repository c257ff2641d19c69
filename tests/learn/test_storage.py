"""Estimators in files: the same answers, the same continuation, and no pickle."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import hrf
from hrf.learn import KernelRidge, RandomFeatures, load
from learn.models import MODELS, output, rows, targets

X = rows()


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
    if name != "features":
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


def test_a_model_that_is_not_fitted(tmp_path):
    KernelRidge(alpha=0.25).save(tmp_path / "model.safetensors")
    assert load(tmp_path / "model.safetensors").fit(X, X[:, 0]).alpha == 0.25


def test_no_pickle_is_read_or_written(tmp_path):
    model = KernelRidge(random_state=0, n_features=16).fit(X, X[:, 0])
    model.save(tmp_path / "model.safetensors")
    assert b"pickle" not in (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
    with pytest.raises(ValueError, match="is not a safetensors file"):
        load(tmp_path / "model.pickle")


def test_files_of_the_other_kind_are_refused(tmp_path):
    hrf.Positive(3, n_projections=4).save(tmp_path / "map.safetensors")
    with pytest.raises(ValueError, match=r"describes a Positive; expected an estimator of hrf\.learn"):
        load(tmp_path / "map.safetensors")
    KernelRidge().save(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="describes a Stored; expected a feature map"):
        hrf.load(tmp_path / "model.safetensors")


def test_what_needs_pickle_is_refused_by_name(tmp_path):
    model = KernelRidge(random_state=np.random.RandomState(0)).fit(X, X[:, 0])
    with pytest.raises(TypeError, match=r"random_state is RandomState.* cannot be saved without pickle"):
        model.save(tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_new_process_reads_it(tmp_path):
    model = KernelRidge(random_state=0, n_features=16).fit(X, X[:, 0])
    model.save(tmp_path / "model.safetensors")
    np.save(tmp_path / "x.npy", X)
    code = "import sys, numpy, hrf; m = hrf.learn.load(sys.argv[1]); print(m.predict(numpy.load(sys.argv[2])).sum())"
    paths = [str(tmp_path / "model.safetensors"), str(tmp_path / "x.npy")]
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(model.predict(X).sum(), rel=1e-9)

from __future__ import annotations

import json
import pickle

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import hrf


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "map.safetensors"
    hrf.AngularHybrid(4, n_projections=3, n_coefficient_projections=2).save(path)
    return path


def rewrite(path, **changes):
    """Replace entries of the file's header."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["hrf"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, metadata={"hrf": json.dumps(header | changes)})


def test_header_carries_version_class_and_arguments(saved):
    with safe_open(saved, framework="pt") as file:
        header = json.loads(file.metadata()["hrf"])
    assert header["format"] == 1
    assert header["map"]["class"] == "AngularHybrid"
    assert header["map"]["arguments"]["n_projections"] == 3


def test_unknown_version_is_refused(saved):
    rewrite(saved, format=99)
    with pytest.raises(ValueError, match="format 99; this version of hrf reads format 1"):
        hrf.load(saved)


def test_unknown_class_is_refused(saved):
    rewrite(saved, map={"class": "os.system", "arguments": {}})
    with pytest.raises(ValueError, match=r"malformed.*os\.system"):
        hrf.load(saved)


def test_other_objects_of_the_library_are_refused(saved):
    rewrite(saved, map={"class": "Projections", "arguments": {"kind": "iid", "n_projections": 2, "dim": 2}})
    with pytest.raises(ValueError, match=r"describes a Projections; expected a feature map"):
        hrf.load(saved)


@pytest.mark.parametrize(
    "tree", [None, 3, {}, {"class": "Positive"}, {"class": "Positive", "arguments": {"dim": 4}}]
)
def test_malformed_structure_is_refused(saved, tree):
    rewrite(saved, map=tree)
    with pytest.raises(ValueError, match="malformed"):
        hrf.load(saved)


def test_arguments_that_do_not_fit_the_numbers_are_refused(saved):
    arguments = {"dim": 5, "n_projections": 3, "n_coefficient_projections": 2}
    rewrite(saved, map={"class": "AngularHybrid", "arguments": arguments})
    with pytest.raises(ValueError, match=r"malformed.*size mismatch"):
        hrf.load(saved)


def test_files_of_another_kind_are_refused(tmp_path):
    pickled = tmp_path / "map.pt"
    pickled.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="not a safetensors file"):
        hrf.load(pickled)
    foreign = tmp_path / "model.safetensors"
    save_file({"weight": torch.ones(2)}, foreign)
    with pytest.raises(ValueError, match="holds no hrf map"):
        hrf.load(foreign)
    with pytest.raises(IsADirectoryError, match="is a folder; expected a file"):
        hrf.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        hrf.load(tmp_path / "missing.safetensors")


def test_projections_are_shared_across_parts_of_parts(tmp_path):
    """An angular hybrid that shares its ω with another base of the hybrid around it."""
    inner = hrf.AngularHybrid(4, n_projections=3, n_coefficient_projections=2)
    outer = hrf.Positive(4, n_projections=3, projection=inner.bases[0].projection)
    phi = hrf.Hybrid([inner, outer], [hrf.coefficients.Angular(4, n_projections=2)])
    phi.save(tmp_path / "map.safetensors")
    copy = hrf.load(tmp_path / "map.safetensors")
    assert copy.bases[1].projection is copy.bases[0].bases[0].projection is copy.bases[0].bases[1].projection
    assert len(list(copy.all_projections())) == len(list(phi.all_projections())) == 3


@pytest.mark.parametrize("shared", [[["bases.0", "bases.1"]], [["bases.9.projection", "x"]], [3], [[]]])
def test_malformed_sharing_is_refused(saved, shared):
    rewrite(saved, shared=shared)
    with pytest.raises(ValueError, match="malformed"):
        hrf.load(saved)


def test_precision_is_kept(tmp_path):
    for dtype in (torch.float16, torch.float32, torch.float64):
        hrf.Positive(4, n_projections=2).to(dtype).save(tmp_path / "map.safetensors")
        assert hrf.load(tmp_path / "map.safetensors").projection.omega.dtype == dtype


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(
        OSError, match=r"^cannot write .*nowhere/map\.safetensors: No such file or directory$"
    ):
        hrf.Positive(4, n_projections=2).save(tmp_path / "nowhere" / "map.safetensors")


def test_a_failed_save_leaves_the_old_file(saved, monkeypatch):
    def full(self, target):
        raise OSError(28, "No space left on device")

    before = saved.read_bytes()
    monkeypatch.setattr(type(saved), "replace", full)
    with pytest.raises(OSError, match="No space left on device"):
        hrf.Positive(4, n_projections=2).save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_abstract_classes_are_refused(saved):
    for name in ("FeatureMap", "Linearised", "Coefficient", "ExponentialFeatures"):
        rewrite(saved, map={"class": name, "arguments": {}})
        with pytest.raises(ValueError, match=f"needs the class {name}, which is not defined"):
            hrf.load(saved)

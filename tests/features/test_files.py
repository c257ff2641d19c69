"""Files of maps: headers, classes of a user's own, damage, and what is no file."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save, save_file

import hrf
from examples.centred import CentredPositive
from hrf import registry

SIZES = {"n_projections": 3, "n_coefficient_projections": 2}
PROJECTIONS = {"class": "Projections", "arguments": {"kind": "iid", "n_projections": 2, "dim": 2}}


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "map.safetensors"
    hrf.AngularHybrid(4, **SIZES).save(path)
    return path


def rewrite(path, **changes):
    """Replace entries of the file's header."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["hrf"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, metadata={"hrf": json.dumps(header | changes)})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": 99}, "format 99; this version of hrf reads format 1"),
        ({"map": {"class": "os.system", "arguments": {}}}, r"malformed.*os\.system"),
        (
            {"map": {"class": "FeatureMap", "arguments": {}}},
            "needs the class FeatureMap, which is not defined",
        ),
        ({"map": {"class": "Coefficient", "arguments": {}}}, "needs the class Coefficient"),
        ({"map": PROJECTIONS}, "describes a Projections; expected a feature map"),
        ({"map": None}, "malformed"),
        ({"map": {"class": "Positive"}}, "malformed"),
        ({"map": {"class": "Positive", "arguments": {"dim": 4}}}, "malformed"),
        ({"map": {"class": "AngularHybrid", "arguments": SIZES | {"dim": 5}}}, "malformed.*size mismatch"),
        ({"shared": [["bases.0", "bases.1"]]}, "malformed"),
        ({"shared": [["bases.9.projection", "x"]]}, "malformed"),
        ({"shared": [3]}, "malformed"),
        ({"shared": [[]]}, "malformed"),
    ],
)
def test_headers_that_are_refused(saved, changes, says):
    rewrite(saved, **changes)
    with pytest.raises(ValueError, match=says):
        hrf.load(saved)


def test_files_of_another_kind_are_refused(tmp_path):
    (tmp_path / "map.pt").write_bytes(pickle.dumps({"a": 1}))
    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    os.mkfifo(tmp_path / "pipe.safetensors")
    for name, error, says in (
        ("map.pt", ValueError, "not a safetensors file"),
        ("model.safetensors", ValueError, "holds no hrf map"),
        ("pipe.safetensors", ValueError, "is not a regular file; expected a file that"),
        ("/dev/zero", ValueError, "is not a regular file; expected a file that"),
        (".", IsADirectoryError, "is a folder; expected a file"),
        ("missing.safetensors", FileNotFoundError, "missing"),
    ):
        with pytest.raises(error, match=says):
            hrf.load(tmp_path / name)


def test_projections_are_shared_across_parts_of_parts(tmp_path):
    """An angular hybrid that shares its ω with another base of the hybrid around it."""
    inner = hrf.AngularHybrid(4, n_projections=3, n_coefficient_projections=2)
    outer = hrf.Positive(4, n_projections=3, projection=inner.bases[0].projection)
    phi = hrf.Hybrid([inner, outer], [hrf.coefficients.Angular(4, n_projections=2)])
    phi.save(tmp_path / "map.safetensors")
    copy = hrf.load(tmp_path / "map.safetensors")
    assert copy.bases[1].projection is copy.bases[0].bases[0].projection is copy.bases[0].bases[1].projection
    assert len(list(copy.all_projections())) == len(list(phi.all_projections())) == 3


def test_precision_is_kept(tmp_path):
    for dtype in (torch.float16, torch.float32, torch.float64):
        hrf.Positive(4, n_projections=2).to(dtype).save(tmp_path / "map.safetensors")
        assert hrf.load(tmp_path / "map.safetensors").projection.omega.dtype == dtype


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(
        OSError, match=r"^cannot write .*nowhere/map\.safetensors: No such file or directory$"
    ):
        hrf.Positive(4, n_projections=2).save(tmp_path / "nowhere" / "map.safetensors")


# Classes that a user defines.


ROOT = Path(__file__).parents[2]

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def classes(monkeypatch):
    """Classes that a test defines are forgotten after it."""
    kept = {name: dict(classes) for name, classes in registry._CLASSES.items()}
    monkeypatch.setattr(registry, "_CLASSES", kept)
    return kept


@pytest.fixture
def path(tmp_path):
    return tmp_path / "map.safetensors"


def twice(module: str = __name__) -> type[hrf.Positive]:
    """A class of a user's, defined anew by every call."""

    def scaled(self, x, side):
        return hrf.Positive.scaled(self, 2 * x, side)

    return type("Twice", (hrf.Positive,), {"scaled": scaled, "__module__": module})


def test_parts_of_a_users_own(path):
    class Fixed(hrf.coefficients.Angular):
        pass

    class Drawn(hrf.Projections):
        pass

    omega = Drawn("iid", 3, 4)
    bases = [
        CentredPositive(4, n_projections=3, projection=omega),
        hrf.Positive(4, n_projections=3, projection=omega),
    ]
    phi = hrf.Hybrid(bases, [Fixed(4, n_projections=2)])
    phi.save(path)
    copy = hrf.load(path)
    assert type(copy.coefficients[0]) is Fixed
    assert type(copy.bases[0].projection) is Drawn
    assert copy.bases[0].projection is copy.bases[1].projection
    assert torch.equal(copy.queries(X), phi.queries(X))


def test_a_name_of_the_library_cannot_be_taken_over(path):
    class Positive(hrf.Positive):
        pass

    with pytest.raises(TypeError, match=r"Positive is not a class of hrf but has the name of one; rename it"):
        Positive(4, n_projections=2).save(path)
    hrf.Positive(4, n_projections=2).save(path)
    assert type(hrf.load(path)) is hrf.Positive


def test_a_class_that_is_defined_again_replaces_the_older_one(path):
    older = twice()(4, n_projections=3)
    newer = twice()
    older.save(path)
    copy = hrf.load(path)
    assert type(copy) is newer
    assert torch.equal(copy.projection.omega, older.projection.omega)


def test_classes_of_one_name_are_told_apart_by_module(path, classes):
    first, second = twice(), twice("elsewhere")
    for cls in (first, second):
        cls(4, n_projections=3).save(path)
        assert type(hrf.load(path)) is cls
    del classes["Twice"]["elsewhere"]  # its module was renamed
    assert type(hrf.load(path)) is first


def test_a_class_that_is_not_defined_is_named(path, classes):
    twice()(4, n_projections=3).save(path)
    del classes["Twice"]
    says = rf"import the module that defines Twice before hrf\.load \(it was {__name__} when the file was saved\)$"
    with pytest.raises(ValueError, match=says):
        hrf.load(path)


def test_another_process_imports_the_module_first(path):
    CentredPositive(4, n_projections=3).save(path)
    script = (
        f"import hrf\ntry:\n    hrf.load({str(path)!r})\nexcept ValueError as error:\n    print(error)\n"
        f"import examples.centred\nprint(type(hrf.load({str(path)!r})).__name__)"
    )
    run = [sys.executable, "-c", script]
    said = subprocess.run(run, capture_output=True, text=True, cwd=ROOT, check=True).stdout.splitlines()
    assert "import the module that defines CentredPositive before hrf.load" in said[0]
    assert said[1] == "CentredPositive"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (torch.float64, r"torch\.float64 of type dtype cannot be saved; expected numbers, strings"),
        (torch.nn.Linear(2, 2), "Linear cannot be saved; expected a feature map, a coefficient"),
    ],
)
def test_what_a_file_cannot_hold_is_named(value, says, path):
    class WithValue(hrf.Positive):
        def config(self):
            return super().config() | {"value": value}

    class WithoutConfig(hrf.FeatureMap):
        heads, dim, feature_dim = None, 4, 1

    with pytest.raises(TypeError, match=says):
        WithValue(4, n_projections=2).save(path)
    with pytest.raises(NotImplementedError, match="WithoutConfig cannot be saved: it does not define config"):
        WithoutConfig().save(path)
    assert not path.exists()


# Damaged files.


@pytest.mark.parametrize("name", ["n_projections", "dim", "heads", "n_coefficient_projections"])
def test_absurd_counts_are_refused_before_anything_is_drawn(name, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "randn", lambda *_, **__: pytest.fail("numbers were drawn"))
    description = {"class": "AngularHybrid", "arguments": {"dim": 4, **SIZES, name: 10**12}}
    header = {"format": 1, "map": description, "shared": [], "complex": []}
    path = tmp_path / "map.safetensors"
    path.write_bytes(save({"state.x": torch.ones(16)}, metadata={"hrf": json.dumps(header)}))
    with pytest.raises(ValueError, match=f"{name}=1000000000000.* asks for more numbers than the file holds"):
        hrf.load(path)


def test_a_header_longer_than_the_file_is_refused(tmp_path):
    path = tmp_path / "map.safetensors"
    path.write_bytes(struct.pack("<Q", 10**9) + b"{}")
    with pytest.raises(ValueError, match="it has 10 bytes and announces a header of 1000000000"):
        hrf.load(path)


def test_a_header_nested_too_deeply_is_refused(tmp_path):
    path = tmp_path / "map.safetensors"
    path.write_bytes(save({"state.x": torch.ones(3)}, metadata={"hrf": "[" * 100_000}))
    with pytest.raises(ValueError, match="malformed hrf header: RecursionError"):
        hrf.load(path)

"""Maps, coefficients and projections that a user defines are saved and loaded like the library's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hrf
from examples.centred import CentredPositive
from hrf import registry

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


def test_the_example_of_the_docs(path):
    phi = CentredPositive(4, n_projections=3)
    phi.save(path)
    copy = hrf.load(path)
    assert type(copy) is CentredPositive
    assert torch.equal(copy.queries(X), phi.queries(X))


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


def test_two_modules_with_a_class_of_one_name(path):
    first, second = twice(), twice("elsewhere")
    for cls in (first, second):
        cls(4, n_projections=3).save(path)
        assert type(hrf.load(path)) is cls


def test_a_module_that_was_renamed(path, classes):
    twice("old")(4, n_projections=3).save(path)
    new = twice("new")
    del classes["Twice"]["old"]
    assert type(hrf.load(path)) is new


def test_a_class_that_is_not_defined_is_named(path, classes):
    twice()(4, n_projections=3).save(path)
    del classes["Twice"]
    with pytest.raises(
        ValueError,
        match=r"needs the class Twice, which is not defined: import the module that defines Twice before hrf\.load "
        rf"\(it was {__name__} when the file was saved\)$",
    ):
        hrf.load(path)


def test_another_process_imports_the_module_first(path):
    CentredPositive(4, n_projections=3).save(path)
    load = f"import hrf; print(type(hrf.load({str(path)!r})).__name__)"

    def run(code: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
        )

    assert run(f"import examples.centred; {load}").stdout == "CentredPositive\n"
    assert "import the module that defines CentredPositive before hrf.load" in run(load).stderr


def test_what_a_file_cannot_hold_is_named(path):
    class WithType(hrf.Positive):
        def config(self):
            return super().config() | {"precision": torch.float64}

    class WithLayer(hrf.Positive):
        def config(self):
            return super().config() | {"layer": torch.nn.Linear(2, 2)}

    class WithoutConfig(hrf.FeatureMap):
        heads, dim, feature_dim = None, 4, 1

    with pytest.raises(
        TypeError, match=r"torch\.float64 of type dtype cannot be saved; expected numbers, strings"
    ):
        WithType(4, n_projections=2).save(path)
    with pytest.raises(TypeError, match=r"Linear cannot be saved; expected a feature map, a coefficient"):
        WithLayer(4, n_projections=2).save(path)
    with pytest.raises(
        NotImplementedError, match=r"WithoutConfig cannot be saved: it does not define config"
    ):
        WithoutConfig().save(path)
    assert not path.exists()

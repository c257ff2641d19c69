"""A cache of compiled functions that cannot be read or written, and a Numba that cannot be imported."""

from __future__ import annotations

import importlib.util
import sys
import warnings

import numba
import pytest
from numba.core import caching

from hrf._attention import loops as compiled

jit = importlib.import_module("hrf._attention.loops.jit")


@pytest.fixture
def double(tmp_path, monkeypatch):
    """Return a function that compiles ``x + x`` anew and calls it: the result and the warnings."""
    path = tmp_path / "toy.py"
    path.write_text("def double(x):\n    return x + x\n")
    spec = importlib.util.spec_from_file_location("toy", path)
    toy = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "toy", toy)
    spec.loader.exec_module(toy)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(jit, "_REASONS", [])

    def call():
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            found = jit.jit(toy.double)
            result = found(2.0), found(3)  # two types of arguments
        return result, [str(warning.message) for warning in seen], found

    return call


def test_a_function_comes_from_the_cache(double):
    assert double()[:2] == ((4.0, 6), [])
    result, warned, found = double()
    assert (result, warned) == ((4.0, 6), [])
    assert sum(found.stats.cache_hits.values()) == 2


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("content", [b"", b"nonsense", None, b"cno_such_module\nname\n."])
def test_damaged_files(double, tmp_path, kind, content):
    double()
    for path in (tmp_path / "cache").rglob(f"*.{kind}"):
        path.write_bytes(path.read_bytes()[:100] if content is None else content)
    result, warned, _ = double()
    assert result == (4.0, 6)
    assert len(warned) == 1
    assert warned[0].startswith("Numba's cache of compiled loops cannot be used (")
    result, warned, found = double()
    assert (result, warned) == ((4.0, 6), [])
    assert sum(found.stats.cache_hits.values()) == 2  # the cache is whole again


def full(*_):
    raise OSError(28, "No space left on device")


def test_no_space(double, monkeypatch):
    monkeypatch.setattr(caching.IndexDataCacheFile, "_open_for_write", full)
    result, warned, _ = double()
    assert result == (4.0, 6)
    assert len(warned) == 1
    assert "No space left on device" in warned[0]


def test_no_folder_can_be_written_to(double, monkeypatch):
    monkeypatch.setattr(caching._CacheLocator, "ensure_cache_path", full)
    result, warned, _ = double()
    assert result == (4.0, 6)
    assert len(warned) == 1
    assert "no locator available" in warned[0]


@pytest.mark.parametrize("error", [ImportError("needs NumPy 1.0"), OSError("libllvm.so: file too short")])
def test_a_numba_that_cannot_be_imported(error, monkeypatch):
    class Damaged:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "numba":
                raise error

    monkeypatch.delitem(sys.modules, "numba")
    monkeypatch.setattr(sys, "meta_path", [Damaged, *sys.meta_path])
    with pytest.warns(RuntimeWarning, match="Numba is installed but does not work"):
        assert not compiled.installed.__wrapped__()

"""``import hrf`` imports nothing heavy, and everything is there at its first use."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import hrf

HEAVY = [
    "dask",
    "distributed",
    "matplotlib",
    "numba",
    "pandas",
    "rich",
    "scipy.stats",
    "sklearn",
    "torch._dynamo",
    "transformers",
    "typer",
]


def python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(code: str, *names: str) -> list[str]:
    """Return the modules of these names that a new process has after running the code, and not after torch."""
    probe = "import sys, torch\nbefore = set(sys.modules)\n{}\nprint(*sorted(set(sys.modules) - before))"
    return [name for name in python("-c", probe.format(code)).split() if name in names]


def test_import_is_light():
    assert loaded_by("import hrf", *HEAVY, "hrf.features", "hrf.theory", "hrf._attention") == []


def test_a_map_is_light():
    code = "import hrf\nhrf.Positive(4, n_projections=2).queries(torch.randn(3, 4))"
    seen = "hrf.features.exponential"  # so that the probe is seen to work
    assert loaded_by(code, *HEAVY, "hrf.nn", "hrf.advice", seen) == [seen]


def test_version_and_help_need_no_torch():
    for option in ("--version", "--help"):
        code = f"""
import sys
sys.argv = ["hrf", "{option}"]
from hrf.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code
print("torch" in sys.modules, "hrf.cli.advise" in sys.modules)
"""
        assert python("-c", code).splitlines()[-1] == "False True"


def test_python_m():
    assert python("-m", "hrf", "--version") == f"hrf {hrf.__version__}\n"
    assert "Usage: hrf " in python("-m", "hrf", "--help")


def test_modules_are_there_without_an_import_of_their_own():
    code = "import hrf; print(hrf.theory.__name__, hrf.features.flops.__name__, hrf.coefficients.__name__)"
    assert python("-c", code) == "hrf.theory hrf.features.flops hrf.features.coefficients\n"


def test_names_are_those_that_type_checkers_see():
    tree = ast.parse(Path(hrf.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    for node in block.body:
        for alias in node.names:
            assert getattr(hrf, alias.name) is getattr(import_module(node.module), alias.name)
    assert sorted(alias.name for node in block.body for alias in node.names) == hrf.__all__


def test_all_names_are_listed_and_star_imports_them():
    code = "import hrf; print(set(hrf.__all__) <= set(dir(hrf))); from hrf import *; print(Positive, theory.__name__)"
    assert python("-c", code) == "True\n<class 'hrf.features.exponential.Positive'> hrf.theory\n"


def test_unknown_names():
    with pytest.raises(AttributeError, match="module 'hrf' has no attribute 'nothing'"):
        _ = hrf.nothing
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'hrf'"):
        from hrf import nothing  # noqa: F401


def test_files_and_pickles_are_read_before_anything_else_is_imported(tmp_path):
    """Classes that a file names are known, whichever name of hrf is used first."""
    phi = hrf.Hybrid(
        [hrf.OptimalPositive(4, n_projections=2), hrf.Trigonometric(4, n_projections=2)],
        [hrf.coefficients.Angular(4, n_projections=2)],
    )
    phi.save(tmp_path / "map.safetensors")
    (tmp_path / "map.pickle").write_bytes(pickle.dumps(phi))
    code = """
import sys, pathlib, pickle, torch
place = pathlib.Path(sys.argv[1])
a = pickle.loads((place / "map.pickle").read_bytes())
import hrf
b = hrf.load(place / "map.safetensors")
x = torch.randn(3, 4)
print(torch.equal(a.queries(x), b.queries(x)))
"""
    assert python("-c", code, str(tmp_path)) == "True\n"
    assert python("-c", code.replace("a = pickle", "a = b = pickle", 1), str(tmp_path)) == "True\n"


def test_names_of_hrf_stay_with_hrf(tmp_path):
    """A class of a user is refused under a name of hrf, even if nobody has used hrf's class yet."""
    code = f"""
from hrf.features.base import FeatureMap
from hrf.registry import name_of
class {hrf.GaussianMixture.__name__}(FeatureMap): pass
try:
    name_of(GaussianMixture)
except TypeError as error:
    print(error)
"""
    assert "has the name of one; rename it" in python("-c", code)

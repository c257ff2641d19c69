"""Names: `import hrf` is light, everything is there at its first use, and types list the words of options."""

from __future__ import annotations

import ast
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch

import hrf
from hrf import projections
from hrf._attention.denominator import RULES, Rule
from hrf.advice.candidates import UNITS, Unit
from hrf.advice.errors import OBJECTIVES, Objective
from hrf.features import clustered
from hrf.fitting import KINDS, DiagonalKind, MatrixKind
from hrf.nn import NAMES, MapName

HEAVY = ["dask", "distributed", "matplotlib", "numba", "pandas", "rich", "scipy.stats", "sklearn"]
HEAVY += ["torch._dynamo", "transformers", "typer"]


# One process imports torch, and forks for each snippet.
SCRIPT = """
import os, sys, torch
for code in sys.argv[1:]:
    if not (child := os.fork()):
        exec(code)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, code
    print(end="\\0", flush=True)
"""


def printed(*snippets: str) -> list[str]:
    """Return what each snippet prints, which finds torch, sys and os imported."""
    command = [sys.executable, "-c", SCRIPT, *snippets]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[:-1]


# What runs without anything of hrf imported.
LINES = {
    "import": "import hrf",
    "map": "import hrf\nhrf.Positive(4, n_projections=2).queries(torch.randn(3, 4))",
    "attention": """
import hrf
q = torch.ones(1, 1, 3, 4, requires_grad=True)
phi = hrf.Positive(4, n_projections=4)
hrf.attention(q, q, q, phi, is_causal=True).sum().backward()
hrf.AttentionState(phi).prefill(q, q, q)
""",
}
LOADED = "before = set(sys.modules)\n{}\nprint(*set(sys.modules) - before)"
ALL = """
import hrf; print(set(hrf.__all__) <= set(dir(hrf))); from hrf import *; print(Positive, theory.__name__)
print(hrf.features.flops.__name__, hrf.coefficients.__name__)
"""
PICKLE = "import pathlib, pickle; phi = pickle.loads(pathlib.Path({!r}).read_bytes())"
FILE = "import hrf; phi = hrf.load({!r})"
SUM = "\nprint(phi.queries(torch.ones(3, 4)).sum().item())"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A map, its file and its pickle."""
    bases = [hrf.OptimalPositive(4, n_projections=2), hrf.Trigonometric(4, n_projections=2)]
    phi = hrf.Hybrid(bases, [hrf.coefficients.Angular(4, n_projections=2)])
    folder = tmp_path_factory.mktemp("saved")
    phi.save(folder / "map.safetensors")
    (folder / "map.pickle").write_bytes(pickle.dumps(phi))
    return phi, str(folder / "map.safetensors"), str(folder / "map.pickle")


@pytest.fixture(scope="module")
def found(saved) -> dict[str, str]:
    _, file, pickled = saved
    snippets = {name: LOADED.format(lines) for name, lines in LINES.items()}
    snippets |= {"names": ALL, "file": FILE.format(file) + SUM, "pickle": PICKLE.format(pickled) + SUM}
    return dict(zip(snippets, printed(*snippets.values()), strict=True))


def test_import_and_a_map_are_light(found):
    loaded = {name: set(found[name].split()) for name in LINES}
    assert not loaded["import"] & {*HEAVY, "hrf.features", "hrf.theory", "hrf._attention"}
    seen = "hrf.features.exponential"  # so that the probe is seen to work
    assert loaded["map"] & {*HEAVY, "hrf.nn", "hrf.advice", seen} == {seen}
    assert not loaded["attention"] & {*HEAVY}  # the compiler among them
    assert "hrf._attention" in loaded["attention"]


def test_version_and_help_need_no_torch():
    code = """
import runpy, sys
for option in ("--help", "--version"):
    sys.argv = ["hrf", option]
    try:
        runpy.run_module("hrf", run_name="__main__")
    except SystemExit as stop:
        assert not stop.code
print("torch" in sys.modules, "hrf.cli.advise" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *help_text, version, loaded = done.stdout.splitlines()
    assert "Usage: hrf " in "\n".join(help_text)
    assert version == f"hrf {hrf.__version__}"
    assert loaded == "False True"


def test_names_are_those_that_type_checkers_see():
    tree = ast.parse(Path(hrf.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    for node in block.body:
        for alias in node.names:
            assert getattr(hrf, alias.name) is getattr(import_module(node.module), alias.name)
    assert sorted(alias.name for node in block.body for alias in node.names) == hrf.__all__


def test_all_names_are_listed_and_modules_need_no_import_of_their_own(found):
    expected = ["True", "<class 'hrf.features.exponential.Positive'> hrf.theory"]
    assert found["names"].splitlines() == [*expected, "hrf.features.flops hrf.features.coefficients"]


def test_unknown_names():
    with pytest.raises(AttributeError, match="module 'hrf' has no attribute 'nothing'"):
        _ = hrf.nothing
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'hrf'"):
        from hrf import nothing  # noqa: F401


@pytest.mark.parametrize("kind", ["file", "pickle"])
def test_files_and_pickles_are_read_before_anything_else_is_imported(kind, saved, found):
    """Classes that a file names are known, whichever name of hrf is used first."""
    assert float(found[kind]) == pytest.approx(saved[0].queries(torch.ones(3, 4)).sum().item(), rel=1e-6)


# Options with a fixed set of words.


TABLES = {
    "projection": (projections.ProjectionKind, projections.KINDS),
    "sampler": (projections.ProjectionKind, projections._SAMPLERS),
    "matrix": (MatrixKind, KINDS),
    "diagonal": (DiagonalKind, [kind for kind in KINDS if kind.endswith("diagonal")]),
    "base": (clustered.ClusterBase, clustered.BASES),
    "fit of a base": (clustered.ClusterBase, clustered._FIT),
    "features": (clustered.ResidualFeatures, clustered.FEATURES),
    "default": (clustered.DefaultMap, clustered.DEFAULTS),
    "unit": (Unit, UNITS),
    "objective": (Objective, OBJECTIVES),
    "denominator": (Rule, RULES),
    "map of a layer": (MapName, NAMES),
}


@pytest.mark.parametrize("option", TABLES)
def test_types_and_tables_have_the_same_words(option):
    words, table = TABLES[option]
    assert get_args(words) == tuple(table)


def test_maps_of_convert():
    pytest.importorskip("transformers")
    from hrf.integrations.transformers.conversion import FITS, FitName

    assert get_args(FitName) == tuple(FITS)


def public_callables() -> Iterator[Callable[..., Any]]:
    """Yield functions, constructors and methods that users can import from public modules."""
    modules = (hrf, hrf.coefficients, hrf.fitting, hrf.nn, hrf.sampling, hrf.theory, projections)
    for value in (getattr(module, name) for module in modules for name in module.__all__):
        if inspect.isfunction(value):
            yield value
        elif inspect.isclass(value) and value.__module__.startswith("hrf."):
            yield from (m for name, m in inspect.getmembers(value, inspect.isroutine) if is_own(name, m))


def is_own(name: str, member: Any) -> bool:
    """Whether a member is a constructor or public, and defined in this package."""
    own = getattr(member, "__module__", None) or ""
    return own.startswith("hrf.") and (name == "__init__" or not name.startswith("_"))


def literals(hint: Any) -> set[Any]:
    """Collect the words of a type hint, unions included."""
    if get_origin(hint) is Literal:
        return set(get_args(hint))
    return set().union(*(literals(part) for part in get_args(hint)), set())


def test_a_parameter_with_a_word_as_default_lists_its_words():
    found = 0
    for function in public_callables():
        for parameter in inspect.signature(function).parameters.values():
            if isinstance(parameter.default, str) and parameter.name != "name":  # for messages
                found += 1
                hint = get_type_hints(function)[parameter.name]
                assert parameter.default in literals(hint), (function, parameter.name)
    assert found > 10

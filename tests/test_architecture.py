"""The import graph: a module imports only from rooms that stand before its own in the flow of data."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import hrf

SOURCE = Path(hrf.__file__).parent

# Rooms in the order of the flow. `theory` comes before everything it is to witness.
ROOMS = ["checks", "atomic_write", "pages", "numerics", "registry", "tuning", "_core", "kernels", "theory"]
ROOMS += [
    "projections",
    "fitting",
    "features",
    "catalogue",
    "_attention",
    "choice",
    "sampling",
    "distributed",
    "nn",
]
ROOMS += ["report", "integrations", "advice", "learn", "read_arrays", "cli", "__main__"]


def imports(path: Path) -> set[str]:
    """Names of the hrf modules that a file imports, function bodies included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            module = node.module or ""
            found |= {f"{module}.{alias.name}" for alias in node.names} if module == "hrf" else {module}
    return {name for name in found if name == "hrf" or name.startswith("hrf.")}


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def against_the_flow(path: Path) -> Iterator[str]:
    """Imports of a file that its room may not have."""
    own = ROOMS.index(room(path))
    file = path.relative_to(SOURCE)
    for name in sorted(imports(path)):
        _, *parts = name.split(".")
        if not parts:
            if own < ROOMS.index("cli"):
                yield f"{file} imports all of hrf"
        elif parts[0] in ROOMS:
            if ROOMS.index(parts[0]) > own:
                yield f"{file} imports {name}, which comes after it"
        elif not hasattr(hrf, parts[0]):
            yield f"{file} imports the unknown {name}"
        elif own < ROOMS.index("cli"):
            yield f"{file} imports {name} from the top"


def test_imports_follow_the_flow():
    assert not [found for path in FILES for found in against_the_flow(path)]


def test_theory_is_an_independent_witness():
    for path in (SOURCE / "theory").glob("*.py"):
        for name in imports(path):
            assert name.split(".")[1] in ("theory", "kernels"), f"theory/{path.name} imports {name}"


def test_public_names_exist_and_are_sorted():
    assert list(hrf.__all__) == sorted(hrf.__all__)
    for name in hrf.__all__:
        assert hasattr(hrf, name)


def edges(path: Path, modules: dict[str, Path]) -> set[str]:
    """Modules that a file imports, function bodies included; ``from a import b`` is ``a.b`` where that is a module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else node.module for name in names}
    return found & set(modules)


def import_graph() -> dict[str, set[str]]:
    """Modules below ``src`` and the modules that each imports."""
    modules = {}
    for path in sorted(SOURCE.parent.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: edges(path, modules) - {name} for name, path in modules.items()}


def in_cycles(graph: dict[str, set[str]]) -> set[str]:
    """Nodes from which some way leads back to themselves."""
    reached = {node: set(successors) for node, successors in graph.items()}
    for middle in graph:
        for node in graph:
            if middle in reached[node]:
                reached[node] |= reached[middle]
    return {node for node in graph if node in reached[node]}


def test_cycles_are_found():
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"b"}, "d": set()}
    assert in_cycles(graph) == {"b", "c"}


def test_no_import_cycles():
    assert not in_cycles(import_graph())

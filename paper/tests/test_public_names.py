"""The paper's package is a user of the library: it touches public names of `hrf` only."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import hrf
import hrf_paper

SOURCE = Path(hrf_paper.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def private_modules_and_names(tree: ast.AST) -> list[str]:
    """Names that a file imports from hrf and that are not public: underscores, or missing from ``__all__``."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names if alias.name.split(".")[0] == "hrf"]
            found += [name for name in modules if name != "hrf" and not is_public_module(name)]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hrf":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if not is_public_module(node.module) or not is_exported(node.module, alias.name):
                    found.append(name)
    return found


def is_public_module(name: str) -> bool:
    """Whether all parts of a dotted name are public, and it leads to a module with ``__all__``."""
    if any(is_private(part) for part in name.split(".")):
        return False
    return hasattr(importlib.import_module(name), "__all__")


def is_exported(module: str, name: str) -> bool:
    return name in importlib.import_module(module).__all__ or (module, name) == ("hrf", "__version__")


def private_attributes(tree: ast.AST) -> list[str]:
    """Accesses ``x._name`` where x is neither ``self`` nor ``cls``."""
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and is_private(node.attr)
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]


def private_from_hrf(tree: ast.AST) -> list[str]:
    """Accesses ``hrf.name`` that ``hrf.__all__`` does not have."""
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "hrf"
        and node.attr not in (*hrf.__all__, "__version__")
    ]


CHECKS = (private_modules_and_names, private_attributes, private_from_hrf)


def test_only_public_names_are_used():
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for check in CHECKS:
            assert check(tree) == [], path.relative_to(SOURCE)


@pytest.mark.parametrize(
    "line",
    [
        "import hrf._attention",
        "from hrf._attention import dispatch",
        "from hrf import _attention",
        "from hrf.projections import check_count",
        "from hrf.features.hybrid import _Bases",
        "phi._estimate(x, y)",
        "phi.inner._rows[2]",
        "hrf.advice.candidates.seconds(phi, x)",
    ],
)
def test_private_names_are_found(line):
    assert any(check(ast.parse(line)) for check in CHECKS)


@pytest.mark.parametrize(
    "line",
    [
        "import hrf",
        "from hrf import theory",
        "from hrf.report import number",
        "self._held",
        "phi.__class__",
        "hrf.kernels.softmax(x, y)",
    ],
)
def test_public_names_pass(line):
    assert not any(check(ast.parse(line)) for check in CHECKS)

"""Rules of the house that a machine can check: sizes of files and functions, names, private members."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
CODE = sorted(
    path
    for folder in ("src", "paper/src", "benchmarks", "examples", "tools", "docs")
    for path in (ROOT / folder).rglob("*.py")
)
TESTS = sorted(path for folder in ("tests", "paper/tests") for path in (ROOT / folder).rglob("*.py"))
SOURCE = [path for path in CODE if "src" in path.relative_to(ROOT).parts]

MOST_LINES, MOST_FUNCTION_LINES, MEDIAN_FUNCTION_LINES = 600, 60, 10
# A kernel is one function: what it holds in registers cannot be returned from its loops.
MOST_KERNEL_LINES = 150
# Members of named tuples, which are public, and of tensors and modules of PyTorch and Transformers, which have no other
# name.
PUBLIC = {"_replace", "_fields", "_asdict", "_make"}
PUBLIC |= {"_parameters", "_buffers", "_modules", "_version", "_attn_implementation"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)]


def lines(function: ast.FunctionDef) -> int:
    """Lines of the body, without signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_files_are_short():
    sizes = {name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in CODE + TESTS}
    assert not {file: size for file, size in sizes.items() if size > MOST_LINES}


def test_functions_are_short():
    sizes = {(name(path), function.name): lines(function) for path in CODE for function in functions(path)}
    kernels = {
        (name(path), function.name)
        for path in CODE
        for function in functions(path)
        if any(ast.unparse(decorator) == "triton.jit" for decorator in function.decorator_list)
    }
    most = {function: MOST_KERNEL_LINES if function in kernels else MOST_FUNCTION_LINES for function in sizes}
    assert not {function: size for function, size in sizes.items() if size > most[function]}


def test_most_functions_are_very_short():
    assert median(lines(function) for path in SOURCE for function in functions(path)) < MEDIAN_FUNCTION_LINES


def test_no_two_classes_of_one_name():
    """All of ``hrf`` is one package; each folder of ``hrf_paper`` is one, too."""
    found: dict[Path, Counter[str]] = defaultdict(Counter)
    for path in SOURCE:
        package = ROOT / "src" / "hrf" if path.is_relative_to(ROOT / "src" / "hrf") else path.parent
        found[package].update(node.name for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef))
    repeated = [(name(package), cls) for package, names in found.items() for cls in names if names[cls] > 1]
    assert not repeated


@cache
def private_names(room: Path) -> set[str]:
    """Names with an underscore that a room defines: functions, and attributes that are assigned to."""
    paths = room.rglob("*.py") if room.is_dir() else [room]
    nodes = [node for path in paths for node in ast.walk(tree(path))]
    found = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    return found | {
        node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }


def room_of(path: Path) -> Path:
    package, room, *_ = path.relative_to(ROOT / "src").parts
    return ROOT / "src" / package / room


def foreign_private_members(path: Path) -> Iterator[str]:
    """Private members that a file reaches for and that its room does not define."""
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
            continue
        owner = ast.unparse(node.value)
        if owner in ("self", "cls", "torch", "super()") or owner.startswith("torch.") or node.attr in PUBLIC:
            continue
        if node.attr not in private_names(room_of(path)):
            yield f"{name(path)}:{node.lineno} reaches for {ast.unparse(node)}"


def test_no_private_member_of_another_room():
    assert not [found for path in SOURCE for found in foreign_private_members(path)]

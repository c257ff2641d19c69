"""The map of the house in CONTRIBUTING.md shows the code as it is."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import house_map

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_map_is_drawn_from_the_code():
    """In a process of its own, where Numba can be hidden."""
    command = [sys.executable, "-m", "tools.house_map", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def listed_rooms() -> list[str]:
    """Paths in the first column of the table of rooms, without their slash."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = re.search(r"\| room \|.*?\n\n", text, flags=re.DOTALL)[0]
    cells = [row.split("|")[1] for row in table.strip().splitlines()[2:]]
    return [room.rstrip("/") for cell in cells for room in re.findall(r"`([^`]+)`", cell)]


def test_listed_rooms_exist():
    for room in listed_rooms():
        assert (ROOT / room).is_dir() or (ROOT / f"{room}.py").is_file(), room


@pytest.mark.parametrize("package", ["src/hrf", "src/hrf_paper"])
def test_all_rooms_are_listed(package):
    entries = [path for path in (ROOT / package).iterdir() if not path.name.startswith(("__", "py.typed"))]
    rooms = listed_rooms()
    for path in entries:
        name = f"{package}/{path.name.removesuffix('.py')}"
        assert any(room == name or room.startswith(f"{name}/") for room in rooms), f"{name} is not listed"


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A house of three files in which a calls b, b calls back, and all go through the contract."""
    package = tmp_path / "hrf" / "features"
    package.mkdir(parents=True)
    (tmp_path / "hrf" / "a.py").write_text(
        "import b, base\n"
        "def start(): return list(step(i) for i in range(2))\n"
        "def step(i): return b.work(finish) if i else base.check()\n"
        "def finish(): return base.check()\n"
        "class Room:\n"
        "    @property\n"
        "    def size(self): return 3\n"
        "    def measure(self): return 3\n"
    )
    (tmp_path / "hrf" / "b.py").write_text("def work(then): return then()\n")
    (package / "base.py").write_text("import b\ndef check(): return b.work(bool)\n")
    for folder in (package, tmp_path / "hrf"):
        monkeypatch.syspath_prepend(str(folder))
    yield tmp_path
    for name in ("a", "b", "base"):
        sys.modules.pop(name, None)


def test_the_deepest_stack_is_found(house):
    found = house_map.trace(importlib.import_module("a").start, house)
    assert [function for _, function in found.deepest] == [
        "start",
        "<genexpr>",
        "step",
        "work",
        "finish",
        "check",
        "work",
    ]
    assert [function for _, function in found.way] == ["start", "step", "work", "finish", "check", "work"]
    assert house_map.hops(found.deepest) == ["a.py", "b.py", "a.py", "features/base.py", "b.py"]
    assert found.files == {"a.py", "b.py", "features/base.py"}


def test_back_and_forth_is_found_unless_through_the_contract(house):
    found = house_map.trace(importlib.import_module("a").start, house)
    assert found.back_and_forth == {("a.py", "b.py")}


def test_back_and_forth_and_depth_are_complained_about(house):
    found = house_map.trace(importlib.import_module("a").start, house)
    assert house_map.complaints({"`advise`": found}) == ["`advise` goes back and forth: a.py → b.py → a.py"]
    deep = house_map.Trace(deepest=[("a.py", f"f{i}") for i in range(house_map.DEEPEST_ATTENTION + 1)])
    (said,) = house_map.complaints({"`attention`, `Positive`": deep, "`advise`": deep})
    assert said.startswith("`attention`, `Positive` is 10 calls deep: a.py: f0 → a.py: f1")
    deep.deepest.pop()
    assert not house_map.complaints({"`attention`, `Positive`": deep})


def test_the_way_does_not_end_in_a_property(house):
    room = importlib.import_module("a").Room()
    found = house_map.trace(lambda: (room.size, room.measure()), house)
    assert found.deepest == [("a.py", "size")]
    assert found.way == [("a.py", "measure")]


def test_returns_to_the_contract_are_not_shown():
    files = ["features/base.py", "features/hybrid.py", "features/base.py", "features/hybrid.py", "kernels.py"]
    assert house_map.shown([(file, "f") for file in files]) == [files[0], files[1], files[4]]


def test_a_page_without_a_place_is_refused():
    with pytest.raises(ValueError, match="0 places for the map"):
        house_map.filled("no markers", "map")

"""Two source trees are timed in alternation, and slower cases are named."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from benchmarks import compare, worker
from benchmarks.compare import ROOT, Comparison


class Clock:
    """A worker whose calls take known times."""

    def __init__(self, name: str, log: list[str], seconds: float = 1.0, error: str = "") -> None:
        self.name, self.log, self.seconds, self.error = name, log, seconds, error

    def ask(self, **request: int) -> float:
        if self.error:
            raise RuntimeError(self.error)
        if "calls" in request:
            self.log.append(self.name)
        return self.seconds


def test_trees_take_turns_and_the_first_place_changes():
    log: list[str] = []
    found = compare.compare(0, Clock("old", log, 2.0), Clock("new", log, 1.0), 3, 60)
    assert log == ["new", "old", "old", "new", "new", "old"]
    assert found.ratios == [0.5] * 3
    assert not found.slower


def test_the_budget_of_time_ends_the_rounds_but_not_before_five():
    log: list[str] = []
    assert len(compare.compare(0, Clock("old", log), Clock("new", log), 50, 0).old) == 5


def test_a_case_that_fails_with_one_tree_is_not_compared():
    found = compare.compare(0, Clock("old", [], error="TypeError: unknown"), Clock("new", []), 3, 60)
    assert found.problem == "TypeError: unknown"
    assert not found.slower
    assert found.to_dict()["problem"] == "TypeError: unknown"


@pytest.mark.parametrize(
    ("new", "slower"),
    [
        ((1.10, 1.08, 1.09, 1.07), True),
        ((1.04, 1.04, 1.04, 1.04), False),
        ((1.0, 1.0, 1.3, 1.3), False),
        ((0.5, 0.5, 0.5, 0.5), False),
    ],
)
def test_slower_is_more_than_five_percent_beyond_the_quartiles(new, slower):
    found = Comparison("group", "case", (1.0,) * 4, new)
    assert found.slower is slower
    assert found.to_dict()["slower"] is slower
    console = Console(file=io.StringIO(), width=120)
    compare.show(console, [found, Comparison("group", "other", problem="an error")])
    text = console.file.getvalue()
    assert f"{int(slower)} of 1 cases are slower" in text
    assert ("slower: group/case" in text) is slower
    assert "Not compared: group/other: an error" in text


def test_only_the_own_cases_are_timed():
    names = [f"{case.group}/{case.name}" for case in worker.CASES]
    assert len(set(names)) == len(names) > 50
    for peer in ("performer", "scikit-learn", "naive", "bare", "exact (scaled", "full softmax", "plain"):
        assert not any(peer in name for name in names), peer
    assert all(case.requires is None for case in worker.CASES)


def test_a_folder_without_the_package_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        compare.main([str(tmp_path)])
    assert stop.value.code == 2
    assert "has no package hrf in it" in capsys.readouterr().err


@pytest.mark.slow
def test_a_tree_against_itself(tmp_path, capsys):
    arguments = ["--only", "angularhybrid, one token", "--rounds", "1", "--threads", "1"]
    assert compare.main([str(ROOT / "src"), *arguments, "--out", str(tmp_path)]) in (0, 1)
    assert "AngularHybrid, one token decoded" in capsys.readouterr().out
    (case,) = json.loads((tmp_path / "compare.json").read_text(encoding="utf-8"))["cases"]
    assert len(case["old"]) == len(case["new"]) == 1
    assert case["ratio"] == pytest.approx(case["new"][0] / case["old"][0])

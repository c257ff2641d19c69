"""Interrupted runs: finished parts, locks, signals."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from hrf import cli
from hrf_paper.experiments.experiment import Experiment
from hrf_paper.experiments.registry import EXPERIMENTS
from hrf_paper.resume import FinishedParts, only_run

# Finished parts as files: read back, and refused if they were edited.


def test_finished_parts(tmp_path):
    kept = FinishedParts(tmp_path, {"name": "x"})
    assert len(kept) == 0
    assert "a" not in kept
    kept["a"], kept["b"] = {"value": 0.1}, {"value": [1, 2]}
    assert sorted(FinishedParts(tmp_path, {"name": "x"})) == ["a", "b"]
    assert FinishedParts(tmp_path, {"name": "x"})["a"] == {"value": 0.1}
    assert "a" not in FinishedParts(tmp_path, {"name": "y"})
    kept["c"] = {1: (0.5, float("nan"))}  # JSON has texts and lists in their place
    assert list(kept["c"]) == ["1"]
    del kept["c"], kept["a"]
    assert list(kept) == ["b"]
    kept.clear()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("was", "edited"), [("0.1", "0.2"), ('"a"', '"b"'), ('"sha256"', '"sha"'), ("{", "")]
)
def test_edited_parts_are_refused(was, edited, tmp_path):
    kept = FinishedParts(tmp_path, {"name": "x"})
    kept["a"] = {"value": 0.1}
    (path,) = kept.place.iterdir()
    path.write_text(path.read_text().replace(was, edited, 1))
    for read in (lambda: kept["a"], lambda: list(kept)):
        with pytest.raises(
            ValueError, match="is damaged or was edited: remove it, and the same command computes"
        ):
            read()


# Runs that are interrupted, resumed, damaged in between, or started twice.

NAMES = ["first", "second", "third"]


@dataclass(frozen=True)
class Settings:
    seed: int = 0


class Toy:
    """Parts that count themselves; Ctrl-C comes instead of the part ``stop``."""

    def __init__(self, stop: str | None = None) -> None:
        self.stop, self.ran = stop, []

    def parts(self, settings):
        return {name: lambda name=name: self.part(name) for name in NAMES}

    def part(self, name):
        if name == self.stop:
            raise KeyboardInterrupt
        self.ran.append(name)
        return {"value": len(name)}


def run(toy, place, monkeypatch):
    experiment = Experiment(
        name="toy",
        title="a toy",
        source="nowhere",
        full=Settings(),
        quick=Settings(),
        parts=toy.parts,
        tables=lambda *_: [],
        claims=lambda *_: [],
        figure=lambda *_: Figure(),
    )
    monkeypatch.setitem(EXPERIMENTS, "toy", experiment)
    return CliRunner().invoke(cli.application(), ["reproduce", "toy", "--out", str(place)])


def kept_files(place):
    return sorted((place / ".parts").glob("*/*.json"))


def test_ctrl_c_says_what_is_kept_and_how_to_resume(tmp_path, monkeypatch):
    result = run(Toy(stop="third"), tmp_path, monkeypatch)
    assert (result.exit_code, result.stdout) == (130, "")
    folder = kept_files(tmp_path)[0].parent
    assert result.stderr == (
        f"hrf: interrupted: {folder} keeps 2 of 3 parts of toy; run the same command again to resume\n"
    )


def test_ctrl_c_before_the_first_part(tmp_path, monkeypatch):
    result = run(Toy(stop="first"), tmp_path, monkeypatch)
    assert result.exit_code == 130
    assert result.stderr == (
        "hrf: interrupted: no part of toy was finished; run the same command again to resume\n"
    )


def test_a_rerun_says_what_it_reused(tmp_path, monkeypatch):
    run(Toy(stop="third"), tmp_path, monkeypatch)
    toy = Toy()
    result = run(toy, tmp_path, monkeypatch)
    assert result.exit_code == 0, result.output
    assert toy.ran == ["third"]
    assert result.stdout.startswith("toy: reused from an earlier run, 2 of 3 parts: first; second\n")
    assert "earlier run" not in run(Toy(), tmp_path, monkeypatch).stdout


@pytest.mark.parametrize(
    "content", [b"", b'{"name": "first", "par', b"[]", b"\xff\xfe", b"[" * 100_000, b'{"a": 1}']
)
def test_a_damaged_part_is_named(content, tmp_path, monkeypatch):
    run(Toy(stop="second"), tmp_path, monkeypatch)
    (path,) = kept_files(tmp_path)
    path.write_bytes(content)
    toy = Toy()
    result = run(toy, tmp_path, monkeypatch)
    assert (result.exit_code, toy.ran) == (2, [])
    assert result.stderr == (
        f"hrf: {path} is damaged or was edited: remove it, and the same command computes this part again\n"
    )
    path.unlink()
    assert run(toy, tmp_path, monkeypatch).exit_code == 0
    assert toy.ran == NAMES


def test_names_of_damaged_parts(tmp_path):
    kept = FinishedParts(tmp_path, {})
    kept["a"] = {}
    kept_files(tmp_path)[0].write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        list(kept)


def test_a_second_run_in_the_same_folder_is_refused(tmp_path, monkeypatch):
    run(Toy(stop="third"), tmp_path, monkeypatch)
    before = [path.read_bytes() for path in kept_files(tmp_path)]
    code = (
        "import sys, pathlib; from hrf_paper.resume import only_run\n"
        "with only_run(pathlib.Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], **pipes) as other:
        assert other.stdout.readline() == b"locked\n"
        toy = Toy()
        result = run(toy, tmp_path, monkeypatch)
        assert (result.exit_code, result.stdout, toy.ran) == (2, "", [])
        assert result.stderr == (
            f"hrf: process {other.pid} is running experiments in {tmp_path}; wait for it, or choose another "
            "directory with --out\n"
        )
        assert [path.read_bytes() for path in kept_files(tmp_path)] == before
        other.kill()  # without a chance to clean up
    assert (tmp_path / ".lock").read_text() == f"{other.pid}\n"
    assert run(toy, tmp_path, monkeypatch).exit_code == 0
    assert toy.ran == ["third"]
    assert not (tmp_path / ".lock").exists()


def enter(place, count, turns):
    """Take the lock ``turns`` times; while it is held, nobody else may be inside."""
    while turns:
        try:
            with only_run(place):
                with count.get_lock():
                    count.value += 1
                assert count.value == 1
                with count.get_lock():
                    count.value -= 1
            turns -= 1
        except ValueError:
            os.sched_yield()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_only_one_process_is_inside(tmp_path):
    context = multiprocessing.get_context("fork")
    count = context.Value("i", 0)
    processes = [context.Process(target=enter, args=(tmp_path, count, 200)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]

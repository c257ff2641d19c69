"""Every example runs: doctests, snippets of README.md and of the docs, the notebook, the scripts."""

from __future__ import annotations

import doctest
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel

import hrf
from benchmarks import minilm as data
from docs.hooks.includes import expand
from examples import minilm, minilm_summarised
from examples.demo import rows
from examples.distributed import measure
from ranked.processes import run

ROOT = Path(__file__).parent.parent

MODULES = ["hrf", *(m.name for m in pkgutil.walk_packages(hrf.__path__, "hrf."))]

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SLOW = {"kernel-methods.md", "which-map.md", "transformers.md"}


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name):
    torch.manual_seed(0)
    if "._attention.triton." in name:
        pytest.importorskip("triton", reason="Triton is not installed: make triton")
    module = importlib.import_module(name)
    failures, _ = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failures == 0


@pytest.mark.parametrize(
    "page", [pytest.param(p, id=p.name, marks=[pytest.mark.slow] * (p.name in SLOW)) for p in PAGES]
)
def test_snippets_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace: dict = {"__name__": page.stem}
    text = expand(page.read_text(encoding="utf-8"))
    for snippet in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(snippet, namespace)


@pytest.mark.slow
def test_the_notebook_runs_and_stores_no_outputs(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    notebook = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text(encoding="utf-8"))
    namespace: dict = {"__name__": "quickstart"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec("".join(cell["source"]), namespace)
    assert namespace["error"] < 0.1
    namespace["plt"].close("all")


def test_numbers_that_the_theory_page_states():
    """Comments behind a line say what it evaluates to."""
    text = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    namespace: dict = {}
    exec(snippet, namespace)
    stated = re.findall(r"^(1 / \w+)\s+# ([\d.]+)", snippet, flags=re.MULTILINE)
    assert len(stated) == 2
    for expression, value in stated:
        assert f"{float(eval(expression, namespace)):.{len(value.split('.')[1])}f}" == value


def test_the_error_that_the_readme_states(capsys):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    snippet = re.search(r"```python\n(.*?)```", text, flags=re.DOTALL)[1]
    (stated,) = re.findall(r"print\(.*\)  # ([\d.]+)", snippet)
    exec(snippet, {"__name__": "readme"})
    received = float(capsys.readouterr().out.split()[-1])
    assert abs(received - float(stated)) <= 0.01
    assert received < 0.1


def test_files_that_the_readme_points_to_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"`(docs/[^`]+)`", text):
        assert (ROOT / target).exists(), target


# A small model and made-up text in place of MiniLM and WikiText-2.


def tokenizer(text, *, truncation, max_length, return_tensors):
    return {"input_ids": torch.tensor([[ord(c) % 40 for c in text[:max_length]]])}


@pytest.fixture
def small(monkeypatch):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = BertModel(BertConfig(vocab_size=40, initializer_range=0.3, **sizes)).eval()
    text = "\n".join("".join(map(chr, line)) for line in torch.randint(60, 100, (60, 100)).tolist())
    monkeypatch.setattr(data, "load", lambda: (tokenizer, deepcopy(model)))  # as a file would give it, anew
    monkeypatch.setattr(data, "read_text", lambda split, name="wikitext2": text)
    monkeypatch.setattr(data, "N_LAYERS", 2)
    changes = {"FIT_PASSAGES": 2, "TEST_PASSAGES": 4, "MEASURED": 2, "SHORTEST": 40, "LONGEST": 80}
    monkeypatch.setattr(minilm, "best_times", partial(minilm.best_times, rounds=1, budget=0))
    for name, value in (changes | {"LENGTHS": (16, 100)}).items():
        monkeypatch.setattr(minilm, name, value)
    shorter = {"PASSAGES": 8, "SHORTEST": 260, "LONGEST": 300, "LONG_PASSAGES": 2, "LONG": 600, "WINDOW": 300}
    for name, value in shorter.items():
        monkeypatch.setattr(minilm_summarised, name, value)


@pytest.mark.slow
def test_prints_and_records_a_line_for_every_map(small, capsys, tmp_path):
    assert minilm.main(["--out", str(tmp_path)]) == 0
    quality, times = capsys.readouterr().out.split("Exact attention takes")
    recorded = json.loads((tmp_path / "minilm.json").read_text())
    for candidate in minilm.CANDIDATES:
        assert candidate.name in quality
        assert candidate.name in times
        assert -1 <= recorded["quality"][candidate.name]["mean"] <= 1 + 1e-9
        assert [*recorded["times"][candidate.name]] == ["16", "100"]


def test_summarised_attention_is_measured_on_both_texts(small, capsys, tmp_path):
    assert minilm.main(["summarised", "long", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    recorded = json.loads((tmp_path / "minilm.json").read_text())
    for part in ("summarised", "long"):
        for text, title in data.TEXTS.items():
            assert title in printed
            found = recorded[part][text]
            shares = [found[f"tolerance {tolerance}"]["exact_share"] for tolerance in ("1", "2", "inf")]
            assert shares == sorted(shares, reverse=True)
            assert shares[-1] == 0
            assert all(-1 <= row["least"] <= row["mean"] <= 1 + 1e-6 for row in found.values())


def test_a_lost_neighbour_is_counted_with_its_margin():
    def at(*degrees):
        angles = torch.tensor(degrees).double().deg2rad()
        return torch.stack([angles.cos(), angles.sin()], -1)

    exact, moved = at(0, 10, -11, 60), at(0, 12, -11, 60)
    found = minilm_summarised.compared(moved, exact)
    # The first point loses its neighbour; those of all other points stay.
    assert found["same_neighbour"] == 0.75
    ten, eleven = at(0, 10, 11).mT[0, 1:].tolist()
    assert found["margin_of_changed"] == pytest.approx(ten - eleven)
    assert found["least"] == pytest.approx(float(at(0, 2)[1, 0]))


# Attention over processes.


@pytest.mark.slow
def test_differences_are_rounding_and_bytes_do_not_grow():
    first, second = run(2, measure, (64, 128))
    assert first == second
    assert len(first) == 12
    for short, long in zip(first[::2], first[1::2], strict=True):
        assert (short.name, short.is_causal, short.length) == (long.name, long.is_causal, 64)
        assert short[5:] == long[5:]
        for row in (short, long):
            assert row.outputs < 1e-8  # float64 through a few cancellations
            assert row.gradients < 1e-8


@pytest.mark.slow
def test_started_by_torchrun():
    command = (
        "-m torch.distributed.run --standalone --nproc-per-node 2 -m examples.distributed --lengths 64 128"
    )
    done = subprocess.run(
        [sys.executable, *command.split()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "2 processes against one" in done.stdout
    lines = [line for line in done.stdout.splitlines() if "Positive" in line]
    assert [sum(f" {length} " in line for line in lines) for length in (64, 128)] == [2, 2]


def test_maps_are_better_than_uniform_weights():
    found = {name: error for name, error, _ in rows(length=512, rounds=1)}
    exact, *approximate, uniform = found.values()
    assert exact == 0
    assert max(approximate) < uniform / 2

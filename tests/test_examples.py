"""Every example runs: the doctests of all modules, the snippets of README.md and of the docs, the notebook."""

from __future__ import annotations

import doctest
import importlib
import json
import pkgutil
import re
from pathlib import Path

import pytest
import torch

import hrf
from docs.hooks.includes import expand

ROOT = Path(__file__).parent.parent
MODULES = ["hrf", *(m.name for m in pkgutil.walk_packages(hrf.__path__, "hrf."))]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name):
    torch.manual_seed(0)
    module = importlib.import_module(name)
    failures, _ = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failures == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_snippets_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace: dict = {"__name__": page.stem}
    text = expand(page.read_text(encoding="utf-8"))
    for snippet in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(snippet, namespace)


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
    stated = re.findall(r"^(hrf\.theory\..*?)\s+# ([\d.]+)", text, flags=re.MULTILINE)
    assert len(stated) == 2
    for expression, value in stated:
        assert f"{float(eval(expression)):.{len(value.split('.')[1])}f}" == value


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

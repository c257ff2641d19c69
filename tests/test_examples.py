"""Every example runs: doctests of all modules, and the snippets of the README and of the docs."""

from __future__ import annotations

import doctest
import importlib
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


def test_numbers_that_the_readme_prints():
    """Comments behind a line say what it evaluates to."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    printed = re.findall(r"^(hrf\.theory\..*?)\s+# ([\d.]+)", text, flags=re.MULTILINE)
    assert len(printed) == 2
    for expression, value in printed:
        assert f"{float(eval(expression)):.{len(value.split('.')[1])}f}" == value


def test_files_that_the_readme_points_to_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!http)([^)#]+)\)|`(docs/[^`]+)`", text):
        assert (ROOT / (target[0] or target[1])).exists(), target

"""Any arguments of the command: it succeeds, or says in one sentence what is wrong."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hrf import cli
from properties.strategies import cases

words = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)
numbers = st.one_of(
    st.integers(-3, 70).map(str),
    st.floats(width=32).map(str),
    st.sampled_from(["", "0", "-1", "1e999", "nan", "inf", "9" * 40, "1e-320", "0x10", "١"]),
)
# Norms of tables that were never scaled, constants, single rows and columns.
TABLES = {
    "wine.npy": lambda rng: 500 * rng.random((40, 3)),
    "large.npy": lambda rng: 50 * rng.standard_normal((40, 3)),
    "huge.npy": lambda rng: 1e200 * rng.standard_normal((40, 3)),
    "tiny.npy": lambda rng: 1e-200 * rng.standard_normal((40, 3)),
    "images.npy": lambda rng: rng.integers(0, 256, (40, 3), dtype=np.uint8),
    "zeros.npy": lambda rng: np.zeros((40, 3)),
    "plain.npy": lambda rng: rng.standard_normal((40, 3)) / 2,
    "same.npy": lambda rng: np.ones((40, 3)),
    "two.npy": lambda rng: rng.standard_normal((2, 3)),
    "one.npy": lambda rng: rng.standard_normal((1, 3)),
    "column.npy": lambda rng: rng.standard_normal((40, 1)),
    "empty.npy": lambda rng: np.zeros((0, 3)),
    "nan.npy": lambda rng: np.full((4, 3), np.nan),
    "flat.npy": lambda rng: np.zeros(7),
}
tables = st.sampled_from([*TABLES, "missing.npy", ".", "text.csv"])


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patches:
        patches.chdir(name)
        for file, table in TABLES.items():
            np.save(file, table(np.random.default_rng(0)))
        Path("text.csv").write_text("a,b\n1,2\n3,x\n", encoding="utf-8")
        yield name


def check(arguments: list[str]) -> None:
    """Run the command: exit code 0, or 2 with words on stderr; an error that is not caught is raised here."""
    result = CliRunner().invoke(cli.application(), arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 2), (result.exit_code, result.output)
    if result.exit_code == 2:
        said = result.stderr or result.stdout
        assert said.strip()
        assert "Traceback" not in said
        if said.startswith("hrf: "):
            assert len(said.strip().splitlines()) == 1, said


def options(**values: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    """Draw a list of ``--name=value``, none for most names."""
    one = st.one_of([value.map(lambda v, n=name: f"--{n}={v}") for name, value in values.items()])
    return st.lists(one, max_size=3)


@given(
    st.lists(tables, max_size=3),
    options(
        values=tables,
        budget=numbers,
        unit=st.sampled_from(["width", "flops", "dollars", ""]),
        objective=st.sampled_from(["output", "attention", "kernel", "x"]),
        scale=numbers,
        length=numbers,
        seed=numbers,
    ),
)
@cases(4)
def test_advise_with_any_arguments(folder, files, chosen):
    check(
        ["advise", "--out=advice", "--budget=8", *chosen, "--", *files] if files else ["advise", *chosen, "x"]
    )


@pytest.mark.slow
@given(
    st.sampled_from([name for name in TABLES if name not in ("empty.npy", "nan.npy", "flat.npy")]),
    st.sampled_from([name for name in TABLES if name not in ("empty.npy", "nan.npy", "flat.npy")]),
    st.sampled_from(["attention", "kernel"]),
    st.integers(0, 2**40),
)
@cases(0.3)  # seconds each
def test_advise_on_any_numbers(folder, queries, keys, objective, seed):
    check(
        ["advise", queries, keys, "--budget=8", f"--seed={seed}", f"--objective={objective}", "--out=advice"]
    )


@given(
    st.lists(
        st.sampled_from(["angles", "lambda", "all", "--list", "--quick", "--full", "-h"]) | words, max_size=4
    ),
    options(seed=numbers, out=words.map(lambda word: f"out{word}")),
)
@cases(4)
def test_reproduce_with_any_arguments(folder, names, chosen):
    with patch("hrf_paper.runner.reproduce", return_value=None):  # arguments only: experiments take minutes
        check(["reproduce", *names, *chosen])


@given(st.lists(words | st.sampled_from(["--version", "--help", "-h", "advise", "reproduce"]), max_size=3))
@cases(2)
def test_the_command_with_any_words(folder, arguments):
    with patch("hrf_paper.runner.reproduce", return_value=None):
        if arguments != ["advise"]:  # the built-in data, at its full budget
            check(arguments)

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import hrf
from hrf import cli, read_arrays
from hrf.report import one_sentence


def run(*arguments: str):
    return CliRunner().invoke(cli.application(), arguments)


@pytest.fixture(scope="module")
def advised(tmp_path_factory):
    """The built-in data, on a small budget."""
    out = tmp_path_factory.mktemp("advice")
    result = run("advise", "--budget", "32", "--out", str(out))
    assert result.exit_code == 0, result.output
    return result, out


def test_advise_on_the_built_in_data(advised):
    result, out = advised
    assert result.stderr == ""
    names = {"advice.png", "advice.json", "best.safetensors", "report.html"}
    assert {path.name for path in out.iterdir()} == names
    stored = json.loads((out / "advice.json").read_text(encoding="utf-8"))
    assert stored["settings"]["n_queries"] == stored["settings"]["n_keys"] == 89
    assert stored["warning"] is None
    name = stored["ranking"][0]["name"]
    assert f"{name} has the smallest error" in " ".join(result.stdout.split())
    for name in names:
        assert str(out / name) in result.stdout.replace("\n", "")


def test_the_advised_map_opens(advised):
    _, out = advised
    queries, keys = read_arrays.wine(0)
    phi = hrf.load(out / "best.safetensors")
    exact, estimate = hrf.kernels.softmax(queries, keys), phi.estimate(queries, keys)
    assert float((estimate / exact - 1).abs().median()) < 0.5


def test_the_page_stands_alone_and_its_snippet_runs(advised, monkeypatch):
    _, out = advised
    text = (out / "report.html").read_text(encoding="utf-8")
    assert "://" not in text
    assert text.count("data:image/png;base64,") == 2  # for wide and for narrow screens
    assert "<picture><source media=" in text
    assert not re.search(r"<(script|link|iframe)|@import|url\(", text)
    stored = json.loads((out / "advice.json").read_text(encoding="utf-8"))
    for candidate in stored["ranking"] + stored["beyond"]:
        assert f"<td>{html.escape(candidate['name'])}</td>" in text
    monkeypatch.chdir(out)
    queries, keys = read_arrays.wine(0)
    snippet = html.unescape(re.search(r"<pre>(.*?)</pre>", text, re.DOTALL)[1])
    assert len(snippet.splitlines()) == 4
    ones = torch.ones(89, 2, dtype=torch.float64)
    namespace = {"queries": queries, "keys": keys, "values": ones}
    exec(snippet, namespace)
    assert torch.allclose(namespace["output"], ones, rtol=1e-4)


def test_one_seed_gives_one_advice(advised, tmp_path):
    _, out = advised
    assert run("advise", "--budget", "32", "--out", str(tmp_path)).exit_code == 0
    for name in ("advice.json", "best.safetensors"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes()


def test_advise_on_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    queries, keys = (u.numpy() for u in read_arrays.wine(0))
    np.savetxt("q.csv", queries, delimiter=",")
    np.savez("k.npz", keys=keys, values=keys[:, :2])
    arguments = ["q.csv", "k.npz:keys", "--values", "k.npz:values", "--budget", "8", "--scale", "0.5"]
    assert run("advise", *arguments, "--out", "a").exit_code == 0
    stored = json.loads((tmp_path / "a" / "advice.json").read_text(encoding="utf-8"))
    assert stored["settings"]["objective"] == "output"
    text = (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    assert "scale=0.5)" in text
    assert "multiplied by 0.707106781" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["q.npy"], "there are queries in q.npy but no keys; expected two files"),
        (["--values", "q.npy"], "there are values without queries and keys; expected all three files"),
        (["q.npy", "missing.npy"], "missing.npy does not exist"),
        (["q.npy", "narrow.npy"], "queries have 3 columns, keys 2; expected the same number"),
        (["q.npy", "q.npy", "--unit", "dollars"], "unit is 'dollars'; expected one of width, flops, time"),
        (
            ["semicolons.csv", "q.npy"],
            "semicolons.csv separates its values by semicolons; expected commas between them, and points for decimals",
        ),
        (["--budget", "1"], "budget is 1; expected a number from 8 to 65536"),
    ],
)
def test_advise_says_in_one_sentence_what_is_wrong(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("q.npy", np.ones((9, 3)))
    np.save("narrow.npy", np.ones((9, 2)))
    Path("semicolons.csv").write_text("1,5;2,5\n3,5;4,5\n")
    result = run("advise", *arguments)
    assert (result.exit_code, result.stderr, result.stdout) == (2, f"hrf: {sentence}\n", "")
    assert not list(tmp_path.rglob("advice.*"))


def test_interrupted_advice_leaves_no_files(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("hrf.advice.advisor._measure", interrupted)
    assert run("advise", "--out", str(tmp_path)).exit_code == 130
    assert list(tmp_path.iterdir()) == []


def test_help_of_advise_has_examples():
    text = run("advise", "--help").stdout
    assert "hrf advise queries.npy keys.npy --scale 0.125" in text
    assert "--objective" in text


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Files with rows and targets."""
    folder = tmp_path_factory.mktemp("table")
    x = np.random.default_rng(0).normal(size=(80, 3))
    np.savetxt(folder / "x.csv", x, delimiter=",")
    np.savetxt(folder / "y.csv", np.sin(x[:, :1]), delimiter=",")
    return folder


def test_advise_for_kernel_machines(table, tmp_path, monkeypatch):
    files = [str(table / "x.csv"), "--targets", str(table / "y.csv")]
    result = run(
        "advise", *files, "--kernel", "rbf", "--gamma", "0.5", "--budget", "16", "--out", str(tmp_path)
    )
    assert result.exit_code == 0, result.output
    stored = json.loads((tmp_path / "advice.json").read_text(encoding="utf-8"))
    assert stored["settings"]["objective"] == "ridge"
    assert stored["settings"]["scale"] == 1.0  # rows are multiplied by √(2γ)
    name = stored["ranking"][0]["name"]
    assert f"{name} has the smallest error" in " ".join(result.stdout.split())
    assert "mean of the targets" in result.stdout
    monkeypatch.chdir(tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    snippet = html.unescape(re.search(r"<pre>(.*?)</pre>", page, re.DOTALL)[1])
    rows = np.loadtxt(table / "x.csv", delimiter=",")
    namespace = {"rows": rows}
    exec(snippet, namespace)
    features = namespace["transformer"].fit(rows).transform(rows)
    np.testing.assert_allclose(features, namespace["features"].numpy(), rtol=1e-5, atol=1e-7)


def test_advise_for_kernel_machines_without_targets_or_files(tmp_path):
    result = run("advise", "--kernel", "rbf", "--budget", "16", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    stored = json.loads((tmp_path / "advice.json").read_text(encoding="utf-8"))
    assert stored["settings"]["objective"] == "gram"
    assert stored["settings"]["n_queries"] == 178
    variance = torch.cat(read_arrays.wine(0)).var(correction=0)
    assert stored["settings"]["scale"] == pytest.approx(2 / (13 * float(variance)))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["x.csv", "x.csv", "--kernel", "rbf"],
            "keys cannot be used with --kernel rbf, which takes one file of rows",
        ),
        (
            ["x.csv", "--kernel", "rbf", "--values", "x.csv", "--scale", "2"],
            "--values and --scale cannot be used with",
        ),
        (["x.csv", "x.csv", "--gamma", "2"], "--gamma cannot be used without --kernel rbf"),
        (["--kernel", "linear"], "kernel is 'linear'; expected softmax or rbf"),
        (["--kernel", "rbf", "--targets", "x.csv"], "there are targets without rows; expected both files"),
        (["x.csv", "--kernel", "rbf", "--gamma", "-1"], "gamma is -1.0; expected a positive number"),
    ],
)
def test_options_that_do_not_go_together(arguments, sentence, table, monkeypatch):
    monkeypatch.chdir(table)
    result = run("advise", *arguments)
    assert result.exit_code == 2
    assert f"hrf: {sentence}" in result.stderr


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 80 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 80000000000 bytes"),
    ],
)
def test_data_that_do_not_fit_get_one_sentence(error, capsys):
    with pytest.raises(SystemExit), one_sentence():
        raise error
    assert capsys.readouterr().err == (
        "hrf: the data need more memory than there is; expected fewer rows or columns\n"
    )
    with pytest.raises(RuntimeError, match="a bug"), one_sentence():
        raise RuntimeError("a bug")

"""The command: advice on files, help, refusals in one sentence, missing libraries."""

from __future__ import annotations

import html
import importlib
import json
import re
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import hrf
from hrf import cli, read_arrays
from hrf.report import one_sentence


def run(*arguments: str):
    return CliRunner().invoke(cli.application(), arguments)


def test_version_and_help():
    assert run("--version").stdout == f"hrf {hrf.__version__}\n"
    text = run("--help").stdout
    assert "hrf advise queries.npy keys.npy" in text
    assert "hrf reproduce angles" in text


def missing(monkeypatch, module: str, *importers: str) -> None:
    """Make a module look uninstalled to the modules that import it, which are loaded again."""

    class Absent:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == module:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    names = [module, *importers]
    for name in names:
        importlib.import_module(name)
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Absent, *sys.meta_path])


IMPORTERS = {
    "typer": ["hrf.cli.advise"],
    "rich.table": ["hrf.advice.page"],
    "matplotlib.figure": ["hrf.advice.page", "hrf.advice.figure"],
}


@pytest.mark.parametrize("module", IMPORTERS)
def test_without_the_extra_main_says_how_to_get_it(module, monkeypatch, capsys):
    missing(monkeypatch, module, *IMPORTERS[module])
    monkeypatch.setattr(sys, "argv", ["hrf", "advise"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error == f"hrf: {module} is missing; pip install 'hybrid-random-features[cli]' brings it\n"


def test_check_model_says_what_to_install(monkeypatch, tmp_path):
    missing(monkeypatch, "transformers", "hrf.cli.check_model")
    result = run("check-model", "model", "--text", str(tmp_path / "text"))
    assert result.exit_code == 2
    assert result.stderr == (
        "hrf: transformers is missing; pip install 'hybrid-random-features[transformers]' brings it\n"
    )


def test_help_keeps_paragraphs_and_examples():
    text = run("advise", "--help").stdout
    assert "hrf advise queries.npy keys.npy" in text
    assert "matrix per head (heads, N, d)" in " ".join(text.split())


def test_reproduce_says_what_to_install(monkeypatch):
    monkeypatch.setattr(cli, "entry_points", lambda group: [])
    result = run("reproduce", "angles", "--quick")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "reproduce needs hybrid-random-features-paper; pip install ./paper" in result.stderr
    assert run("--version").exit_code == 0


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


def test_the_page_stands_alone_and_its_snippet_runs(advised, monkeypatch):
    _, out = advised
    text = (out / "report.html").read_text(encoding="utf-8")
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert "default-src 'none'" in text
    assert not re.search(r"<iframe|@import|[:\s]url\(|<(script|link)[^>]*(src|href)=\"(?!data:)", text)
    stored = json.loads((out / "advice.json").read_text(encoding="utf-8"))
    for candidate in stored["ranking"] + stored["beyond"]:
        assert f"<td>{html.escape(candidate['name'])}</td>" in text
    monkeypatch.chdir(out)
    queries, keys = read_arrays.wine(0)
    snippet = html.unescape(re.search(r"<pre[^>]*>(.*?)</pre>", text, re.DOTALL)[1])
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


def test_advise_for_each_head(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("typer.launch", opened.append)
    queries, keys = (u.numpy() for u in read_arrays.wine(0))
    np.save(tmp_path / "q.npy", np.stack([queries, 2 * queries]))
    np.save(tmp_path / "k.npy", np.stack([keys, 2 * keys]))
    files = [str(tmp_path / "q.npy"), str(tmp_path / "k.npy")]
    result = run("advise", *files, "--budget", "16", "--out", str(tmp_path / "out"), "--open")
    assert result.exit_code == 0, result.output
    assert opened == [str(tmp_path / "out" / "report.html")]
    first, second = json.loads((tmp_path / "out" / "advice.json").read_text(encoding="utf-8"))
    assert second["settings"]["query_norm"] == pytest.approx(2 * first["settings"]["query_norm"])
    alone = hrf.advise(queries, keys, budget=16).to_dict()
    assert first == json.loads(json.dumps(alone))
    for head, found in enumerate((first, second)):
        phi = hrf.load(tmp_path / "out" / f"best-{head}.safetensors")
        assert phi.feature_dim == found["ranking"][0]["state"]
    one = run("advise", files[0], str(tmp_path / "out" / "best-0.safetensors:nothing"))
    assert one.exit_code == 2
    np.save(tmp_path / "k.npy", keys)
    result = run("advise", *files)
    assert result.stderr.startswith(
        "hrf: the shapes are queries (2, 89, 13), keys (89, 13); expected (heads, N, d)"
    )


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
        (["a\nb\x85\x1b[2Jθ"], r"there are queries in a\nb\x85\x1b[2Jθ but no keys; expected two files"),
        (["--values", "q.npy"], "there are values without queries and keys; expected all three files"),
        (["q.npy", "missing.npy"], "missing.npy does not exist"),
        (["q.npy", "narrow.npy"], "queries have 3 columns, keys 2; expected the same number"),
        (["q.npy", "q.npy", "--unit", "dollars"], "unit is 'dollars'; expected one of width, flops, time"),
        (["--budget", "1"], "budget is 1; expected a number from 8 to 65536"),
        (
            ["q.npy", "q.npy", "--kernel", "rbf"],
            "keys cannot be used with --kernel rbf, which takes one file of rows",
        ),
        (["q.npy", "q.npy", "--gamma", "2"], "--gamma cannot be used without --kernel rbf"),
        (["--kernel", "linear"], "kernel is 'linear'; expected softmax or rbf"),
        (["--kernel", "rbf", "--targets", "q.npy"], "there are targets without rows; expected both files"),
        (["q.npy", "--kernel", "rbf", "--gamma", "-1"], "gamma is -1.0; expected a positive number"),
        (
            ["q.npy", "--kernel", "rbf", "--values", "q.npy", "--scale", "2"],
            "--values and --scale cannot be used with",
        ),
    ],
)
def test_advise_says_in_one_sentence_what_is_wrong(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("q.npy", np.ones((9, 3)))
    np.save("narrow.npy", np.ones((9, 2)))
    result = run("advise", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"hrf: {sentence}")
    assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.rglob("advice.*"))


def test_interrupted_advice_leaves_no_files(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("hrf.advice.advisor._measure", interrupted)
    assert run("advise", "--out", str(tmp_path)).exit_code == 130
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Files with rows and targets."""
    folder = tmp_path_factory.mktemp("table")
    x = np.random.default_rng(0).normal(size=(80, 3))
    np.savetxt(folder / "x.csv", x, delimiter=",")
    np.savetxt(folder / "y.csv", np.sin(x[:, :1]), delimiter=",")
    return folder


def test_advise_for_kernel_machines(table, tmp_path, monkeypatch):
    options = ["--kernel", "rbf", "--gamma", "0.5", "--budget", "16", "--out", str(tmp_path)]
    result = run("advise", str(table / "x.csv"), "--targets", str(table / "y.csv"), *options)
    assert result.exit_code == 0, result.output
    stored = json.loads((tmp_path / "advice.json").read_text(encoding="utf-8"))
    assert stored["settings"]["objective"] == "ridge"
    assert stored["settings"]["scale"] == 1.0  # rows are multiplied by √(2γ)
    name = stored["ranking"][0]["name"]
    assert f"{name} has the smallest error" in " ".join(result.stdout.split())
    monkeypatch.chdir(tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    snippet = html.unescape(re.search(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)[1])
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

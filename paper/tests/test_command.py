from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from hrf import cli
from hrf_paper import runner


def run(*arguments: str):
    return CliRunner().invoke(cli.application(), ["reproduce", *arguments])


def test_saves_a_figure_numbers_and_pages(tmp_path):
    out = tmp_path / "new" / "folder"
    result = run("cost", "--quick", "--seed", "5", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    stored = json.loads((out / "cost.json").read_text(encoding="utf-8"))
    assert stored["settings"]["seed"] == 5
    assert (out / "cost.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in out.iterdir()} == {"cost.json", "cost.png", "cost.html", "index.html"}
    for path in out.iterdir():
        assert path.name == "index.html" or str(path) in result.stdout.replace("\n", "")


def test_list_names_every_experiment():
    from hrf_paper.experiments.registry import EXPERIMENTS

    result = run("--list")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in EXPERIMENTS)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ([], "hrf: no experiment is named; expected all, or some of "),
        (["nothing"], "hrf: there is no experiment 'nothing'; expected all, or some of "),
    ],
)
def test_wrong_names_get_one_sentence(names, sentence, tmp_path):
    result = run(*names, "--out", str(tmp_path / "out"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(sentence)
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seed", ["-1", "large"])
def test_a_wrong_seed_is_refused(seed):
    result = run("cost", "--seed", seed)
    assert result.exit_code == 2
    assert "--seed" in result.stderr


def test_an_unusable_directory_is_refused_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(runner, "run", lambda *_: pytest.fail("the experiment ran"))
    result = run("cost", "--quick", "--out", str(tmp_path / "file"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"hrf: cannot write {tmp_path / 'file'}: File exists\n"


def test_interrupt(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", interrupted)
    assert run("cost", "--quick", "--out", str(tmp_path)).exit_code == 130
    assert list(tmp_path.glob("cost.*")) == []


def test_help_has_examples():
    text = run("--help").stdout
    assert "hrf reproduce angles" in text
    assert "hrf reproduce all --quick" in text
    assert "--full" in text

import json
import sys

import pytest
from typer.testing import CliRunner

import hrf
from hrf import cli, report
from hrf.experiments import angles

SMALL = ["angles", "--radius", "0.8", "--dim", "3", "--features", "68", "--draws", "4", "--seed", "5"]


def run(*arguments: str):
    return CliRunner().invoke(cli.application(), arguments)


def test_angles_saves_a_figure_and_numbers(tmp_path):
    result = run(*SMALL, "--out", str(tmp_path / "new" / "folder"))
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert "FAVOR#" in result.stdout
    stored = json.loads((tmp_path / "new" / "folder" / "angles.json").read_text(encoding="utf-8"))
    expected = {"radius": 0.8, "dim": 3, "features": 68, "draws": 4, "seed": 5}
    assert stored["settings"] == angles.Settings().__dict__ | expected
    assert (tmp_path / "new" / "folder" / "angles.png").read_bytes().startswith(b"\x89PNG")


def test_one_seed_gives_one_file(tmp_path):
    texts = []
    for name in ("a", "b"):
        assert run(*SMALL, "--out", str(tmp_path / name)).exit_code == 0
        texts.append((tmp_path / name / "angles.json").read_bytes())
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--radius", "0"], "hrf: radius is 0.0; expected a number from 0.01 to 4\n"),
        (["--dim", "1"], "hrf: dim is 1; expected a number from 2 to 4096\n"),
        (["--features", "8"], "hrf: features is 8; expected a number from 68 to 65536\n"),
        (["--draws", "0"], "hrf: draws is 0; expected a number at least 2\n"),
    ],
)
def test_wrong_values_get_one_sentence(arguments, sentence, tmp_path):
    result = run("angles", *arguments, "--out", str(tmp_path / "out"))
    assert (result.exit_code, result.stderr, result.stdout) == (2, sentence, "")
    assert not (tmp_path / "out").exists()


def test_an_unusable_directory_is_refused_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(angles, "run", lambda *_: pytest.fail("the experiment ran"))
    result = run(*SMALL, "--out", str(tmp_path / "file"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"hrf: cannot write {tmp_path / 'file'}: File exists\n"


def test_a_word_for_a_number_is_refused():
    result = run("angles", "--radius", "large")
    assert result.exit_code == 2
    assert "--radius" in result.stderr


def test_interrupt(tmp_path, monkeypatch):
    def interrupted(settings, progress):
        progress("FAVOR+", 1, 7)
        raise KeyboardInterrupt

    monkeypatch.setattr(angles, "run", interrupted)
    assert run(*SMALL, "--out", str(tmp_path)).exit_code == 130
    assert list(tmp_path.iterdir()) == []


def test_version_and_help():
    assert run("--version").stdout == f"hrf {hrf.__version__}\n"
    text = run("angles", "--help").stdout
    assert "hrf angles --radius 1 --features 1024" in text
    assert "--draws" in text


def test_main_runs_the_application(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hrf", "--version"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"hrf {hrf.__version__}\n"


@pytest.mark.parametrize("missing", ["typer", "rich.table", "matplotlib.figure"])
def test_without_the_extra_main_says_how_to_get_it(missing, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "hrf.report")
    monkeypatch.delattr(hrf, "report")
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error == f"hrf: {missing} is missing; pip install 'hybrid-random-features[cli]' brings it\n"


def test_other_missing_modules_are_not_hidden(monkeypatch):
    monkeypatch.setitem(sys.modules, "hrf.experiments.words", None)
    monkeypatch.delitem(sys.modules, "hrf.report")
    monkeypatch.delattr(hrf, "report")
    with pytest.raises(ModuleNotFoundError, match="words"):
        cli.main()


def test_bar_shows_only_on_a_terminal(capsys):
    with report.progress() as advance:
        advance("FAVOR+", 1, 2)
    assert capsys.readouterr().err == ""

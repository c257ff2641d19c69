"""The command as a whole: version, help, and what it says where libraries are missing."""

from __future__ import annotations

import importlib
import sys

import pytest
from typer.testing import CliRunner

import hrf
from hrf import cli, report


def run(*arguments: str):
    return CliRunner().invoke(cli.application(), arguments)


def test_version_and_help():
    assert run("--version").stdout == f"hrf {hrf.__version__}\n"
    text = run("--help").stdout
    assert "hrf advise queries.npy keys.npy" in text
    assert "hrf reproduce angles" in text


def test_main_runs_the_application(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hrf", "--version"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"hrf {hrf.__version__}\n"


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


def test_reproduce_says_what_to_install(monkeypatch):
    monkeypatch.setattr(cli, "entry_points", lambda group: [])
    result = run("reproduce", "angles", "--quick")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "reproduce needs hybrid-random-features-paper; pip install ./paper" in result.stderr
    assert run("--version").exit_code == 0


def test_names_of_files_do_not_break_the_sentence():
    assert run("advise", "a\nb\x85\x1b[2Jθ").stderr == (
        "hrf: there are queries in a\\nb\\x85\\x1b[2Jθ but no keys; expected two files\n"
    )


def test_bar_shows_only_on_a_terminal(capsys):
    with report.progress() as advance:
        advance("FAVOR+", 1, 2)
    assert capsys.readouterr().err == ""

from __future__ import annotations

import sys

import pytest

from hrf_paper import report, requirements
from hrf_paper.experiments.registry import EXPERIMENTS
from hrf_paper.runner import reproduce


@pytest.fixture
def no_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)


def test_missing_modules_go_by_the_names_to_install(no_scikit_learn):
    assert requirements.missing(("sklearn", "json", "no_such_module")) == ["scikit-learn", "no_such_module"]


def test_an_experiment_without_its_library_is_refused_before_the_work(no_scikit_learn, tmp_path):
    with pytest.raises(ModuleNotFoundError) as caught:
        reproduce([EXPERIMENTS["cost"], EXPERIMENTS["uci"]], quick=True, seed=0, out=tmp_path / "out")
    assert str(caught.value) == (
        "the experiment uci needs scikit-learn: pip install hybrid-random-features-paper"
    )
    assert caught.value.name == "sklearn"
    assert not (tmp_path / "out").exists()


def test_the_list_says_what_is_missing(no_scikit_learn, capsys):
    report.listing([EXPERIMENTS["cost"], EXPERIMENTS["uci"]])
    output = capsys.readouterr().out
    assert "missing" in output
    assert output.count("scikit-learn") == 1
    assert "pip install hybrid-random-features-paper" in output


def test_the_list_is_silent_where_nothing_is_missing(capsys):
    report.listing(EXPERIMENTS.values())
    assert "missing" not in capsys.readouterr().out.lower()

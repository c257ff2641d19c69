"""Stored results are judged again without being run, and stay as they are."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from hrf import cli
from hrf_paper import runner
from hrf_paper.experiments.registry import EXPERIMENTS


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Files of one quick experiment with another seed than 0."""
    out = tmp_path_factory.mktemp("stored")
    result = CliRunner().invoke(
        cli.application(), ["reproduce", "cost", "--quick", "--seed", "3", "--out", str(out)]
    )
    assert result.exit_code == 0, result.output
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.fixture
def place(stored, tmp_path):
    for name, content in stored.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_claims_come_back_byte_for_byte(stored, place, capsys):
    data = json.loads(stored["cost.json"])
    data["claims"][0] |= {"verdict": "fails", "matched": 0, "sentence": "An old sentence."}
    data["timings"]["claims"] = []
    (place / "cost.json").write_text(json.dumps(data), encoding="utf-8")
    assert runner.main([str(place)]) == 0
    assert (place / "cost.json").read_bytes() == stored["cost.json"]
    assert {path.name: path.read_bytes() for path in place.iterdir()} == stored
    assert capsys.readouterr().out.startswith(f"{place / 'cost.json'}\nreproduced: ")


def test_figures_are_drawn_from_the_stored_results(stored, place):
    (place / "cost.png").unlink()
    assert runner.restate(place, figures=True) == [place / "cost.json", place / "cost.png"]
    assert (place / "cost.png").read_bytes() == stored["cost.png"]


def test_unknown_settings_are_refused_and_left_alone(place, capsys):
    data = json.loads((place / "cost.json").read_bytes())
    data["settings"]["vectors"] += 1
    (place / "cost.json").write_text(json.dumps(data), encoding="utf-8")
    before = (place / "cost.json").read_bytes()
    assert runner.main([str(place)]) == 2
    error = "hrf_paper.runner: the stored settings of cost are none of its settings; run it again\n"
    assert capsys.readouterr().err == error
    assert (place / "cost.json").read_bytes() == before


def test_settings_come_back_with_their_size_and_seed(stored):
    settings = runner.stored_settings(EXPERIMENTS["cost"], json.loads(stored["cost.json"]))
    assert settings.seed == 3
    assert EXPERIMENTS["cost"].by_option(settings.seed)[" --quick"] == settings

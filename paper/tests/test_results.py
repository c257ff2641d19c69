"""The results that are kept in the repository: of the default settings, and their claims follow from their numbers."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from hrf_paper.experiments.registry import EXPERIMENTS

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_kept_results(name):
    experiment = EXPERIMENTS[name]
    settings = experiment.settings()
    data = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert data["settings"] == json.loads(json.dumps(asdict(settings)))
    assert data["command"] == f"hrf reproduce {name}"
    timings = data["timings"]["parts"]
    results = {key: part | {"timings": timings[key]} for key, part in data["results"].items()}
    claims = [asdict(claim) for claim in experiment.claims(settings, results)]
    assert claims == data["claims"] + data["timings"]["claims"]
    assert (RESULTS / f"{name}.png").stat().st_size < 300_000
    assert f"`{name}`" in (RESULTS / "README.md").read_text(encoding="utf-8")


def test_the_figure_of_the_front_page_is_the_one_of_the_experiment():
    for name in ("angles.json", "angles.png"):
        assert (RESULTS.parent / "figures" / name).read_bytes() == (RESULTS / name).read_bytes()

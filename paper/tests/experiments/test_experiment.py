"""Verdicts, and parts that run once."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from hrf_paper.experiments.experiment import (
    MARKS,
    RULE,
    VERDICTS,
    Claim,
    run,
    verdict_of,
    verdict_text,
    versions,
)
from hrf_paper.experiments.registry import EXPERIMENTS, chosen

RESULTS = Path(__file__).parents[3] / "docs" / "results"


def claim(**counts) -> Claim:
    return Claim("c", "p", "o", "s.", **counts)


@pytest.mark.parametrize(
    ("matched", "total", "verdict"),
    [
        (22, 22, "holds"),
        (21, 22, "partly"),
        (11, 22, "partly"),
        (10, 22, "fails"),
        (1, 22, "fails"),
        (0, 22, "fails"),
        (3, 5, "partly"),
        (2, 5, "fails"),
        (1, 1, "holds"),
        (0, 1, "fails"),
        (None, None, "beyond"),
    ],
)
def test_the_rule(matched, total, verdict):
    assert verdict_of(matched, total) == verdict
    hits = None if total is None else [True] * matched + [False] * (total - matched)
    assert claim(hits=hits).verdict == verdict


def test_verdicts_show_their_numbers():
    assert claim(hits=[True, False, False], cases="sizes").text == "✗ 1 of 3 sizes reproduced"
    text = verdict_text(1200, 1234, "moments", "within 5 standard errors")
    assert text == "◦ 1,200 of 1,234 moments reproduced (within 5 standard errors)"
    assert claim().text == "+ not in the paper"
    assert verdict_text(2, 2) == "✓ 2 of 2 reproduced"


def test_the_verdict_is_stored_with_its_numbers():
    stored = asdict(claim(hits=[True, True, True, False], cases="sizes"))
    assert (stored["matched"], stored["total"], stored["verdict"]) == (3, 4, "partly")


def test_a_claim_without_cases_is_refused():
    with pytest.raises(ValueError, match=r"^hits is empty; expected at least one case, or None$"):
        claim(hits=[])


def test_the_rule_names_every_mark():
    assert set(MARKS) == set(VERDICTS)
    assert all(mark in RULE for mark in MARKS.values())


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_reader_can_recompute_the_stored_verdicts(path):
    data = json.loads(path.read_text(encoding="utf-8"))
    for stored in (*data["claims"], *data["timings"]["claims"]):
        matched, total = stored["matched"], stored["total"]
        if total is None:
            assert (matched, stored["verdict"]) == (None, "beyond")
        else:
            expected = "holds" if matched == total else "partly" if 2 * matched >= total else "fails"
            assert stored["verdict"] == expected
            assert stored["cases"]


def test_parts_run_once_and_in_order():
    calls, seen, kept = [], [], {"two": {"value": 7, "timings": {"seconds": 1.0}}}

    def part(name):
        return lambda: calls.append(name) or {"value": (1, 2), "timings": {"more": 3.0}}

    parts = {name: part(name) for name in ("one", "two", "three")}
    results = run(parts, lambda *call: seen.append(call), kept)
    assert calls == ["one", "three"]
    assert seen == [("one", 0, 3), ("two", 1, 3), ("three", 2, 3)]
    assert list(results) == ["one", "two", "three"]
    assert results["two"]["value"] == 7
    assert results["one"]["value"] == [1, 2]  # as JSON has it
    assert set(results["one"]["timings"]) == {"seconds", "more"}
    assert kept == results


def test_what_json_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="Out of range"):
        run({"one": lambda: {"value": float("nan")}})


def test_chosen():
    assert [e.name for e in chosen(["all"])] == list(EXPERIMENTS)
    assert [e.name for e in chosen(["pointwise", "lambda", "pointwise"])] == ["lambda", "pointwise"]
    with pytest.raises(
        ValueError, match=r"^there is no experiment 'x'; expected all, or some of angles, mse-surface, "
    ):
        chosen(["lambda", "x"])
    with pytest.raises(ValueError, match=r"^no experiment is named; expected all, "):
        chosen([])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_settings_have_a_seed_and_quick_ones_differ(name):
    experiment = EXPERIMENTS[name]
    assert experiment.full.seed == experiment.quick.seed == 0
    assert experiment.full != experiment.quick


def test_versions_name_what_numbers_depend_on():
    assert set(versions()) == {"hrf", "python", "torch", "numpy", "scipy", "scikit-learn"}

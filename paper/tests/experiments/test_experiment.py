import pytest

from hrf_paper.experiments.experiment import run, versions
from hrf_paper.experiments.registry import EXPERIMENTS, chosen


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

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch

import hrf
from advice import data
from hrf.advice import Advice, candidates

BUDGET = 32


def candidate(advice: Advice, name: str):
    return next(c for c in [*advice.ranking, *advice.beyond] if c.name == name)


@pytest.fixture(scope="module")
def easy() -> Advice:
    state = torch.get_rng_state()
    advice = hrf.advise(*data.easy(), budget=BUDGET, length=1000)
    assert torch.equal(torch.get_rng_state(), state)  # nobody else's random numbers change
    return advice


@pytest.fixture(scope="module")
def hopeless() -> Advice:
    return hrf.advise(*data.hopeless(), budget=16, n_redraws=2)


@pytest.fixture(scope="module")
def clustered() -> Advice:
    return hrf.advise(*data.clusters(), budget=BUDGET)


def test_every_family_is_there_within_the_budget(easy):
    assert {c.family for c in easy.ranking} == {"isotropic", "hybrid", "fitted", "clustered"}
    assert len({c.name for c in easy.ranking}) == len(easy.ranking) >= 18
    assert easy.left_out == {}
    for c in easy.ranking:
        assert c.width <= BUDGET, c.name
        assert c.low <= c.error <= c.high, c.name
        assert c.seconds > 0
    for name in ("trigonometric", "positive", "FAVOR++", "FAVOR#", "real-full", "complex-full"):
        assert candidate(easy, name).width == BUDGET
    assert [c.high for c in easy.ranking] == sorted(c.high for c in easy.ranking)


def test_a_fitted_map_wins_where_directions_differ():
    stretch = torch.tensor([4.0, *[0.25] * 7], dtype=torch.float64)
    q, k = data.easy()
    advice = hrf.advise(q * stretch, k / stretch / 2, budget=BUDGET, objective="kernel", n_redraws=2)
    assert candidate(advice, "real-full").predicted < candidate(advice, "positive").predicted / 2
    assert advice.ranking[0].family in ("fitted", "clustered")


def test_clustered_maps_win_on_tight_clusters(clustered):
    assert clustered.ranking[0].family == "clustered"
    others = min(c.error for c in clustered.ranking if c.family != "clustered")
    assert clustered.ranking[0].error < others / 5


def test_where_queries_are_keys_trigonometric_beats_positive():
    advice = hrf.advise(*data.together(), budget=BUDGET, objective="kernel", n_redraws=2)
    for name in ("trigonometric", "centred"):
        assert candidate(advice, name).predicted < candidate(advice, "positive").predicted / 5


def test_a_warning_where_nothing_is_good_enough(easy, hopeless, clustered):
    assert easy.warning is None
    assert clustered.warning is None
    assert "no map is good enough" in hopeless.warning
    assert f"norm {hopeless.settings.query_norm:.1f}" in hopeless.warning
    assert "exact attention" in hopeless.warning
    assert hopeless.ranking[0].error > min(0.5, 0.9 * hopeless.uniform)


def test_kernel_errors_are_judged_by_the_closed_form():
    """Positive features look fine at norm 6: the draws that make up their error are too rare to be seen."""
    advice = hrf.advise(*data.hopeless(), budget=16, n_redraws=2, objective="kernel")
    positive = candidate(advice, "positive")
    assert positive.error < 2 < 1e6 < positive.predicted
    assert advice.warning is not None
    known = [c.predicted for c in advice.ranking]
    assert known == sorted(known)


def test_predictions_agree_with_measurements():
    """Up to the other pairs that they are of. (Positive estimates have tails too long for 20 draws.)"""
    advice = hrf.advise(*data.easy(), budget=BUDGET, objective="kernel", n_redraws=20)
    for name in ("trigonometric", "FAVOR++", "clustered separable 16"):
        c = candidate(advice, name)
        assert c.low / 1.2 <= c.predicted <= 1.2 * c.high, name


@pytest.mark.parametrize("name", ["easy", "clustered"])
def test_the_best_map_is_as_wrong_as_it_says(name, request):
    """On all of the data, in new draws; the margin allows for other vectors."""
    advice = request.getfixturevalue(name)
    x, y = data.clusters() if name == "clustered" else data.easy()
    best = advice.ranking[0]
    exact = hrf.kernels.log_softmax_kernel(x, y).softmax(-1)
    errors = []
    for seed in range(10):
        best.feature_map.redraw_(torch.Generator().manual_seed(100 + seed))
        weights = best.feature_map.estimate(x, y)
        errors.append(float((weights / weights.sum(-1, keepdim=True) - exact).norm() / exact.norm()))
    margin = 2 * (best.high - best.low) + 0.25 * best.error
    assert best.low - margin < np.mean(errors) < best.high + margin


def test_every_ranked_map_has_features(clustered):
    x, y = (u[:5] for u in data.clusters())
    for c in clustered.ranking:
        features = c.feature_map.scaled_queries(x), c.feature_map.scaled_keys(y)
        assert all(f.values.isfinite().all() for f in features), c.name


def test_what_stands_apart(clustered):
    recentred, exact = sorted(clustered.beyond, key=lambda c: c.name, reverse=True)
    assert recentred.feature_map.recenter
    assert recentred.predicted is None
    assert recentred.feature_map.settings["exact_share"] == 0
    assert 0 < exact.feature_map.exact_share(*data.clusters()) <= 0.3
    assert exact.feature_map.settings["exact_share"] == pytest.approx(0.2)
    assert exact.error < clustered.ranking[0].error


def test_values_are_what_counts_if_there_are_some():
    q, k = (u.tolist() for u in data.easy())  # anything that NumPy takes
    constant = hrf.advise(q, k, np.ones((160, 1)), budget=8, n_redraws=2)  # any weights give this output
    assert constant.settings.objective == "output"
    assert constant.ranking[0].error < 1e-6


def test_scale_is_applied_to_both_sides(easy):
    q, k = data.easy()
    scaled = hrf.advise(2 * q, 2 * k, budget=BUDGET, length=1000, scale=0.25)
    assert [(c.name, c.error) for c in scaled.ranking] == [(c.name, c.error) for c in easy.ranking]
    assert scaled.settings.query_norm == pytest.approx(float(q.square().sum(-1).mean().sqrt()))


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["flops", "time"])
def test_other_units(unit):
    advice = hrf.advise(*data.easy(), budget=32, unit=unit, n_redraws=2)
    assert all(c.width <= 16 * 32 for c in advice.ranking)
    if unit == "flops":
        limit = hrf.Positive(8, n_projections=16).flops()
        assert all(c.flops <= limit for c in advice.ranking)
        assert candidate(advice, "positive").width == 32
        assert candidate(advice, "angular hybrid").width > 32  # what it saves is arithmetic


def test_a_candidate_that_fails_is_left_out(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("the matrix is singular\nand more")

    monkeypatch.setattr(candidates.Exponential, "fit", broken)
    seen = []
    advice = hrf.advise(*data.easy(), budget=8, n_redraws=2, progress=lambda *step: seen.append(step))
    assert advice.left_out["real-full"] == "the matrix is singular"
    assert "positive" in {c.name for c in advice.ranking}
    total = len(advice.ranking) + len(advice.beyond) + len(advice.left_out)
    assert [(done, count) for _, done, count in seen] == [(k, total) for k in range(total + 1)]


def test_without_scikit_learn_clustered_maps_are_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    advice = hrf.advise(*data.easy(), budget=8, n_redraws=2)
    assert {c.family for c in advice.ranking} == {"isotropic", "hybrid", "fitted"}
    assert "scikit-learn" in advice.left_out["clustered separable 8"]


def test_few_vectors_are_enough():
    advice = hrf.advise(data.noise(4, 3, seed=1) / 2, data.noise(5, 3, seed=2) / 2, budget=8)
    assert math.isfinite(advice.ranking[0].error)
    assert all(c.family != "clustered" for c in advice.ranking)


def test_long_vectors_do_not_overflow():
    advice = hrf.advise(50 * data.noise(40, 4, seed=1), 50 * data.noise(40, 4, seed=2), budget=8, n_redraws=2)
    assert all(math.isfinite(c.error) for c in advice.ranking)
    assert advice.warning is not None


def test_vectors_that_are_all_the_same():
    advice = hrf.advise(torch.zeros(20, 3), torch.ones(20, 3), budget=8, n_redraws=2)
    assert advice.ranking[0].error < 1e-6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": 4}, "budget is 4; expected a number from 8 to 65536"),
        ({"unit": "dollars"}, "unit is 'dollars'; expected one of width, flops, time"),
        ({"objective": "beauty"}, "objective is 'beauty'; expected one of attention, output, kernel"),
        ({"objective": "output"}, "objective is 'output', but there are no values"),
        ({"n_redraws": 1}, "n_redraws is 1; expected a number from 2 to 1000"),
        ({"seed": -1}, "seed is -1; expected a number from 0 to"),
        ({"scale": 0.0}, "scale is 0.0; expected a positive number"),
        ({"queries": torch.ones(9, 2)}, "queries have 2 columns, keys 3; expected the same number"),
        ({"queries": torch.ones(2, 3)}, "the number of queries is 2; expected 4 or more"),
        ({"queries": torch.ones(3)}, r"queries have shape \(3,\) and torch.float32; expected real numbers"),
        ({"keys": torch.full((9, 3), math.nan)}, "keys have 27 values that are NaN or infinite"),
        (
            {"values": torch.ones(8, 1)},
            "the numbers of keys and values are 9 and 8; expected one value per key",
        ),
        ({"values": torch.zeros(9, 1)}, "the values are all zero"),
    ],
)
def test_wrong_arguments_are_named(changes, message):
    arguments = {"queries": torch.ones(9, 3), "keys": torch.ones(9, 3)} | changes
    with pytest.raises(ValueError, match=message):
        hrf.advise(**arguments)


def test_table_and_sentences(clustered, hopeless):
    text = str(clustered)
    lines = text.splitlines()
    assert lines[0].split()[:3] == ["map", "width", "state"]
    assert lines[2].startswith(clustered.ranking[0].name)
    assert sum("uniform attention  " in line for line in lines) == 1
    assert f"{clustered.ranking[0].name} has the smallest error" in text
    assert clustered.legend in text
    assert "Warning" not in text
    assert "Warning: no map" in str(hopeless)


@pytest.mark.parametrize("name", ["clustered", "hopeless"])
def test_plot(name, request, tmp_path):
    request.getfixturevalue(name).plot(tmp_path / "advice.png")
    assert (tmp_path / "advice.png").read_bytes().startswith(b"\x89PNG")

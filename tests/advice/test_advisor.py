"""Advice on maps: ranking, errors on held-out data, cost and limits, hard data, summaries, words about findings."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import hrf
from advice import data
from hrf.advice import Advice, candidates, errors, page
from hrf.advice.candidates import Builder, cost_in, proposals
from hrf.advice.errors import Problem, SummaryFinding, attention_outputs
from hrf.advice.findings import headline, sentences, warning

BUDGET = 32
QUICK = {"budget": 8, "n_redraws": 2}


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
    constant = hrf.advise(q, k, np.ones((160, 1)), **QUICK)  # any weights give this output
    assert constant.settings.objective == "output"
    assert constant.ranking[0].error < 1e-6


def test_scale_is_applied_to_both_sides():
    q, k = data.easy()
    plain, scaled = hrf.advise(q, k, **QUICK), hrf.advise(2 * q, 2 * k, scale=0.25, **QUICK)
    assert [(c.name, c.error) for c in scaled.ranking] == [(c.name, c.error) for c in plain.ranking]
    assert scaled.settings.query_norm == pytest.approx(float(q.square().sum(-1).mean().sqrt()))


@pytest.mark.parametrize("unit", ["flops", pytest.param("time", marks=pytest.mark.slow)])
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
        ({"length": 0}, "length is 0; expected the number of keys per sequence"),
        ({"queries": torch.ones(9, 2)}, "queries have 2 columns, keys 3; expected the same number"),
        ({"queries": torch.ones(2, 3)}, "the number of queries is 2; expected 4 or more"),
        ({"queries": torch.ones(3)}, r"queries have shape \(3,\) and torch.float32; expected real numbers"),
        ({"keys": torch.full((9, 3), math.nan)}, "keys have 27 values that are NaN or infinite"),
        ({"keys": torch.full((9, 3), 1e9)}, r"keys has norm .*; expected at most 1e\+07, .*StandardScaler"),
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


def test_table_sentences_and_plot(clustered, hopeless, tmp_path):
    text = str(clustered)
    assert text.splitlines()[2].startswith(clustered.ranking[0].name)
    assert f"{clustered.ranking[0].name} has the smallest error" in text
    assert clustered.legend in text
    assert "Warning" not in text
    assert "Warning: no map" in str(hopeless)
    clustered.plot(tmp_path / "advice.png")
    assert (tmp_path / "advice.png").read_bytes().startswith(b"\x89PNG")


# What is ranked is what `hrf.attention` computes.


DRAW = torch.Generator().manual_seed(0)


def fitted_candidates(queries: Tensor, keys: Tensor) -> dict[str, hrf.FeatureMap]:
    """Every kind of candidate, fitted to the first half."""
    half, dim = len(queries) // 2, queries.shape[-1]
    fit = queries[:half], keys[:half]
    cost = cost_in("width", hrf.Positive(dim, n_projections=16), queries)
    builder = Builder(*fit, Problem(*fit, None, "attention"), 32, "width", cost, 0)
    return {proposal.name: proposal.make().float() for proposal in proposals(builder)}


@pytest.mark.parametrize("name", ["hopeless", "clusters"])
def test_errors_are_those_of_attention(name):
    queries, keys = getattr(data, name)()
    q, k, v = queries[80:], keys[80:], data.noise(len(keys) - 80, 5, seed=7)
    exact, clamped = (q @ k.mT).softmax(-1) @ v, 0
    maps = fitted_candidates(queries, keys)
    assert {phi.nonnegative for phi in maps.values()} == {True, False}
    assert any(phi.follows_keys for phi in maps.values())
    for kind, phi in maps.items():
        rule = hrf.Denominator("clamp")
        computed = hrf.attention(q[None], k[None], v[None], phi, scale=1, denominator=rule)[0]
        problem = Problem(q, k, v, "output")
        scale = computed.abs().max().clamp(min=1)
        assert (problem.estimate(phi) - computed).abs().max() < 1e-9 * scale, kind
        error = float((computed - exact).norm() / exact.norm())
        assert problem.error(phi, 1, DRAW).value == pytest.approx(error, rel=1e-9), kind
        assert int(attention_outputs(phi, q, k)[1].sum()) == rule.clamped, kind
        assert not (phi.nonnegative and rule.clamped), kind
        clamped += rule.clamped
    assert clamped > 0


def test_the_map_keeps_its_draw():
    phi = hrf.Trigonometric(8, n_projections=4)
    before = [omega.omega.clone() for omega in phi.all_projections()]
    problem = Problem(*data.easy(), None, "attention")
    interval = problem.error(phi, 3, torch.Generator().manual_seed(0))
    assert interval.low < interval.value < interval.high
    assert all(torch.equal(a, b.omega) for a, b in zip(before, phi.all_projections(), strict=True))


@pytest.mark.parametrize("objective", ["attention", "kernel"])
def test_uniform_attention_is_the_constant_map(objective):
    x, y = (u[:50] for u in data.easy())
    kernel = (x @ y.mT).exp()
    weights = kernel / kernel.sum(-1, keepdim=True)
    expected = (weights - 1 / 50).norm() / weights.norm()
    if objective == "kernel":
        expected = (kernel.mean(-1, keepdim=True) / kernel - 1).square().median().sqrt()
    assert Problem(x, y, None, objective).uniform() == pytest.approx(float(expected))


# Cost and limits.


@pytest.mark.parametrize("base", ["separable", "shifted", "shrunk", "moments"])
def test_active_width_of_a_clustered_map_is_what_a_vector_fills(base):
    x, y = torch.randn(2, 60, 3, generator=torch.Generator().manual_seed(0)) / 2
    phi = hrf.ClusteredHybrid.fit(x, y, n_clusters=(3, 5), n_projections=4, base=base)
    filled = (phi.scaled_queries(x).values != 0).sum(-1).max()
    assert phi.active_width == int(filled)


@pytest.mark.slow
def test_noisy_times_change_sizes_but_not_the_set_of_maps(monkeypatch):
    draws = random.Random(0)

    def seconds(feature_map, vectors):
        return (100 + feature_map.active_width) * draws.lognormvariate(0, 1)

    monkeypatch.setattr(candidates, "seconds", seconds)
    options = {"budget": BUDGET, "unit": "time", "n_redraws": 2, "length": 1000}
    first, second = (hrf.advise(*data.easy(), **options) for _ in range(2))
    widths = [{c.name: c.width for c in [*a.ranking, *a.beyond]} for a in (first, second)]
    assert sorted(widths[0]) == sorted(widths[1])
    assert first.left_out == second.left_out == {}
    assert widths[0] != widths[1]


@pytest.mark.slow
def test_maps_that_are_too_slow_stand_apart(monkeypatch):
    def seconds(feature_map, vectors):
        return 1.0 if isinstance(feature_map, (hrf.Positive, hrf.Trigonometric)) else 3.0

    monkeypatch.setattr(candidates, "seconds", seconds)
    advice = hrf.advise(*data.easy(), budget=BUDGET, unit="time", n_redraws=2)
    assert {"positive", "trigonometric"} <= {c.name for c in advice.ranking}
    slow = {c.name: c.note for c in advice.beyond}
    assert "takes 3.0 times the time allowed" in slow["angular hybrid"]
    assert all(c.family in ("isotropic", "fitted") for c in advice.ranking)


def test_no_state_is_larger_than_the_keys_and_values():
    q, k = data.clusters()
    values = data.noise(len(k), 2, seed=5)
    advice = hrf.advise(q, k, values, budget=BUDGET, length=40, n_redraws=2)
    for c in [*advice.ranking, *advice.beyond]:
        assert c.feature_map.feature_dim <= BUDGET or c.feature_map.feature_dim * 3 <= 40 * (8 + 2), c.name
    reason = advice.left_out["clustered separable 16"]
    assert reason.startswith("its state of 256 × 3 numbers is larger than the 40 keys and values")
    assert "clustered" in {c.family for c in advice.ranking}  # with fewer clusters


def test_maps_with_a_matrix_are_left_out_where_columns_are_many(monkeypatch):
    """A matrix of 100,000 × 100,000 numbers takes 40 GB in float32."""
    x = torch.randn(12, 100_000, generator=torch.Generator().manual_seed(0)) / 400
    kernel = hrf.advise_kernel(x, gamma=1.0, budget=8, n_redraws=2)
    assert sorted(c.name for c in kernel.ranking) == ["centred", "landmarks", "trigonometric"]
    for name in ("optimal-positive", "dense-exponential"):
        assert "vectors have 100000 columns" in kernel.left_out[name]
        assert "expected at most 2048 columns" in kernel.left_out[name]
    monkeypatch.setattr(candidates, "MOST_COLUMNS", 3)
    advice = hrf.advise(*(u[:60] for u in data.easy()), budget=BUDGET, n_redraws=2)
    assert list(advice.left_out) == ["maps with a matrix"]
    assert "angular hybrid" in {c.name for c in (*advice.ranking, *advice.beyond)}


# Data as they come.


def wines() -> Tensor:
    """A table that nobody standardised: columns from 0.1 to 1,600."""
    return data.noise(60, 4, seed=1).abs() * torch.tensor([13.0, 100.0, 0.5, 750.0], dtype=torch.float64)


def images(seed: int) -> Tensor:
    return torch.randint(256, (40, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


HARD = {
    "norm 140": lambda: (50 * data.noise(60, 8, seed=1), 50 * data.noise(60, 8, seed=2)),
    "wines": lambda: (wines(), wines()),
    "images": lambda: (images(1), images(2)),
    "zeros": lambda: (torch.zeros(40, 4), torch.zeros(40, 4)),
    "zero queries": lambda: (torch.zeros(40, 4), data.noise(40, 4, seed=1)),
}


@pytest.mark.parametrize(
    ("name", "objective"),
    [("norm 140", "attention"), ("wines", "kernel"), ("images", "attention"), ("zeros", "kernel")],
)
def test_all_files_are_written(name, objective, tmp_path, capsys):
    advice = hrf.advise(*HARD[name](), objective=objective, **QUICK)
    page.publish(advice, tmp_path)
    stored = {
        c["name"]: c["predicted"] for c in json.loads((tmp_path / "advice.json").read_text())["ranking"]
    }
    assert len(stored) == len(advice.ranking)
    assert (tmp_path / "advice.png").read_bytes().startswith(b"\x89PNG")
    infinite = [c.name for c in advice.ranking if c.predicted == math.inf]
    assert all(stored[name] is None for name in infinite)
    if name in ("norm 140", "images"):
        assert infinite
        assert "random features fail beyond norms of about 2" in advice.warning
        assert "Warning: no map is good enough" in capsys.readouterr().out


def test_the_reason_why_nothing_is_left_is_one_sentence(monkeypatch):
    def broken(*_):
        raise ArithmeticError("its estimates overflow or vanish")

    monkeypatch.setattr("hrf.advice.advisor._measure", broken)
    with pytest.raises(
        ValueError, match=r"no map works .*: its estimates overflow or vanish; lower the scale"
    ):
        hrf.advise(*data.easy(), budget=8)


# Summarised attention.


LENGTH, WIDTH = 512, 8


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, LENGTH, WIDTH, dtype=torch.float64, generator=generator)
    return Problem(q, k, v, "output")


@pytest.mark.parametrize("budget", [16, 4096])
def test_tolerance_is_the_smallest_within_the_cost(problem, budget):
    reference = hrf.Positive(WIDTH, n_projections=budget // 2)
    finding = errors.find_summaries(problem, reference, LENGTH)
    allowed = errors.map_flops(reference, WIDTH)
    assert finding.flops == round(errors.summary_flops(LENGTH, WIDTH, WIDTH, finding.exact_share))
    assert finding.relative_cost == pytest.approx(finding.flops / allowed, rel=1e-3)
    assert finding.relative_cost <= 1 or finding.tolerance == math.inf
    assert (finding.tolerance == 0.5) == (budget == 4096)
    assert (finding.tolerance == math.inf) == (budget == 16)


def test_error_is_of_the_output(problem):
    finding = errors.find_summaries(problem, hrf.Positive(WIDTH, n_projections=8), LENGTH)
    q, k, v = (u[None].float() for u in (problem.queries, problem.keys, problem.values))
    output = hrf.attention(q, k, v, hrf.SummarisedAttention(tolerance=finding.tolerance), scale=1.0)
    exact = F.scaled_dot_product_attention(q, k, v, scale=1.0)
    assert finding.error == pytest.approx(float((output - exact).norm() / exact.norm()), rel=1e-3)


def test_none_where_it_would_be_exact_or_there_are_no_outputs(problem):
    reference = hrf.Positive(WIDTH, n_projections=8)
    weights = Problem(problem.queries, problem.keys, None, "attention")
    short = Problem(problem.queries[:100], problem.keys, problem.values, "output")
    assert errors.find_summaries(weights, reference, LENGTH) is None
    assert errors.find_summaries(short, reference, LENGTH) is None
    assert errors.find_summaries(problem, reference, 100) is None


def test_advice_tells_of_it():
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 600, WIDTH, generator=generator)
    advice = hrf.advise(q, k, v, budget=16, n_redraws=2)
    assert advice.summarised.error < advice.ranking[0].error
    (sentence,) = [s for s in advice.sentences() if "SummarisedAttention" in s]
    assert f"{advice.summarised.exact_share:.1%} of pairs" in sentence
    assert advice.to_dict()["summarised"]["error"] == advice.summarised.error
    assert hrf.advise(q, k, budget=16, n_redraws=2).summarised is None


# Words about findings.


@pytest.fixture(scope="module")
def found():
    generator = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(2, 200, 4, generator=generator)
    return hrf.advise(queries, keys, budget=32, n_redraws=2)


def with_errors(found, best, beyond, summarised=None):
    """Change the errors of the best map, of what is not ranked, and of summarised attention."""
    first = replace(found.ranking[0], error=best, low=best, high=best)
    others = [replace(c, error=error) for c, error in zip(found.beyond, beyond, strict=True)]
    method = None if summarised is None else SummaryFinding(1.0, summarised, 0.05, 100, 0.9)
    return replace(found, ranking=[first, *found.ranking[1:]], beyond=others, summarised=method)


def test_the_best_map_is_best_of_all_if_nothing_is_better(found):
    best = with_errors(found, 0.01, [0.02, 0.03], 0.04)
    assert headline(best) == f"Use {found.ranking[0].name}: best at this budget, and best of all, error 0.010"
    assert not any("Not ranked" in sentence for sentence in sentences(best))


@pytest.mark.parametrize(
    ("beyond", "summarised", "error"), [([0.026, 0.1], 0.085, "0.026"), ([0.2, 0.3], 0.085, "0.085")]
)
def test_what_is_better_than_the_best_map_is_named_beside_it(found, beyond, summarised, error):
    changed = with_errors(found, 0.123, beyond, summarised)
    name = found.beyond[0].name if error == "0.026" else "summarised attention"
    assert f"{found.ranking[0].name}, error 0.123; best of all: {name}, error {error}" in headline(changed)
    assert sentences(changed)[0] == f"{headline(changed)}."
    assert any(sentence.startswith(f"Not ranked: {name}, since ") for sentence in sentences(changed))


@pytest.mark.parametrize(("error", "word"), [(0.917, "hardly"), (1.0, "no"), (1.3, "no"), (0.6, None)])
def test_no_better_is_said_of_what_is_no_better(found, error, word):
    text = warning(replace(with_errors(found, error, [2.0, 2.0]), uniform=1.0))
    words = re.findall(r"(\w+) better than ignoring queries and keys", text)
    assert words == ([] if word is None else [word])


def test_flops_of_summaries_by_hand():
    """At 512 tokens there are 64 groups and 64 clusters; keys of 2 and values of 3."""
    trees, sums = 26 * 2 * 12 + 12 * 4, 2 * 64 * 7 + 2 * 64 * 5
    assert errors.summary_flops(512, 2, 3, 0.5) == trees + sums + 0.5 * 512 * 10


def test_the_largest_map_within_a_budget_by_count_and_by_measurement():
    """A measured cost may jump, as from a cache that overflows: it is never extrapolated."""

    def build(m: int) -> hrf.FeatureMap:
        return hrf.AngularHybrid(4, n_projections=m, n_coefficient_projections=2)

    for count, limit in ((lambda phi: phi.active_width, 100), (lambda phi: phi.flops(), 5000)):
        m = candidates.largest_within(build, count, limit)
        assert count(build(m)) <= limit < count(build(m + 1))
    with pytest.raises(ValueError, match="even one projection"):
        candidates.largest_within(build, lambda phi: phi.active_width, 11)

    def cost(phi: hrf.Positive) -> float:
        return phi.feature_dim / 100 * (1 if phi.feature_dim < 60 else 3)

    m = candidates.largest_measured(lambda m: hrf.Positive(4, n_projections=m), cost, 1, 8)
    assert cost(hrf.Positive(4, n_projections=m)) <= 1.1


@pytest.mark.stat
def test_predictions_agree_with_measurements():
    """Up to the other pairs that they are of. (Positive estimates have tails too long for 20 draws.)"""
    advice = hrf.advise(*data.easy(), budget=BUDGET, objective="kernel", n_redraws=20)
    for name in ("trigonometric", "FAVOR++", "clustered separable 16"):
        c = candidate(advice, name)
        assert c.low / 1.2 <= c.predicted <= 1.2 * c.high, name


def test_heads_are_arrays_of_one_head_or_more():
    rows = np.random.default_rng(0).normal(size=(2, 40, 3))
    given = {"budget": 16, "n_redraws": 2}
    from_lists, from_arrays = (hrf.advise_heads(u, u, **given) for u in (rows.tolist(), rows))
    assert [one.to_dict() for one in from_lists] == [one.to_dict() for one in from_arrays]
    with pytest.raises(
        ValueError, match=r"queries \(0, 40, 3\), .*with the same number of heads, one or more"
    ):
        hrf.advise_heads(rows[:0], rows[:0], **given)

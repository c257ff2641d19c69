"""`convert` with a quality to reach, and what its verdict says about time."""

from __future__ import annotations

import math

import pytest
import torch

import hrf
from hrf.integrations.transformers import conversion, convert
from hrf.integrations.transformers.attention import fitted_maps
from hrf.integrations.transformers.conversion import Speed, extrapolated, measure_speed
from hrf.integrations.transformers.interface import AttentionCall
from integrations.models import batches, bert, final, llama, made


def cosine(model, exact, tests):
    pairs = [(final(model(ids)), final(exact(ids))) for ids in tests]
    return float(torch.cat([torch.cosine_similarity(*pair, dim=-1).flatten() for pair in pairs]).mean())


def test_quality_takes_the_first_map_that_reaches_it():
    model, exact, tests = made(bert), made(bert, "sdpa"), batches(6)[4:]
    reached = []
    for rung in conversion.LADDER:
        vectors, trial = [], made(bert)
        report = convert(
            trial, batches(4), test_batches=tests, progress=False, feature_map=_fit(rung, vectors)
        )
        reached.append(report.cosine)
        assert report.cosine == pytest.approx(cosine(trial, exact, tests), abs=1e-6)
    wanted = sorted(reached)[len(reached) // 2]  # half of the maps do not reach it
    report = convert(model, batches(4), test_batches=tests, quality=wanted - 1e-9, progress=False)
    first = next(i for i, found in enumerate(reached) if found >= wanted - 1e-9)
    assert report.chosen == conversion.LADDER[first].name
    assert report.cosine == pytest.approx(cosine(model, exact, tests), abs=1e-6)
    assert report.chosen in str(report)


def _fit(rung, vectors):
    def fit(queries, keys, *, heads):
        found = conversion.fit_clusters(queries, keys, heads=heads)
        torch.manual_seed(0)
        for _ in vectors:  # as for all layers in turn
            rung.fit(vectors[0])
        vectors.append(found)
        return rung.fit(found)

    return fit


def test_quality_that_no_map_reaches_changes_nothing():
    model = made(llama, "sdpa")
    before = final(model(batches()[0]))
    with pytest.raises(
        ValueError, match=r"no map reaches a mean cosine of 0\.9999999.*the best is 0\.\d+, by "
    ):
        convert(model, batches(), quality=0.9999999, progress=False)
    assert model.config._attn_implementation == "sdpa"
    assert not fitted_maps(model)
    assert torch.equal(final(model(batches()[0])), before)


def test_a_failed_search_keeps_the_maps_of_an_earlier_conversion():
    model = made(llama)
    convert(model, batches(), feature_map="positive", progress=False)
    before = fitted_maps(model)
    with pytest.raises(ValueError, match="no map reaches"):
        convert(model, batches(), quality=0.9999999, progress=False)
    assert fitted_maps(model) == before
    assert model.config._attn_implementation == "hrf_fitted"


@pytest.mark.parametrize("quality", [0, 1, 99, -0.5, math.nan])
def test_a_quality_is_a_cosine(quality):
    with pytest.raises(ValueError, match=r"quality is .*expected a mean cosine"):
        convert(made(bert), batches(), quality=quality)


def test_quality_and_a_map_exclude_each_other():
    with pytest.raises(ValueError, match="quality chooses the map, but feature_map is 'positive'"):
        convert(made(bert), batches(), quality=0.9, feature_map="positive")


def test_each_map_of_the_ladder_has_a_line(capsys):
    convert(made(bert), batches(), quality=0.01)
    lines = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("fitting layer") for line in lines) == 2
    assert [line for line in lines if line.startswith("trying maps")] == [
        f"trying maps 1 of {len(conversion.LADDER)}: {conversion.LADDER[0].name}"
    ]


def test_break_even_is_where_a_power_law_is_one():
    ratios = [8 / 2**i for i in range(3)]  # proportional to 1/length: 1 at 8 times the length
    assert extrapolated(100, ratios) == pytest.approx(800)
    assert extrapolated(100, ratios[:2]) == pytest.approx(800)
    assert extrapolated(100, [2.0, 0.5]) == pytest.approx(100 * 2**0.5)
    assert extrapolated(100, [0.9]) == 100
    assert math.isnan(extrapolated(100, [2.0]))
    assert math.isinf(extrapolated(100, [2.0, 2.0]))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Speed(512, 2.04, 1432), "2.0 times as long; it breaks even at about 1,400 tokens"),
        (Speed(512, 2.04, math.inf), "slower than exact at 512 tokens"),
        (Speed(512, 2.04, math.nan), "too long to measure"),
        (Speed(4096, 0.5, 4096), "2.0 times as fast as exact at 4,096 tokens on this machine"),
    ],
)  # fmt: skip
def test_the_verdict_in_words(found, words):
    assert words in str(found)


def test_speed_is_measured_until_linear_attention_wins(monkeypatch):
    lengths = []

    def ratio(call, feature_map):
        lengths.append(call.key.shape[2])
        return 300 / call.key.shape[2]

    monkeypatch.setattr(conversion, "_ratio", ratio)
    call = AttentionCall(*torch.randn(3, 2, 4, 100, 8), ignore=None, is_causal=True, scale=0.3)
    found = measure_speed(call, hrf.Positive(8, n_projections=4), budget=math.inf)
    assert lengths == [100, 200, 400]
    assert found.break_even == pytest.approx(300)
    lengths.clear()
    assert math.isnan(measure_speed(call, hrf.Positive(8, n_projections=4), budget=0).break_even)
    assert lengths == [100]


@pytest.mark.parametrize("build", [bert, llama])
def test_reports_say_how_fast(build):
    report = convert(made(build), batches(), feature_map="positive", progress=False)
    assert report.speed.length == 11
    assert report.speed.ratio > 0
    assert str(report).endswith(str(report.speed))

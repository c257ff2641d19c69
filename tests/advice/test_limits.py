"""Limits of candidates: measured time, and the size of the state."""

from __future__ import annotations

import random
import re

import pytest
import torch

import hrf
from advice import data
from hrf.advice import Advice, candidates

BUDGET = 32


def names(advice: Advice) -> list[str]:
    return sorted(c.name for c in [*advice.ranking, *advice.beyond])


def test_noisy_times_change_sizes_but_not_the_set_of_maps(monkeypatch):
    draws = random.Random(0)

    def seconds(feature_map, vectors):
        return (100 + feature_map.active_width) * draws.lognormvariate(0, 1)

    monkeypatch.setattr(candidates, "seconds", seconds)
    options = {"budget": BUDGET, "unit": "time", "n_redraws": 2, "length": 1000}
    first, second = (hrf.advise(*data.easy(), **options) for _ in range(2))
    assert names(first) == names(second)
    assert first.left_out == second.left_out == {}
    widths = [{c.name: c.width for c in [*a.ranking, *a.beyond]} for a in (first, second)]
    assert widths[0] != widths[1]


def test_maps_that_are_too_slow_stand_apart(monkeypatch):
    def seconds(feature_map, vectors):
        return 1.0 if isinstance(feature_map, (hrf.Positive, hrf.Trigonometric)) else 3.0

    monkeypatch.setattr(candidates, "seconds", seconds)
    advice = hrf.advise(*data.easy(), budget=BUDGET, unit="time", n_redraws=2)
    assert {"positive", "trigonometric"} <= {c.name for c in advice.ranking}
    slow = {c.name: c.note for c in advice.beyond}
    assert "takes 3.0 times the time allowed" in slow["angular hybrid"]
    assert all(c.family in ("isotropic", "fitted") for c in advice.ranking)


@pytest.mark.parametrize("value_dim", [None, 2])
def test_no_state_is_larger_than_the_keys_and_values(value_dim):
    q, k = data.clusters()
    values = None if value_dim is None else data.noise(len(k), value_dim, seed=5)
    d, d_v = q.shape[-1], value_dim or q.shape[-1]
    advice = hrf.advise(q, k, values, budget=BUDGET, length=40, n_redraws=2)
    for c in [*advice.ranking, *advice.beyond]:
        state = c.feature_map.feature_dim * (d_v + 1)
        assert c.feature_map.feature_dim <= BUDGET or state <= 40 * (d + d_v), c.name
    reason = advice.left_out["clustered separable 16"]
    assert reason.startswith(f"its state of 256 × {d_v + 1} numbers is larger than the 40 keys and values")
    assert "clustered" in {c.family for c in advice.ranking}  # with fewer clusters


def test_long_sequences_and_kernels_have_room_for_more():
    q, k = data.clusters()
    sizes = []
    for options in ({"length": 40}, {"objective": "kernel", "length": 40}, {"length": 10_000}):
        advice = hrf.advise(q, k, budget=BUDGET, n_redraws=2, **options)
        sizes.append(max(c.feature_map.feature_dim for c in advice.ranking))
    assert sizes[0] < sizes[1] == sizes[2]


def test_a_length_is_a_number_of_keys():
    for length in (0, -5):
        with pytest.raises(ValueError, match=f"length is {length}; expected the number of keys per sequence"):
            hrf.advise(*data.easy(), length=length)


def test_maps_with_a_matrix_are_left_out_where_columns_are_many(monkeypatch):
    """A matrix of 100,000 × 100,000 numbers takes 40 GB in float32."""
    x = torch.randn(12, 100_000, generator=torch.Generator().manual_seed(0)) / 400
    sentence = "vectors have 100000 columns, .*expected at most 2048 columns"
    kernel = hrf.advise_kernel(x, gamma=1.0, budget=8, n_redraws=2)
    assert sorted(c.name for c in kernel.ranking) == ["centred", "trigonometric"]
    assert all(
        re.match(sentence, kernel.left_out[name]) for name in ("optimal-positive", "dense-exponential")
    )
    monkeypatch.setattr(candidates, "MOST_COLUMNS", 3)
    queries, keys = (u[:60] for u in data.easy()[:2])
    advice = hrf.advise(queries, keys, budget=BUDGET, n_redraws=2)
    assert list(advice.left_out) == ["maps with a matrix"]
    assert "angular hybrid" in names(advice)

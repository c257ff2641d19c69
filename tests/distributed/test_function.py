"""Attention over ranks equals `hrf.attention` over all tokens, outputs and gradients; its bytes do not grow."""

from __future__ import annotations

import pytest

from features.registry import MAPS
from ranked.cases import FAMILIES, bytes_moved, every_case, without_gradients_on_a_rank
from ranked.processes import run

# As in tests of the engines: float64 through a few cancellations.
ROUNDING = 1e-8


def assert_small(results: list[dict[str, float]]) -> None:
    for rank, errors in enumerate(results):
        assert errors
        wrong = {case: error for case, error in errors.items() if not error <= ROUNDING}
        assert not wrong, f"rank {rank}: {wrong}"


@pytest.mark.parametrize("size", [1, 2])
def test_equals_attention(size):
    assert_small(run(size, every_case, FAMILIES))


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 4])
def test_equals_attention_on_more_ranks(size):
    assert_small(run(size, every_case, FAMILIES))


@pytest.mark.slow
def test_all_other_maps():
    assert_small(run(2, every_case, [name for name in MAPS if name not in FAMILIES], False))


def test_bytes_and_collectives_do_not_depend_on_the_length():
    for rank, found in enumerate(run(3, bytes_moved)):
        for case, (short, long, state) in found.items():
            assert short == long, f"rank {rank}, {case}"
            assert short.bytes > state  # the count sees the state at least once


def test_a_rank_without_gradients_takes_part_in_the_backward_pass():
    assert_small(run(2, without_gradients_on_a_rank))

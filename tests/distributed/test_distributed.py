"""Attention, layers and samplers over ranks equal those of one process; bad input is a sentence on every rank."""

from __future__ import annotations

import re

import pytest
import torch
from scipy import stats

import hrf.distributed
from attention.data import inputs
from features.registry import MAPS
from ranked.cases import FAMILIES, bytes_moved, every_case, without_gradients_on_a_rank
from ranked.layers import every_layer, fully_sharded, redraws, refusals
from ranked.processes import run
from ranked.refusals import every_refusal, missing_in_backward, missing_rank, positive
from ranked.samplers import measured, updated
from ranked.samplers import refusals as class_refusals

# As in tests of the engines: float64 through a few cancellations.
ROUNDING = 1e-8


def assert_small(results: list[dict[str, float]]) -> None:
    for rank, errors in enumerate(results):
        assert errors
        wrong = {case: error for case, error in errors.items() if not error <= ROUNDING}
        assert not wrong, f"rank {rank}: {wrong}"


@pytest.mark.parametrize(("size", "names"), [(1, FAMILIES[::3]), (2, FAMILIES)])
def test_equals_attention(size, names):
    assert_small(run(size, every_case, names))


@pytest.mark.slow
def test_equals_attention_on_more_ranks():
    assert_small(run(3, every_case, FAMILIES[::2]))


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


# Layers.


@pytest.mark.slow
def test_layers_with_sharded_parameters():
    assert_small(run(2, fully_sharded))


def test_outputs_and_gradients_of_parameters():
    for rank, errors in enumerate(run(2, every_layer)):
        wrong = {case: error for case, error in errors.items() if not error <= 1e-10}  # float64
        assert not wrong, f"rank {rank}: {wrong}"


def test_redraws_are_the_same_on_every_rank():
    every = run(3, redraws)
    assert every[0] == every[1] == every[2]
    assert len({tuple(omega) for omega in every[0]}) == 4


def test_what_is_refused():
    first, second = run(2, refusals)
    for texts in (first, second):
        for call in ("weights", "mask"):
            assert texts[call].startswith("ValueError: need_weights or attn_mask came with a sequence_group")
        assert texts["summaries"].startswith("ValueError: attention and sequence_group are both given")
        assert texts["two axes"].startswith(
            "ValueError: the mesh has axes ('data', 'sequence'); expected one"
        )
        assert texts["a number"].startswith("TypeError: group is of type int; expected a process group")
    assert second["not in the group"].startswith(
        "TypeError: group is GroupMember.NON_GROUP_MEMBER: this rank"
    )


# Classes over ranks.


FIVE_SIGMA = stats.norm.sf(5)

SUMS = 1e-12  # of sums of 64 classes in float64


@pytest.mark.parametrize("size", [1, 3])
def test_distribution(size):
    every = run(size, measured)
    for case, found in every[0].items():
        assert found["sum"] < SUMS, case
        assert found["stated"] < SUMS, case
        if "Positive" in case or "aligned=True" in case:
            assert found["difference"] < SUMS, case
        assert all(other[case]["ids"] == found["ids"] for other in every), case
        assert_fits(torch.tensor(found["counts"]), torch.tensor(found["own"]))


def assert_fits(counts, expected):
    """Pearson's chi-square test at five standard errors; classes that hardly ever come count as one."""
    rare = expected < 5
    counts = torch.cat([counts[~rare], counts[rare].sum()[None]]).double()
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    statistic = ((counts - expected) ** 2 / expected.clamp(min=1)).sum()
    assert float(statistic) <= stats.chi2.isf(FIVE_SIGMA, len(counts) - 1)


def test_updates_reach_the_rank_of_a_class():
    assert max(run(2, updated)) < SUMS


SAID_OF_CLASSES = {
    "other queries": "ValueError: ranks differ in queries: rank 1 has (6, 4) with hash",
    "other k": "ValueError: ranks differ in what is asked: rank 1 has k = 4; expected k = 3",
    "other classes": "ValueError: ranks differ in what is asked: rank 1 has (2, 3, 5) with hash",
    "nan": "ValueError: queries has 24 values that are NaN or infinite",
    "too many": "ValueError: k is 65; expected at most the number of classes, 64",
    "not a class": "ValueError: ids run from 1 to 64; expected classes from 0 to 63",
    "no classes": "ValueError: n_classes is 0; expected at least 1",
    "other radius": "ValueError: ranks differ in radius: rank 1 has 2.0; expected None",
    "other map": "ValueError: ranks differ in the feature map: rank 1 has Positive with fingerprint",
    "a list": "TypeError: class_embeddings is of type list; expected a tensor",
}


def test_every_rank_says_what_is_wrong_with_classes_on_one():
    assert_said(run(2, class_refusals), SAID_OF_CLASSES)


# Bad input on one rank is a sentence on every rank, and never a hang.


SAID = {
    "other map": "ValueError: ranks differ in the feature map: rank 1 has Positive with fingerprint",
    "other kind of map": "ValueError: ranks differ in the feature map: rank 1 has AngularHybrid with fingerprint",
    "nan in key": "ValueError: key has 32 values that are NaN or infinite",
    "nan in query": "ValueError: query has 32 values that are NaN or infinite",
    "a string": "TypeError: query is str; expected",
    "integers": "TypeError: value is a tensor of torch.int64; expected",
    "other width": "ValueError: key has last dimension 3",
    "other heads": "ValueError: ranks differ in heads: rank 1 has 2 query heads, 2 key heads; expected 4",
    "other batch": "ValueError: ranks differ in batch axes: rank 1 has (1,); expected (2,), as on rank 0",
    "other dtype": "ValueError: ranks differ in dtype of the computation: rank 1 has torch.float64; expected",
    "other direction": "ValueError: ranks differ in is_causal: rank 1 has True; expected False",
    "other scale": "ValueError: ranks differ in scale: rank 1 has 0.7; expected 0.5",
    "bad scale": "ValueError: scale is -1.0; expected a positive number",
    "bad rule": "ValueError: denominator is 'ignore'; expected one of",
    "queries and keys that do not pair": "ValueError: causal or packed attention got 3 queries and 4 keys",
    "exact pairs": "ValueError: the ClusteredHybrid has exact pairs, or key centres that move",
    "moving centres": "ValueError: the ClusteredHybrid has exact pairs, or key centres that move",
    "summaries": "TypeError: feature_map is a SummarisedAttention",
    "no map": "TypeError: feature_map is 'positive'; expected a FeatureMap",
    "batch of packed sequences": "ValueError: packed sequences came in a batch of 2",
    "no grad": "ValueError: ranks differ in grad mode: rank 1 has off; expected on",
    "small denominator": "ValueError: 16 of 32 denominators are negative",
    "packed too short": "ValueError: cu_seqlens runs from 0 to 3; expected from 0 to the length 12",
    "packed in a list": "TypeError: cu_seqlens is of type list; expected a tensor",
    "packed on one rank": "ValueError: ranks differ in cu_seqlens: rank 1 has 2 numbers with hash",
    "packed in another way": "ValueError: ranks differ in cu_seqlens: rank 1 has 3 numbers with hash",
}


def assert_said(found: list[dict[str, str]], said: dict[str, str]) -> None:
    """Rank 1 is the bad one; other ranks say the same, or that it raised."""
    for rank, texts in enumerate(found):
        assert set(texts) == set(said)
        for case, text in texts.items():
            expected = said[case]
            own = rank == 1 or text.startswith(expected)
            assert text.startswith(expected if own else f"RankError: rank 1 raised {expected}"), (case, text)


def test_every_rank_says_what_is_wrong_on_one():
    assert_said(run(3, every_refusal), SAID)


def test_a_group_of_one():
    (texts,) = run(1, every_refusal)
    assert texts
    assert all(text.startswith(SAID[case]) for case, text in texts.items())


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named():
    for rank, text in enumerate(run(3, missing_rank)[:-1]):
        assert re.match(rf"rank {rank} timed out waiting for agreement on a call: rank 2 did not come", text)


@pytest.mark.slow
def test_a_rank_that_misses_the_backward_pass_is_named():
    for rank, text in enumerate(run(3, missing_in_backward)):
        assert text == "raised" or re.match(
            rf"rank {rank} timed out waiting for the gradients of states: rank 0 did not come", text
        )


def test_no_process_group():
    with pytest.raises(RuntimeError, match=r"torch\.distributed has no process group; expected"):
        hrf.distributed.attention(*inputs(1, length=4), positive())

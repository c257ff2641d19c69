"""Bad input on one rank is a sentence on every rank, and never a hang."""

from __future__ import annotations

import re

import pytest

import hrf.distributed
from attention.data import inputs
from ranked.processes import run
from ranked.refusals import every_refusal, missing_in_backward, missing_rank, positive

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


def test_every_rank_says_what_is_wrong_on_one():
    found = run(3, every_refusal)
    for rank, texts in enumerate(found):
        assert set(texts) == set(SAID)
        for case, text in texts.items():
            expected = SAID[case]
            own = rank == 1 or text.startswith(expected)
            assert text.startswith(expected if own else f"RankError: rank 1 raised {expected}"), (case, text)


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

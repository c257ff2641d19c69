"""Beam search: a wide beam finds the most probable sequence, with its probability."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, product

import pytest
import torch

from hrf_paper.speech.decoding import beam_search, greedy, searched
from hrf_paper.speech.utterances import batch_of, decoded
from made_up_speech import TINY, tiny_model, utterances


def model_of_few_labels(predictor: str = "lstm"):
    model = tiny_model(replace(TINY, vocabulary=3, predictor=predictor), seed=3)
    model.joiner.weight.data *= 6
    return model


@pytest.mark.parametrize("predictor", ["lstm", "stateless"])
def test_a_wide_beam_sums_all_alignments(predictor):
    """Two encoded frames and up to four labels each: scores are log-probabilities of the transducer's loss."""
    model = model_of_few_labels(predictor)
    (utterance,) = utterances([8])
    found = {h.labels: h.score for h in beam_search(model, utterance.features, width=10_000)}
    batch = batch_of([utterance])
    for count in range(5):  # longer sequences have alignments with more than four labels in a frame
        for labels in product((1, 2), repeat=count):
            padded = torch.tensor([labels or (1,)])
            own = batch._replace(labels=padded, n_labels=torch.tensor([count]))
            expected = -model.losses(own).transducer.item()
            assert abs(found[labels] - expected) < 1e-4


def test_hypotheses_are_ranked_and_reproducible():
    model = model_of_few_labels()
    (utterance,) = utterances([40])
    found = beam_search(model, utterance.features, width=5, ctc_weight=0)
    assert len(found) == 5
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    assert found == beam_search(model, utterance.features, width=5, ctc_weight=0)
    wide = beam_search(model, utterance.features, width=50, ctc_weight=0)
    assert wide[0].score >= found[0].score - 1e-4


def test_the_ctc_head_has_a_say():
    """Its scores are those of its loss; a hypothesis that does not fit into the frames comes last."""
    model = model_of_few_labels()
    model.ctc.weight.data *= 6
    (utterance,) = utterances([8])  # two encoded frames
    found = beam_search(model, utterance.features, width=100, ctc_weight=0.5)
    batch = batch_of([utterance])
    for hypothesis in found:
        n = len(hypothesis.labels)
        own = batch._replace(labels=torch.tensor([hypothesis.labels or (1,)]), n_labels=torch.tensor([n]))
        repeated = sum(a == b for a, b in pairwise(hypothesis.labels))
        if n + repeated > 2:
            assert hypothesis.ctc == -math.inf
        else:
            assert math.isclose(hypothesis.ctc, -model.losses(own).ctc.item(), rel_tol=1e-5)
    joint = [h.score + 0.5 * h.ctc for h in found]
    assert joint == sorted(joint, reverse=True)
    assert [h.labels for h in found] != [
        h.labels for h in beam_search(model, utterance.features, width=100, ctc_weight=0)
    ]
    last = [h.score for h in found if h.ctc == -math.inf]
    assert len(last) > 2
    assert last == sorted(last, reverse=True)


def test_searched_texts():
    model, speech = tiny_model(seed=5), utterances([37, 61])
    model.joiner.weight.data *= 8
    found = searched(model, speech)
    assert found == [decoded(beam_search(model, u.features)[0].labels) for u in speech]
    assert any(found)


def test_a_frame_may_write_as_many_labels_as_in_greedy_decoding():
    """A blank of probability 0.1 and a label of 0.9, whatever was written: k labels in a frame have 0.9ᵏ · 0.1."""
    model = model_of_few_labels()
    model.joiner.weight.data.zero_()
    model.joiner.bias.data = torch.tensor([0.1, 0.9, 0.0]).log()
    batch = batch_of(utterances([4]))
    (labels,) = greedy(model, batch.features, batch.frames)
    found = beam_search(model, batch.features[0], width=10)
    assert {h.labels for h in found} == {(1,) * count for count in range(len(labels) + 1)}
    for hypothesis in found:
        expected = math.log(0.9 ** len(hypothesis.labels) * 0.1)
        assert math.isclose(hypothesis.score, expected, rel_tol=1e-5)


def test_padding_is_not_searched():
    model = model_of_few_labels()
    (utterance,) = utterances([40])
    padded = torch.cat((utterance.features, torch.ones(12, 6)))
    assert beam_search(model, padded, 40)[0].labels == beam_search(model, utterance.features)[0].labels


def test_refusal():
    with pytest.raises(ValueError, match="width is 0; expected at least 1"):
        beam_search(model_of_few_labels(), utterances([8])[0].features, width=0)

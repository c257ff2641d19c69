"""Greedy decoding, error rates and beam search."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, product

import pytest
import torch

from hrf_paper.speech.decoding import beam_search, error_rates, greedy, recognised, searched
from hrf_paper.speech.utterances import CHARACTERS, batch_of, decoded, encoded
from made_up_speech import TINY, tiny_model, utterances

# Greedy decoding: of a batch as of its parts, the same every time; error rates.


def test_a_batch_is_decoded_as_its_parts():
    model, speech = tiny_model(seed=5), utterances([37, 61, 20, 90])
    # Random weights write labels at random only if the blank is not always the best choice.
    model.joiner.weight.data *= 8
    batch = batch_of(speech)
    found = greedy(model, batch.features, batch.frames)
    assert any(found)
    assert greedy(model, batch.features, batch.frames) == found
    for labels, utterance in zip(found, speech, strict=True):
        alone = batch_of([utterance])
        assert greedy(model, alone.features, alone.frames) == [labels]
    assert recognised(model, speech) == [decoded(labels) for labels in found]
    assert recognised(model, speech, frames=100) == recognised(model, speech)


def test_a_model_that_only_writes_stops():
    model = tiny_model()
    model.joiner.bias.data[5] = 1e3
    batch = batch_of(utterances([40]))
    (labels,) = greedy(model, batch.features, batch.frames)
    assert labels == [5] * (4 * 10)  # four labels per encoded frame


def test_labels_and_texts():
    text = "IT'S A QUIZ"
    assert decoded(encoded(text)) == text
    assert encoded(CHARACTERS) == list(range(1, len(CHARACTERS) + 1))
    with pytest.raises(ValueError, match="the text has '9'"):
        encoded("ROUTE 9")


def test_error_rates():
    found = error_rates(["A B C D", "E"], ["A X C", "E F"])
    assert math.isclose(found.words, 100 * 3 / 5)  # one wrong, one missing, one too many
    assert error_rates(["A B"], ["A B"]).characters == 0


def test_batches_hold_labels_and_padding():
    batch = batch_of(utterances([20, 30]))
    assert batch.features.shape == (2, 30, 6)
    assert not batch.features[0, 20:].any()
    assert batch.n_labels.tolist() == [7, 5]
    assert decoded(batch.labels[1].tolist()) == "A B C"
    assert torch.equal(batch.frames, torch.tensor([20, 30]))


# Beam search: a wide beam finds the most probable sequence, with its probability.


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


def test_refusal():
    with pytest.raises(ValueError, match="width is 0; expected at least 1"):
        beam_search(model_of_few_labels(), utterances([8])[0].features, width=0)

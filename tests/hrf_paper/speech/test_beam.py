"""Beam search: a wide beam finds the most probable sequence, with its probability."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from hrf_paper.speech.batches import batch_of
from hrf_paper.speech.beam import beam_search
from made_up_speech import TINY, tiny_model, utterances


def model_of_four_labels(predictor: str = "lstm"):
    model = tiny_model(replace(TINY, vocabulary=4, predictor=predictor), seed=3)
    model.joiner.weight.data *= 6
    return model


@pytest.mark.parametrize("predictor", ["lstm", "stateless"])
def test_a_wide_beam_sums_all_alignments(predictor):
    """Two encoded frames and up to three labels each: scores are log-probabilities of the transducer's loss."""
    model = model_of_four_labels(predictor)
    (utterance,) = utterances([8])
    found = {h.labels: h.score for h in beam_search(model, utterance.features, width=10_000)}
    batch = batch_of([utterance])
    for count in range(4):  # longer sequences have alignments with more than three labels in a frame
        for labels in product((1, 2, 3), repeat=count):
            padded = torch.tensor([labels or (1,)])
            own = batch._replace(labels=padded, n_labels=torch.tensor([count]))
            expected = -model.losses(own).transducer.item()
            assert abs(found[labels] - expected) < 1e-4


def test_hypotheses_are_ranked_and_reproducible():
    model = model_of_four_labels()
    (utterance,) = utterances([40])
    found = beam_search(model, utterance.features, width=5)
    assert len(found) == 5
    per_label = [h.score_per_label for h in found]
    assert per_label == sorted(per_label, reverse=True)
    assert found == beam_search(model, utterance.features, width=5)
    wide = beam_search(model, utterance.features, width=50)
    assert max(h.score for h in wide) >= max(h.score for h in found) - 1e-4


def test_the_most_probable_hypothesis_is_not_preferred_for_being_short():
    """A blank of probability 0.4 and a label of 0.6 in every frame: 0.4 for none, 0.6 · 0.4 for one, and so on."""
    model = model_of_four_labels()
    model.joiner.weight.data.zero_()
    model.joiner.bias.data = torch.tensor([0.4, 0.6, 0.0, 0.0]).log()
    (first, *others) = beam_search(model, utterances([4])[0].features, width=4)
    assert first.labels == (1, 1, 1)
    assert max(others, key=lambda h: h.score).labels == ()
    assert math.isclose(first.score, math.log(0.6**3 * 0.4), rel_tol=1e-5)
    assert math.isclose(first.score_per_label, first.score / 3)


def test_padding_is_not_searched():
    model = model_of_four_labels()
    (utterance,) = utterances([40])
    padded = torch.cat((utterance.features, torch.ones(12, 6)))
    assert beam_search(model, padded, 40)[0].labels == beam_search(model, utterance.features)[0].labels


def test_refusal():
    with pytest.raises(ValueError, match="width is 0; expected at least 1"):
        beam_search(model_of_four_labels(), utterances([8])[0].features, width=0)

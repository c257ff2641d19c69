"""Greedy decoding: of a batch as of its parts, the same every time; error rates."""

from __future__ import annotations

import math

import pytest
import torch

from hrf_paper.speech.decoding import error_rates, greedy, recognised
from hrf_paper.speech.utterances import CHARACTERS, batch_of, decoded, encoded
from made_up_speech import tiny_model, utterances


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

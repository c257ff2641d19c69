"""Weights of an attention map are those of attention; the figure has a column per method."""

from __future__ import annotations

import torch

import hrf
from hrf_paper.speech.decoding import greedy
from hrf_paper.speech.methods import attention_figure, heard_words, weights
from hrf_paper.speech.utterances import decoded
from made_up_speech import tiny_model, utterances


def test_weights_give_the_output_of_attention():
    query, key, value = torch.randn(3, 2, 12, 8, generator=torch.Generator().manual_seed(0))
    exact = weights(query, key, "exact")
    torch.testing.assert_close(exact.sum(-1), torch.ones(2, 12))
    phi = hrf.Positive(8, n_projections=64, heads=2, seed=0)
    expected = hrf.attention(query[None], key[None], value[None], phi, scale=1.0)[0]
    torch.testing.assert_close(weights(query, key, phi) @ value, expected, rtol=1e-4, atol=1e-4)


def test_words_are_those_of_greedy_decoding_in_their_order():
    model = tiny_model()
    for utterance in utterances([90, 120, 60]):
        found = heard_words(model, utterance)
        (labels,) = greedy(model, utterance.features[None], torch.tensor([len(utterance.features)]))
        assert " ".join(word.text for word in found) == decoded(labels)
        assert [word.frame for word in found] == sorted(word.frame for word in found)


def test_a_column_per_method():
    model, (utterance,) = tiny_model(), utterances([90])
    drawing = attention_figure(model, utterance, ["FAVOR+ 128", "summarised"], utterances([80] * 6, seed=1))
    titles = [axes.get_title() for axes in drawing.get_axes()]
    assert titles[:4] == ["", "", "", "exact"]
    assert titles[4].startswith("FAVOR+ 128: relative error ")
    assert titles[5].startswith("summarised: relative error ")

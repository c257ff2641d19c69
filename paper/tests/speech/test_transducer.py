"""A batch of one is a batch of many; the predictor step by step is the predictor at once; methods are exchanged."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import hrf
from hrf_paper.speech.conformer import CONFIGS, sinusoids
from hrf_paper.speech.methods import METHODS, install, vectors
from hrf_paper.speech.transducer import ConformerTransducer, PredictorState
from hrf_paper.speech.utterances import batch_of
from made_up_speech import TINY, tiny_model, utterances

LENGTHS = [37, 61, 20, 90]
ROUNDING = 5e-5  # of outputs of about 1 after a few layers in float32


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "none"])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_changes_nothing(positions, causal):
    model = tiny_model(replace(TINY, positions=positions, causal=causal))
    batch = batch_of(utterances(LENGTHS))
    encoded, lengths = model.encode(batch.features, batch.frames)
    losses = model.losses(batch)
    assert lengths.tolist() == [-(-n // 4) for n in LENGTHS]
    for i, utterance in enumerate(utterances(LENGTHS)):
        alone = batch_of([utterance])
        own, (length,) = model.encode(alone.features, alone.frames)
        torch.testing.assert_close(encoded[i, :length], own[0], rtol=0, atol=ROUNDING)
        for together, single in zip(losses, model.losses(alone), strict=True):
            torch.testing.assert_close(together[i : i + 1], single, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", METHODS)
def test_padding_changes_nothing_with_any_method(name):
    model = tiny_model()
    install(model, name, utterances([80] * 20, seed=3), seed=1)
    batch = batch_of(utterances(LENGTHS))
    encoded, lengths = model.encode(batch.features, batch.frames)
    for i, utterance in enumerate(utterances(LENGTHS)):
        alone = batch_of([utterance])
        own, _ = model.encode(alone.features, alone.frames)
        torch.testing.assert_close(encoded[i, : lengths[i]], own[0], rtol=0, atol=10 * ROUNDING)


def test_causal_frames_do_not_see_later_frames():
    model = tiny_model(replace(TINY, causal=True))
    (utterance,) = utterances([80])
    features = utterance.features[None]
    changed = features.clone()
    changed[:, 40:] += 1
    before, after = (model.encode(x, torch.tensor([80]))[0] for x in (features, changed))
    # Two strides of two: encoded frame 10 is the first that sees frame 40.
    torch.testing.assert_close(before[:, :10], after[:, :10], rtol=0, atol=ROUNDING)
    assert (before[:, 10] - after[:, 10]).abs().max() > 100 * ROUNDING


def test_queries_and_keys_of_one_length():
    model = tiny_model(replace(TINY, key_length=1.5))
    for queries, keys in vectors(model, utterances(LENGTHS)):
        for found in (queries, keys):
            torch.testing.assert_close(found.norm(dim=-1), torch.full(found.shape[:-1], 1.5))


@pytest.mark.parametrize("predictor", ["lstm", "stateless"])
def test_predictor_step_by_step(predictor):
    model = tiny_model(replace(TINY, predictor=predictor))
    labels = torch.tensor([[3, 1, 4, 1], [2, 7, 1, 8]])
    logits = []
    frame = torch.zeros(2, TINY.joint_width)
    out, state = model.start(2)
    logits.append(model.join(frame, out))
    for step in labels.T:
        out, state = model.advance(step, state)
        assert isinstance(state, PredictorState)
        logits.append(model.join(frame, out))
    # The whole lattice at once, seen through a loss that is zero in no entry.
    model.of_frames.weight.data.zero_()
    model.of_frames.bias.data.zero_()
    batch = batch_of(utterances([8, 8]))._replace(labels=labels, n_labels=torch.tensor([4, 4]))
    expected = sum(
        -row.log_softmax(-1).gather(-1, label[:, None])[:, 0]
        for row, label in zip(logits, [*labels.T, torch.zeros(2, dtype=torch.long)], strict=True)
    )
    # One encoded frame has one alignment: all labels, then the blank.
    one = batch._replace(features=batch.features[:, :4], frames=torch.tensor([4, 4]))
    torch.testing.assert_close(model.losses(one).transducer, expected, rtol=1e-5, atol=0)


def test_exchanging_methods_leaves_weights_alone():
    model = tiny_model()
    speech = utterances(LENGTHS)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batch = batch_of(speech)
    exact, _ = model.encode(batch.features, batch.frames)
    install(model, "FAVOR+ 256", speech)
    changed, _ = model.encode(batch.features, batch.frames)
    assert isinstance(model.attentions[0].method, hrf.Positive)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not torch.equal(exact, changed)
    install(model, "exact", speech)
    again, _ = model.encode(batch.features, batch.frames)
    assert torch.equal(exact, again)


@torch.no_grad()
def test_many_features_come_close_to_exact_attention():
    model = tiny_model()
    batch = batch_of(utterances([80]))
    exact, _ = model.encode(batch.features, batch.frames)
    distances = []
    for rows in (64, 64 * 256):
        for attention in model.attentions:
            attention.use(hrf.Positive(8, n_projections=rows, heads=2, seed=0))
        found, _ = model.encode(batch.features, batch.frames)
        distances.append(float((found - exact).norm()))
    # Errors fall with the root of the number of features: by 16, and surely by 4.
    assert distances[1] < distances[0] / 4


def test_uniform_attention_is_the_mean_of_the_values():
    model = tiny_model()
    attention = model.attentions[0]
    x, padding = torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(0)), torch.zeros(1, 5).bool()
    attention.use("uniform")
    value = attention.inputs(attention.norm(x)).chunk(3, -1)[2]  # (1, 5, 16), all heads side by side
    expected = attention.outputs(value.mean(1, keepdim=True).expand_as(value))
    torch.testing.assert_close(attention(x, padding), expected)
    attention.use("none")
    assert not attention(x, padding).any()


def test_refused_methods():
    model = tiny_model()
    with pytest.raises(ValueError, match="the method is 'softmax'; expected 'exact', 'uniform', 'none'"):
        model.attentions[0].use("softmax")
    with pytest.raises(ValueError, match="there is no method 'HRF-B'"):
        install(model, "HRF-B", utterances(LENGTHS))


def test_positions_differ_from_frame_to_frame_and_shift():
    found = sinusoids(0, 50, 16, torch.device("cpu"))
    assert torch.equal(found[7:], sinusoids(7, 43, 16, torch.device("cpu")))
    assert torch.cdist(found, found).fill_diagonal_(9).min() > 0.1


def test_sizes_of_the_paper():
    """17 blocks of 8 heads with 64 dimensions each; the Conformer's authors count 118.8 million parameters in all."""
    with torch.device("meta"):
        model = ConformerTransducer(CONFIGS["paper"])
    assert len(model.attentions) == 17
    assert CONFIGS["paper"].width // CONFIGS["paper"].heads == 64
    count = sum(p.numel() for p in model.parameters())
    assert 100e6 < count < 140e6


def test_sizes_that_cannot_be_get_a_sentence():
    with pytest.raises(ValueError, match="kernel is 4; expected an odd number"):
        replace(TINY, kernel=4)
    with pytest.raises(ValueError, match=r"key_length is 0.0; expected a positive number or None"):
        replace(TINY, key_length=0.0)

"""The joiner, the loss and the model."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from torch import Tensor

import hrf
from hrf_paper.speech.conformer import CONFIGS, ByteDropout, sinusoids
from hrf_paper.speech.methods import install, vectors
from hrf_paper.speech.transducer import ConformerTransducer, PredictorState, join_lattice, rnnt_loss
from hrf_paper.speech.utterances import batch_of, through_microphones
from made_up_speech import TINY, tiny_model, utterances

# The joiner over the lattice equals the plain formula, with its gradients; dropout by bytes drops what it should.

FRAMES, LABELS = torch.tensor([5, 3]), torch.tensor([2, 3])


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 5, 8), (2, 4, 8), (6, 8), (6,)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def test_logits_and_gradients():
    frames, labels, weight, bias = inputs()
    found = join_lattice(frames, labels, weight, bias, FRAMES, LABELS)
    plain = torch.tanh(frames[:, :, None] + labels[:, None]) @ weight.mT + bias
    inside = (torch.arange(5) < FRAMES[:, None])[:, :, None] & (torch.arange(4) <= LABELS[:, None])[:, None]
    torch.testing.assert_close(found, plain * inside[..., None])
    assert torch.autograd.gradcheck(
        lambda *args: join_lattice(*args, FRAMES, LABELS), (frames, labels, weight, bias)
    )


def test_dropout_keeps_the_mean_and_drops_the_share():
    dropout, x = ByteDropout(0.3).train(), torch.ones(200, 501)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = dropout(x)
    share = 77 / 256
    five_deviations = 5 * (share * (1 - share) / x.numel()) ** 0.5
    assert abs(float((found == 0).double().mean()) - share) < five_deviations
    assert set(found.unique().tolist()) == {0.0, float(torch.tensor(256 / 179))}
    assert dropout.eval()(x) is x


def test_microphones_shift_whole_utterances_smoothly():
    single = utterances([30] * 400, channels=26)
    found = through_microphones(single, 2.0, torch.Generator().manual_seed(1))
    offsets = torch.stack([(b.features - a.features)[0] for a, b in zip(single, found, strict=True)])
    for a, b, offset in zip(single, found, offsets, strict=True):
        torch.testing.assert_close(b.features, a.features + offset)
        assert (a.name, a.speaker, a.text) == (b.name, b.speaker, b.text)
    # A mean of squares over 400 utterances with about four independent numbers each.
    assert abs(float(offsets.square().mean().sqrt()) - 2) < 0.2
    assert offsets.diff(dim=1).abs().mean() < 0.5
    assert through_microphones([], 1.0, torch.Generator()) == []


# The loss against enumeration of all alignments and against warprnnt-numba.


def enumerated(logits: Tensor, labels: list[int], blank: int = 0) -> Tensor:
    """Sum the probabilities of all alignments of one utterance: where among T − 1 + U choices the labels stand."""
    logs = logits.log_softmax(-1)
    steps, count = len(logits), len(labels)
    alignments = []
    for places in combinations(range(steps - 1 + count), count):
        t, u, total = 0, 0, logs.new_zeros(())
        for place in range(steps - 1 + count):
            if place in places:
                total, u = total + logs[t, u, labels[u]], u + 1
            else:
                total, t = total + logs[t, u, blank], t + 1
        alignments.append(total + logs[t, u, blank])
    return -torch.stack(alignments).logsumexp(0)


@pytest.mark.parametrize("blank", [0, 3])
def test_all_alignments(blank):
    generator = torch.Generator().manual_seed(0)
    frames, counts = [4, 1, 3, 4], [3, 2, 0, 1]
    logits = torch.randn(4, 4, 4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(4, (4, 3), generator=generator)
    labels = labels.where(labels < blank, labels + 1)  # none is the blank
    weights = torch.rand(4, generator=generator, dtype=torch.float64)
    found = rnnt_loss(logits, labels, torch.tensor(frames), torch.tensor(counts), blank=blank)
    expected = torch.stack(
        [enumerated(logits[i, : frames[i]], labels[i, : counts[i]].tolist(), blank) for i in range(4)]
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad((side * weights).sum(), logits)[0] for side in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-13)


def test_gradient_by_differences():
    logits = torch.randn(2, 5, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels, frames, counts = torch.tensor([[1, 2, 1], [2, 1, 0]]), torch.tensor([5, 3]), torch.tensor([3, 2])
    assert torch.autograd.gradcheck(lambda x: rnnt_loss(x, labels, frames, counts), logits.requires_grad_())


@pytest.fixture
def threads():
    """Restore the number of threads: numba raises OpenMP's, and every later test would spin on all cores."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_warprnnt():
    """It computes in float32, and so to about 1e-6 of the loss."""
    warprnnt = pytest.importorskip("warprnnt_numba")
    generator = torch.Generator().manual_seed(2)
    logits = 3 * torch.randn(3, 30, 11, 9, generator=generator)
    labels = torch.randint(1, 9, (3, 10), generator=generator)
    frames, counts = torch.tensor([30, 17, 22]), torch.tensor([10, 4, 0])
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    found = rnnt_loss(ours, labels, frames, counts)
    expected = warprnnt.RNNTLossNumba(blank=0, reduction="none")(
        theirs, labels.int(), frames.int(), counts.int()
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    found.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-4)


def test_float32_is_safe_for_long_utterances():
    """At 2,000 frames and 300 labels the float32 loss is the float64 loss but for the rounding of the logits."""
    generator = torch.Generator().manual_seed(3)
    logits = 4 * torch.randn(1, 2000, 301, 3, generator=generator)
    labels = torch.randint(1, 3, (1, 300), generator=generator)
    sizes = torch.tensor([2000]), torch.tensor([300])
    single, double = logits.clone().requires_grad_(), logits.double().requires_grad_()
    found, expected = (rnnt_loss(side, labels, *sizes) for side in (single, double))
    # An alignment adds 2,300 rounded log-probabilities of up to 20.
    bound = 2300 * 20 * torch.finfo(torch.float32).eps
    assert abs(found.item() - expected.item()) <= bound
    found.sum().backward()
    expected.sum().backward()
    assert bool(single.grad.isfinite().all())
    torch.testing.assert_close(single.grad.double(), double.grad, rtol=0, atol=bound)


def test_gradients_of_a_node_add_up_to_zero_and_padding_has_none():
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(2, 6, 4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    frames, counts = torch.tensor([6, 4]), torch.tensor([3, 1])
    rnnt_loss(logits, torch.randint(1, 5, (2, 3), generator=generator), frames, counts).sum().backward()
    assert logits.grad.sum(-1).abs().max() <= 1e-14
    assert not logits.grad[1, 4:].any()
    assert not logits.grad[1, :, 2:].any()
    assert logits.grad[1, 3, 1].any()


def test_an_impossible_logit_costs_nothing():
    logits = torch.zeros(1, 2, 2, 4, dtype=torch.float64)
    logits[..., 3] = -math.inf
    loss = rnnt_loss(logits.requires_grad_(), torch.tensor([[1]]), torch.tensor([2]), torch.tensor([1]))
    assert math.isclose(loss.item(), 3 * math.log(3) - math.log(2))
    loss.sum().backward()
    assert not logits.grad[..., 3].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frames": torch.tensor([0])}, "frames are \\[0\\]; expected numbers from 1 to 4"),
        ({"n_labels": torch.tensor([3])}, "n_labels are \\[3\\]; expected numbers from 0 to 2"),
        ({"labels": torch.tensor([[1, 0]])}, "or the blank 0"),
        ({"labels": torch.tensor([[1, 5]])}, "numbers outside 0 to 4"),
        ({"labels": torch.tensor([[1]])}, "labels, frames and n_labels have shapes \\(1, 1\\)"),
        ({"blank": 5}, "blank is 5; expected a number from 0 to 4"),
        ({"logits": torch.zeros(4, 3, 5)}, "logits are torch.float32 of shape \\(4, 3, 5\\)"),
    ],
)
def test_refusals(change, message):
    arguments = {
        "logits": torch.zeros(1, 4, 3, 5),
        "labels": torch.tensor([[1, 2]]),
        "frames": torch.tensor([4]),
        "n_labels": torch.tensor([2]),
        "blank": 0,
    } | change
    with pytest.raises(ValueError, match=message):
        rnnt_loss(**arguments)


# A batch of one is a batch of many; the predictor step by step is the predictor at once; methods are exchanged.

LENGTHS = [37, 61, 20, 90]
# Methods that share their code differ in numbers alone.
ONE_PER_KIND = ("exact", "uniform", "none", "HRF-C (2, 2) 64", "HRF-A (8, 8)", "FAVOR+ 128", "FAVOR# 256")
ONE_PER_KIND += ("shifted (3, 3) 64", "separable (16, 16)", "summarised")
ROUNDING = 5e-5  # of outputs of about 1 after a few layers in float32


@pytest.mark.parametrize(
    ("positions", "causal"), [("sinusoidal", False), ("rotary", True), ("none", False), ("sinusoidal", True)]
)
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


@pytest.mark.parametrize("name", ONE_PER_KIND)
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
    install(model, "FAVOR+ 128", speech)
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

"""The joiner over the lattice equals the plain formula, with its gradients; dropout by bytes drops what it should."""

from __future__ import annotations

import torch

from hrf_paper.speech.conformer import ByteDropout
from hrf_paper.speech.transducer import join_lattice
from hrf_paper.speech.utterances import through_microphones
from made_up_speech import utterances

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

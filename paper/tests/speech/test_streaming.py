"""A recording in pieces gives what it gives at once, from memory that does not grow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hrf_paper.speech.audio import RunningFeatures, running_log_mel
from hrf_paper.speech.decoding import EncoderStream, greedy, transcribe_stream
from hrf_paper.speech.methods import install
from hrf_paper.speech.utterances import characters
from made_up_speech import TINY, tiny_model, utterances

soundfile = pytest.importorskip("soundfile")

CAUSAL = replace(TINY, causal=True, positions="none")
ROUNDING = 5e-5  # of outputs of about 1 after a few layers in float32


def noise(samples: int) -> torch.Tensor:
    return torch.randn(samples, generator=torch.Generator().manual_seed(0)) / 10


def streaming_model(name: str = "FAVOR+ 128"):
    model = tiny_model(CAUSAL)
    install(model, name, utterances([80] * 20, seed=3))
    return model


def pushed(stream, pieces) -> torch.Tensor:
    return torch.cat([stream.push(piece) for piece in pieces])


@pytest.mark.parametrize("size", [1, 159, 160, 1_000, 16_000])
def test_features_do_not_depend_on_the_pieces(size):
    samples = noise(2_000 if size == 1 else 16_000)
    whole = running_log_mel(samples, 6)
    stream = RunningFeatures(6)
    found = torch.cat((pushed(stream, samples.split(size)), stream.finish()))
    assert len(whole) == 1 + len(samples) // 160
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-5)


def test_features_see_no_later_sample_and_no_volume():
    samples = noise(8_000)
    changed = samples.clone()
    changed[4_000:] *= 10
    before, after = running_log_mel(samples, 6), running_log_mel(changed, 6)
    # A window of 400 samples about 160 t ends before 160 t + 200.
    assert torch.equal(before[:24], after[:24])
    assert not torch.equal(before[26:], after[26:])
    torch.testing.assert_close(running_log_mel(3 * samples, 6), before, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["FAVOR+ 128", "HRF-A (8, 8)", "HRF-C (2, 2) 64", "FAVOR# 256"])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_encoding_in_pieces_is_encoding_at_once(name, size):
    model = streaming_model(name)
    (utterance,) = utterances([150], seed=5)
    with torch.no_grad():
        whole, _ = model.encode(utterance.features[None], torch.tensor([150]))
    found = pushed(EncoderStream(model), utterance.features.split(size))
    torch.testing.assert_close(found, whole[0], rtol=0, atol=10 * ROUNDING)


def test_memory_does_not_grow():
    stream = EncoderStream(streaming_model())
    sizes = []
    for utterance in utterances([40] * 30, seed=6):
        stream.push(utterance.features)
        sizes.append(stream.size)
    assert len(set(sizes)) == 1
    assert sizes[0] > 0


def test_a_file_is_heard_in_pieces_as_at_once(tmp_path):
    model, path = streaming_model(), tmp_path / "a.wav"
    soundfile.write(path, np.stack([noise(24_000).numpy()] * 2, 1), 16_000, subtype="FLOAT")  # stereo
    features = running_log_mel(noise(24_000), 6)
    (whole,) = greedy(model, features[None], torch.tensor([len(features)]))
    assert len(whole) > 0
    for seconds in (0.01, 0.3, 5.0):
        assert "".join(transcribe_stream(model, path, seconds)) == characters(whole)


def test_what_cannot_be_streamed_gets_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="causal=False and positions='sinusoidal'; expected a causal model"):
        EncoderStream(tiny_model())
    with pytest.raises(ValueError, match="attention is 'exact', whose memory grows with every frame"):
        EncoderStream(tiny_model(CAUSAL))
    path = tmp_path / "a.wav"
    soundfile.write(path, np.zeros(100), 8_000)
    with pytest.raises(ValueError, match="8000 samples per second; expected 16000 for streaming"):
        next(transcribe_stream(streaming_model(), path))
    soundfile.write(path, np.zeros(0), 16_000)
    with pytest.raises(ValueError, match="has no samples"):
        next(transcribe_stream(streaming_model(), path))

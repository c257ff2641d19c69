"""Audio files: other rates and stereo are read, damaged and empty ones get a sentence."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hrf_paper.speech.audio import RATE, log_mel, read_audio

soundfile = pytest.importorskip("soundfile")


def tone(rate: int, seconds: float = 0.5, frequency: float = 440.0) -> np.ndarray:
    return 0.5 * np.sin(2 * math.pi * frequency * np.arange(int(rate * seconds)) / rate)


def written(path, samples, rate):
    soundfile.write(path, samples, rate)
    return path


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg"])
def test_formats(tmp_path, suffix):
    path = written(tmp_path / f"a.{suffix}", tone(RATE), RATE)
    found = read_audio(path)
    assert found.dtype == torch.float32
    assert torch.equal(found, read_audio(path.read_bytes()))
    # 16 bits round by 2⁻¹⁶; Vorbis is lossy.
    atol = 0.05 if suffix == "ogg" else 2**-15
    torch.testing.assert_close(found, torch.from_numpy(tone(RATE)).float(), rtol=0, atol=atol)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000])
def test_other_rates_are_resampled(tmp_path, rate):
    found = read_audio(written(tmp_path / "a.wav", tone(rate), rate))
    assert abs(len(found) - RATE / 2) <= 1
    inner = slice(500, 7_000)  # filters ring at the ends
    expected = torch.from_numpy(tone(RATE)).float()
    torch.testing.assert_close(found[inner], expected[inner], rtol=0, atol=5e-3)


def test_channels_are_averaged(tmp_path):
    left = tone(RATE)
    stereo = read_audio(written(tmp_path / "s.wav", np.stack((left, 0 * left), 1), RATE))
    mono = read_audio(written(tmp_path / "m.wav", left / 2, RATE))
    torch.testing.assert_close(stereo, mono, rtol=0, atol=2**-15)


def test_what_is_no_recording_gets_a_sentence(tmp_path):
    damaged = tmp_path / "d.flac"
    damaged.write_bytes(b"fLaC" + bytes(40))
    with pytest.raises(ValueError, match=r"d.flac cannot be read as audio: .*expected WAV, FLAC or OGG"):
        read_audio(damaged)
    with pytest.raises(ValueError, match="the recording cannot be read as audio"):
        read_audio(b"")
    empty = written(tmp_path / "e.wav", np.zeros(0), RATE)
    with pytest.raises(ValueError, match=r"e.wav has no samples; expected a recording"):
        read_audio(empty)
    with pytest.raises(FileNotFoundError, match=r"none.wav is not there"):
        read_audio(tmp_path / "none.wav")
    soundfile.write(tmp_path / "n.wav", np.full(100, np.nan), RATE, subtype="FLOAT")
    with pytest.raises(ValueError, match="not finite"):
        read_audio(tmp_path / "n.wav")


def test_log_mel_shows_the_tone_and_not_its_volume():
    samples = torch.from_numpy(np.concatenate((tone(RATE), 0 * tone(RATE)))).float()
    noise = 1e-3 * torch.randn(len(samples), generator=torch.Generator().manual_seed(0))
    samples = samples + noise
    found = log_mel(samples)
    assert found.shape == (1 + len(samples) // 160, 80)
    assert found.mean(0).abs().max() < 1e-4
    loudest = int((found[:40] - found[60:100].mean(0)).mean(0).argmax())
    # 440 Hz lies at (mel(440) − mel(20)) / (mel(7600) − mel(20)) of the axis.
    low, high, place = (2595 * math.log10(1 + f / 700) for f in (20, 7600, 440))
    assert abs(loudest + 1 - 81 * (place - low) / (high - low)) <= 1
    torch.testing.assert_close(found, log_mel(0.1 * samples), rtol=0, atol=1e-3)


def test_one_sample_has_one_frame_and_none_is_refused():
    assert log_mel(torch.ones(1), 20).shape == (1, 20)
    with pytest.raises(ValueError, match=r"samples have shape \(0,\)"):
        log_mel(torch.ones(0))


def test_silence_is_finite():
    assert not log_mel(torch.zeros(1600)).any()

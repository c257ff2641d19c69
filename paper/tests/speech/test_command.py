"""The command: a model is trained on made-up recordings and transcribes files; errors are one sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hrf
from hrf_paper.speech import command
from hrf_paper.speech.training import load_model
from made_up_speech import TINY, tiny_speech

soundfile = pytest.importorskip("soundfile")


def train(out: Path, *options: str, code: int = 0) -> Path:
    assert command.main(["train", "digits", "--out", str(out), *options]) == code
    return out


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Train for an epoch, and return the checkpoint."""
    monkeypatch.setenv("HRF_CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.setitem(command._CORPORA, "digits", lambda channels: tiny_speech())
    monkeypatch.setitem(command.CONFIGS, "cpu", replace(TINY, channels=80))
    return train(tmp_path / "models" / "tiny.safetensors", "--epochs", "1")


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "a.wav"
    samples = np.random.default_rng(0).normal(size=(4_000, 2)) / 10
    soundfile.write(path, samples, 8_000)
    return path


@pytest.mark.parametrize("beam", ["1", "3"])
def test_recordings_are_transcribed(trained, recording, capsys, beam):
    assert load_model(trained).model.config.channels == 6  # those of the corpus
    capsys.readouterr()
    assert command.main(["transcribe", str(recording), "--checkpoint", str(trained), "--beam", beam]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{recording}: ")
    assert second.startswith("  0.5 s of audio, real-time factor ")


def test_a_method_takes_over_at_its_step(trained, tmp_path, capsys):
    """An epoch is one step here, so that the first epoch is trained with exact attention, for all methods."""
    assert load_model(trained).model.config.key_length is None
    options = ["--epochs", "2", "--attention", "FAVOR+ 128", "--key-length", "1"]
    capsys.readouterr()
    model = load_model(train(tmp_path / "map.safetensors", *options, "--fit-step", "1")).model
    epochs = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert epochs[:2] == ["epoch 1 of 1", "epoch 2 of 2"]
    assert model.config.key_length == 1
    assert isinstance(model.attentions[0].method, hrf.FeatureMap)
    train(tmp_path / "late.safetensors", *options, "--fit-step", "1000", code=2)
    assert "fit_step is 1000, and the training ends after 2 steps" in capsys.readouterr().err


def test_errors_are_one_sentence(trained, recording, capsys, tmp_path, monkeypatch):
    def said(*arguments: str) -> str:
        capsys.readouterr()
        assert command.main([*arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "is not there" in said("transcribe", "none.wav", "--checkpoint", str(trained))
    broken = tmp_path / "b.wav"
    broken.write_bytes(b"RIFF")
    assert "cannot be read as audio" in said("transcribe", str(broken), "--checkpoint", str(trained))
    assert "is not a checkpoint" in said("transcribe", str(recording), "--checkpoint", str(recording))
    speech = replace(tiny_speech(), front_end="cepstra")
    monkeypatch.setitem(command._CORPORA, "an4", lambda channels: speech)
    other = tmp_path / "other.safetensors"
    assert command.main(["train", "an4", "--epochs", "1", "--out", str(other)]) == 0
    assert "was trained with cepstra" in said("transcribe", str(recording), "--checkpoint", str(other))

"""Training runs on real recordings of each corpus, and its loss falls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hrf_paper.datasets import data_folder
from hrf_paper.speech.corpora import digit_strings, librispeech, spoken_digits
from hrf_paper.speech.training import SpeechTrainer, SpeechTraining
from hrf_paper.speech.utterances import Speech
from made_up_speech import TINY

pytest.importorskip("soundfile")
CHANNELS = 20


def excerpt() -> Speech:
    """Return the shortest utterances of the excerpt, and others of a chapter that is held out."""
    found = sorted(
        librispeech("train-clean-100", "librispeech-excerpt", channels=CHANNELS),
        key=lambda utterance: len(utterance.features),
    )
    held_out = [u for u in found if u.name.startswith(("26-496", "19-198"))]
    return Speech([u for u in found if u not in held_out][:16], held_out[:2])


def digits() -> Speech:
    speech = spoken_digits(channels=CHANNELS)
    return Speech(speech.train[::20], speech.test[::60])


def strings() -> Speech:
    return digit_strings(channels=CHANNELS, counts=(16, 4))


@pytest.mark.parametrize(
    ("corpus", "folder"),
    [(excerpt, "librispeech-excerpt"), (digits, "fsdd-subset"), (strings, "fsdd-subset")],
)
def test_training_on_a_corpus(corpus, folder, monkeypatch, tmp_path):
    if not (data_folder() / folder).is_dir():
        pytest.skip(f"needs {folder} in $HRF_DATA")
    monkeypatch.setenv("HRF_CHECKPOINTS", str(tmp_path))
    training = SpeechTraining(
        replace(TINY, channels=CHANNELS), epochs=3, warmup=2, frames=1_500, learning_rate=5e-3
    )
    trainer = SpeechTrainer(training, corpus())
    trainer.trained()
    losses = [epoch["loss"] for epoch in trainer.history]
    assert losses[2] < losses[1] < losses[0]


@pytest.mark.skipif(not (data_folder() / "fsdd-subset").is_dir(), reason="needs fsdd-subset in $HRF_DATA")
def test_strings_of_digits_are_of_one_speaker_and_of_one_side():
    speech = strings()
    assert (len(speech.train), len(speech.test), speech.front_end) == (16, 4, "running log-mel")
    for side, test in ((speech.train, False), (speech.test, True)):
        for utterance in side:
            names = [name.split("_") for name in utterance.name.split("+")]
            assert {speaker for _, speaker, _ in names} == {utterance.speaker}
            assert {int(index) < 5 for *_, index in names} == {test}
            assert len(utterance.text.split()) == len(names) <= 12

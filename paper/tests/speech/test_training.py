"""Training is resumed bit by bit, learns, and keeps fitted maps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import hrf
from hrf_paper.speech.training import (
    SpeechTrainer,
    SpeechTraining,
    flushes_denormals,
    load_model,
)
from made_up_speech import TINY, tiny_speech

TRAINING = SpeechTraining(TINY, epochs=4, warmup=2, frames=200, learning_rate=5e-3)


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HRF_CHECKPOINTS", str(tmp_path))
    return tmp_path


class Interrupted(Exception):
    pass


def interrupt_after(lines: int):
    """Return a report that stops the training after so many epochs."""
    count = [0]

    def report(line: str) -> None:
        count[0] += 1
        if count[0] == lines:
            raise Interrupted

    return report


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("method", ["exact", "uniform", "HRF-C (2, 2) 64", "summarised"])
def test_resumed_training_is_the_same_to_the_last_bit(method, folder):
    training = replace(TRAINING, method=method, fit_step=2)
    whole = SpeechTrainer(training, tiny_speech())
    expected = weights(whole.trained())
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(Interrupted):
        SpeechTrainer(training, tiny_speech(), interrupt_after(2)).trained()
    resumed = SpeechTrainer(training, tiny_speech())
    assert len(resumed.history) == 2
    found = weights(resumed.trained())
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
    assert [epoch["loss"] for epoch in resumed.history] == [epoch["loss"] for epoch in whole.history]


def test_training_learns_and_finished_training_is_read():
    training = replace(TRAINING, epochs=8)
    first = SpeechTrainer(training, tiny_speech())
    model = first.trained()
    assert first.history[-1]["loss"] < 0.8 * first.history[0]["loss"]
    assert first.history[-1]["wer"] >= 0
    read, front_end = load_model(first.path)
    assert front_end == "log-mel"
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), read.parameters(), strict=True))
    lines = []
    SpeechTrainer(training, tiny_speech(), lines.append).trained()
    assert not lines


def test_denormal_numbers_are_flushed_while_training_alone():
    seen = []
    trainer = SpeechTrainer(TRAINING, tiny_speech(), lambda line: seen.append(flushes_denormals()))
    assert not flushes_denormals()
    trainer.trained()
    assert seen == [True] * TRAINING.epochs
    assert not flushes_denormals()


def test_the_weights_of_all_steps_are_averaged():
    """One step per epoch: the average follows the weights of a training that keeps its last weights."""
    last = replace(TRAINING, frames=10_000, averaging=0.0)
    trainer = SpeechTrainer(last, tiny_speech())
    trainer._report = lambda line: steps.append(weights(trainer.model))
    mean, steps = weights(trainer.model), []
    trainer.trained()
    assert len(steps) == TRAINING.epochs
    for step, found in enumerate(steps, start=1):
        share = max(0.4, 9 / (9 + step))
        mean = {name: (1 - share) * old + share * found[name] for name, old in mean.items()}
    averaged = SpeechTrainer(replace(last, averaging=0.6), tiny_speech()).trained()
    torch.testing.assert_close(weights(averaged), mean)
    assert not torch.equal(averaged.joiner.weight, trainer.model.joiner.weight)


def test_maps_are_fitted_at_their_step_and_frozen(folder):
    training = replace(TRAINING, method="FAVOR# 256", fit_step=3)
    trainer = SpeechTrainer(training, tiny_speech())
    assert trainer.model.attentions[0].method == "exact"
    trainer.trained()
    found = trainer.model.attentions[0].method
    assert isinstance(found, hrf.DenseExponential)
    resumed = SpeechTrainer(training, tiny_speech()).model.attentions[0].method
    assert torch.equal(found.basis, resumed.basis)


def test_a_method_takes_over_within_the_training():
    with pytest.raises(ValueError, match="fit_step is -1; expected at least 0"):
        replace(TRAINING, fit_step=-1)
    with pytest.raises(ValueError, match=r"fit_step is 1000, and the training ends after \d+ steps"):
        SpeechTrainer(replace(TRAINING, method="uniform", fit_step=1_000), tiny_speech())
    late = replace(TRAINING, epochs=1, fit_step=1_000)  # exact attention all along
    assert len(SpeechTrainer(late, tiny_speech()).trained().attentions) > 0


def test_epochs_before_maps_take_over_are_trained_once(monkeypatch):
    """Two epochs of two steps each come before step 5: both methods load them, and find what they would train."""
    speech, lines = tiny_speech(), []
    training = replace(TRAINING, frames=400, fit_step=5)
    steps = [len(SpeechTrainer(replace(training, fit_step=0), speech)._batches(epoch)) for epoch in range(3)]
    assert steps == [2, 2, 2]
    found = {}
    for method in ("uniform", "none"):
        found[method] = SpeechTrainer(replace(training, method=method), speech, lines.append)
        assert len(found[method].history) == 2
        found[method].trained()
    assert [line.partition(":")[0] for line in lines] == [
        *("epoch 1 of 2", "epoch 2 of 2"),
        *("epoch 3 of 4", "epoch 4 of 4"),
        *("epoch 3 of 4", "epoch 4 of 4"),
    ]
    monkeypatch.setattr(SpeechTrainer, "_common", lambda self: None)
    found["none"].path.unlink()
    alone = SpeechTrainer(found["none"].training, speech)
    assert not alone.history
    expected = weights(alone.trained())
    assert all(torch.equal(t, expected[name]) for name, t in weights(found["none"].model).items())


def test_a_training_may_stop_early():
    """The learning rate falls as it does in the whole training, so the first epochs are the same."""
    whole = SpeechTrainer(TRAINING, tiny_speech())
    whole.trained()
    part = SpeechTrainer(replace(TRAINING, last_epoch=2), tiny_speech())
    part.trained()
    assert [epoch["loss"] for epoch in part.history] == [epoch["loss"] for epoch in whole.history[:2]]
    assert "wer" in part.history[-1]


def test_a_training_after_another_starts_from_its_weights():
    after = replace(TRAINING, epochs=0, after=TRAINING, joined_frames=150)
    found = SpeechTrainer(after, tiny_speech()).trained()
    expected = SpeechTrainer(TRAINING, tiny_speech()).trained()
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), expected.parameters(), strict=True))


def test_joined_utterances_and_random_positions_are_trained_on():
    training = replace(TRAINING, joined_frames=150, model=replace(TINY, position_range=100))
    trainer = SpeechTrainer(training, tiny_speech())
    trainer.trained()
    assert len(trainer.history) == TRAINING.epochs


def test_trainings_and_utterances_have_their_own_checkpoints():
    speech = tiny_speech()
    others = [TRAINING, replace(TRAINING, seed=1), replace(TRAINING, method="uniform")]
    paths = {SpeechTrainer(training, speech).path for training in others}
    assert len(paths | {SpeechTrainer(TRAINING, replace(speech, train=speech.train[:3])).path}) == 4


def test_a_damaged_checkpoint_gets_a_sentence(folder):
    SpeechTrainer(TRAINING, tiny_speech()).path.write_bytes(b"no checkpoint")
    with pytest.raises(ValueError, match="is not a checkpoint"):
        SpeechTrainer(TRAINING, tiny_speech())

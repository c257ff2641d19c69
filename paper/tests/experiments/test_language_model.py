"""Training on a made-up text: the model learns, and a resumed training ends like an uninterrupted one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import made_up
from hrf_paper.experiments import language_model
from hrf_paper.experiments.language_model import (
    Draws,
    LanguageModel,
    Trainer,
    Training,
    batch_loss,
    perplexity,
)
from hrf_paper.resume import load_checkpoint, save_checkpoint

TINY = Training(
    "penn_treebank", width=16, epochs=2, dropout=0.2, batch_size=10, length=10, learning_rate=1e-2
)
SAMPLERS = ("log-uniform", "exact", "FAVOR+", "Gaussian hybrid")  # one per kind of sampler, base and hybrid


def drawn(sampler: str) -> Draws:
    return Draws(sampler, k=8, features=16, n_coefficient_projections=2, rebuild_every=5)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HRF_CHECKPOINTS", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def corpus():
    return made_up.corpus()


def weights(trainer):
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def test_a_model_learns_what_follows(corpus):
    trainer = Trainer(replace(TINY, epochs=6), corpus)
    trainer.trained(6)
    # Nine words in ten follow from the last one: no model is below exp(entropy), a guess has 60.
    least = math.exp(-0.9 * math.log(0.9 + 0.1 / 60) - 0.1 * math.log(0.1 / 60))
    assert least * 0.9 < trainer.history[-1] < made_up.WORDS / 4
    assert trainer.history[-1] < trainer.history[0]
    assert trainer.test_perplexity() < made_up.WORDS / 4


@pytest.mark.parametrize("sampler", [None, *SAMPLERS])
def test_a_resumed_training_is_the_same_bit_for_bit(corpus, folder, monkeypatch, sampler):
    training = replace(TINY, draws=None if sampler is None else drawn(sampler))
    monkeypatch.setattr(language_model, "_SAVE_EVERY", 20)
    whole = Trainer(training, corpus)
    whole.trained(2)
    whole.path.unlink()

    advance, calls = Trainer._advance, []

    def interrupted(self):
        calls.append(self._step)
        if len(calls) == 5:
            raise KeyboardInterrupt
        advance(self)

    monkeypatch.setattr(Trainer, "_advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Trainer(training, corpus).trained(2)
    assert calls == [0, 20, 40, 0, 20]  # in the second epoch, with a state of the LSTM
    monkeypatch.setattr(Trainer, "_advance", advance)
    torch.rand(3)  # a change of the global generator has no effect
    resumed = Trainer(training, corpus)
    resumed.trained(2)
    assert resumed.history == whole.history
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(resumed).items())


def test_a_trained_model_is_not_trained_again(corpus, monkeypatch):
    first = Trainer(TINY, corpus)
    first.trained(2)
    monkeypatch.setattr(Trainer, "_advance", lambda self: pytest.fail("trained again"))
    assert Trainer(TINY, corpus).trained(2) == first.history[1]
    assert Trainer(TINY, corpus).trained(1) == first.history[0]


def test_the_global_generator_is_left_alone(corpus):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    Trainer(replace(TINY, draws=drawn("FAVOR+")), corpus).trained(1)
    assert torch.equal(torch.rand(3), expected)


def test_seeds_and_settings_have_files_of_their_own(corpus):
    others = [TINY, replace(TINY, seed=1), replace(TINY, draws=drawn("exact")), replace(TINY, words=500)]
    assert len({Trainer(training, corpus).path for training in others}) == 4


def test_the_loss_has_temperature_and_lengths(corpus):
    training = replace(TINY, dropout=0.0, temperature=6.0, length_penalty=2.0)
    model = LanguageModel(made_up.WORDS, training)
    (batch, *_) = language_model.batches(corpus.valid, 10, 10)
    loss, state = batch_loss(training, model, None, batch, None)
    plain, _ = batch_loss(replace(training, length_penalty=0.0), model, None, batch, None)
    q, k = model(batch.inputs)[0].norm(dim=-1), model.words.weight.norm(dim=-1)
    penalty = 2 * ((q - 1).square().mean() + (k - 1).square().mean())
    assert torch.allclose(loss - plain, penalty)
    assert not any(part.requires_grad for part in state)
    assert math.log(perplexity(training, model, [batch])) == pytest.approx(plain.item(), rel=1e-5)


def test_a_penalty_brings_lengths_to_one(corpus):
    training = replace(TINY, epochs=8, dropout=0.0, temperature=6.0, length_penalty=2.0)
    trainer = Trainer(training, corpus)
    trainer.trained(8)
    assert 0.7 < float(trainer.model.words.weight.norm(dim=-1).detach().mean()) < 1.3


def test_rebuilds_have_to_coincide_with_checkpoints(corpus):
    draws = replace(drawn("exact"), rebuild_every=7)
    with pytest.raises(ValueError, match=r"^rebuild_every is 7; expected a divisor of 500$"):
        Trainer(replace(TINY, draws=draws), corpus)


def test_a_damaged_checkpoint_is_named(folder):
    path = folder / "a.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"a\.safetensors is not a checkpoint .*; remove it to train anew$"):
        load_checkpoint(path)
    shared = torch.arange(6.0)
    save_checkpoint(path, {"x": shared[:4], "y": shared[2:]}, {"step": 3})
    tensors, header = load_checkpoint(path)
    assert header == {"step": 3}
    assert torch.equal(tensors["y"], shared[2:])
    assert [p.name for p in folder.iterdir()] == [path.name]

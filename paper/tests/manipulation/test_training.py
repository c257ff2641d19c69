"""Trainings: resumed bit for bit, with NaN named; demonstrations and corrections; policies as files."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hrf_paper.manipulation.cloning import Search, play
from hrf_paper.manipulation.demonstrations import DemonstrationSettings, demonstrations
from hrf_paper.manipulation.performer import PerformerConfig
from hrf_paper.manipulation.training import (
    CloneTrainer,
    CloneTraining,
    Diverged,
    corrected_demonstrations,
    load_policy,
    save_policy,
)

DATA = DemonstrationSettings(episodes=2, glimpses=10, steps=6, image_size=16)
TRAINING = CloneTraining(
    "HRF-A (8, 8)",
    PerformerConfig(image_size=16, patch=8, width=16, heads=2, layers=1, hidden=16, knots=2, code=16),
    DATA,
    steps=4,
    batch=4,
    negatives=8,
    judge_every=2,
    judged_episodes=1,
    search=Search(8, 2),
)
CORRECTED = replace(TRAINING, data=replace(DATA, rounds=2, pupil_steps=2, pupil_episodes=3))


@pytest.fixture(autouse=True)
def checkpoints(tmp_path, monkeypatch):
    monkeypatch.setenv("HRF_CHECKPOINTS", str(tmp_path))


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HRF_CHECKPOINTS", str(tmp_path_factory.mktemp("demonstrations")))
        return demonstrations(DATA)


def test_demonstrations_are_kept_and_repeat(examples, tmp_path):
    first = demonstrations(DATA)
    assert torch.equal(first.images, examples.images)
    assert torch.equal(demonstrations(DATA).actions, first.actions)
    assert len(list(tmp_path.iterdir())) == 1
    assert first.images.shape == (len(first.poses), 16, 16, 3)
    assert first.actions.abs().max() <= 1
    other = demonstrations(replace(DATA, seed=1))
    assert not torch.equal(other.images[0], first.images[0])


@pytest.mark.slow
def test_a_resumed_training_is_the_same_bit_for_bit(examples, tmp_path, monkeypatch):
    whole = CloneTrainer(TRAINING, examples)
    whole.trained()
    monkeypatch.setenv("HRF_CHECKPOINTS", str(tmp_path / "other"))
    CloneTrainer(TRAINING, examples).trained(until=2)
    resumed = CloneTrainer(TRAINING, examples)
    assert [point["step"] for point in resumed.history] == [2]
    resumed.trained()
    for name, weights in whole.policy.state_dict().items():
        assert torch.equal(weights, resumed.policy.state_dict()[name]), name
    assert [p["loss"] for p in resumed.history] == [p["loss"] for p in whole.history]
    assert [p["delivered"] for p in resumed.history] == [p["delivered"] for p in whole.history]


def test_a_training_lowers_the_loss(examples):
    trainer = CloneTrainer(
        replace(TRAINING, method="exact", steps=120, judge_every=60, batch=8, learning_rate=3e-3), examples
    )
    trainer.trained()
    assert trainer.history[1]["loss"] < 0.9 * trainer.history[0]["loss"]


def test_a_loss_that_is_no_number_is_named(examples):
    trainer = CloneTrainer(TRAINING, examples)
    with torch.no_grad():
        trainer.policy.encoding[0].weight.fill_(torch.nan)
    with pytest.raises(
        Diverged, match="the loss of step 0 or its gradient is not finite, with the attention HRF-A"
    ):
        trainer.trained()


def test_the_progress_line_has_loss_and_delivered_share(examples):
    lines = []
    CloneTrainer(TRAINING, examples, lines.append).trained(until=2)
    assert lines[-1].startswith("HRF-A (8, 8), seed 0, step 2 of 4: loss ")
    assert "delivered 0.0 %" in lines[-1]


def test_a_damaged_checkpoint_is_named(examples):
    trainer = CloneTrainer(TRAINING, examples)
    trainer.path.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="is not a checkpoint"):
        CloneTrainer(TRAINING, examples)


def test_a_policy_comes_back_from_its_file(examples, tmp_path):
    policy = CloneTrainer(TRAINING, examples).policy.eval()
    save_policy(tmp_path / "policy.safetensors", policy, TRAINING)
    back = load_policy(tmp_path / "policy.safetensors")
    assert torch.equal(
        back(examples.images[:2], examples.poses[:2]), policy(examples.images[:2], examples.poses[:2])
    )
    episodes = [play(net, (3,), Search(8, 2), steps=3) for net in (policy, back)]
    assert episodes[0].rewards == episodes[1].rewards


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"steps": 5}, "steps is 5; expected a multiple of judge_every, 2"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; expected a positive number"),
        (
            {"data": DemonstrationSettings()},
            "images of 16 pixels and the demonstrations 64; expected one size",
        ),
    ],
)
def test_bad_trainings_get_a_sentence(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(TRAINING, **change)


@pytest.fixture(scope="module")
def corrections_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def corrected(corrections_folder):
    """Return the examples of two rounds, and the lines that were reported."""
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HRF_CHECKPOINTS", str(corrections_folder))
        return corrected_demonstrations(CORRECTED, lines.append), lines


@pytest.mark.slow
def test_each_round_adds_the_scenes_of_its_episodes(corrected, corrections_folder, monkeypatch):
    monkeypatch.setenv("HRF_CHECKPOINTS", str(corrections_folder))
    found, lines = corrected
    first = demonstrations(DATA)
    assert len(found.poses) == len(found.images) == len(found.actions) == len(first.poses) + 2 * 3 * 6
    assert len(found.delivered) == 2 + 2 * 3
    assert torch.equal(found.images[: len(first.images)], first.images)
    assert sum(line.startswith("a pupil played 3 episodes") for line in lines) == 2
    assert all(not line.startswith("HRF") for line in lines)


def test_corrections_are_kept(corrected, corrections_folder, monkeypatch):
    monkeypatch.setenv("HRF_CHECKPOINTS", str(corrections_folder))
    lines = []
    kept = corrected_demonstrations(CORRECTED, lines.append)
    assert not lines
    assert all(torch.equal(part, vars(kept)[name]) for name, part in vars(corrected[0]).items())


def test_corrections_repeat(corrected, tmp_path, monkeypatch):
    monkeypatch.setenv("HRF_CHECKPOINTS", str(tmp_path))
    anew = corrected_demonstrations(CORRECTED)
    assert all(torch.equal(part, vars(anew)[name]) for name, part in vars(corrected[0]).items())

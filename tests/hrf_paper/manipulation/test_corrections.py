"""Corrections: a pupil's scenes with the teacher's answers, kept, and the same each time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hrf_paper.manipulation.corrections import corrected_demonstrations
from hrf_paper.manipulation.demonstrations import DemonstrationSettings, demonstrations
from hrf_paper.manipulation.performer import PerformerConfig
from hrf_paper.manipulation.rollouts import Search
from hrf_paper.manipulation.training import CloneTraining

DATA = DemonstrationSettings(
    episodes=1, glimpses=10, steps=4, image_size=16, rounds=2, pupil_steps=2, pupil_episodes=3
)
TRAINING = CloneTraining(
    "HRF-A (8,8)",
    PerformerConfig(image_size=16, patch=8, width=16, heads=2, layers=1, hidden=16, knots=2, code=16),
    DATA,
    steps=4,
    batch=4,
    negatives=8,
    judge_every=2,
    judged_episodes=1,
    search=Search(8, 2),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def made(folder):
    """Return the examples of two rounds, and the lines that were reported."""
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HRF_CHECKPOINTS", str(folder))
        return corrected_demonstrations(TRAINING, lines.append), lines


def test_each_round_adds_the_scenes_of_its_episodes(made, folder, monkeypatch):
    monkeypatch.setenv("HRF_CHECKPOINTS", str(folder))
    found, lines = made
    first = demonstrations(replace(DATA, rounds=0))
    assert len(found.poses) == len(found.images) == len(found.actions) == len(first.poses) + 2 * 3 * 4
    assert len(found.delivered) == 1 + 2 * 3
    assert torch.equal(found.images[: len(first.images)], first.images)
    assert sum(line.startswith("a pupil played 3 episodes") for line in lines) == 2
    assert all(not line.startswith("HRF") for line in lines)


def test_corrections_are_kept(made, folder, monkeypatch):
    monkeypatch.setenv("HRF_CHECKPOINTS", str(folder))
    lines = []
    kept = corrected_demonstrations(TRAINING, lines.append)
    assert not lines
    assert all(torch.equal(part, vars(kept)[name]) for name, part in vars(made[0]).items())


def test_corrections_repeat(made, tmp_path, monkeypatch):
    monkeypatch.setenv("HRF_CHECKPOINTS", str(tmp_path))
    anew = corrected_demonstrations(TRAINING)
    assert all(torch.equal(part, vars(anew)[name]) for name, part in vars(made[0]).items())

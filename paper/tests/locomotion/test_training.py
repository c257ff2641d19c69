from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Generator

from hrf_paper.locomotion import (
    LocomotionTrainer,
    LocomotionTraining,
    PolicyConfig,
    StoneField,
    load_policy,
    workers,
)
from hrf_paper.locomotion.evolution import centred_ranks, directions, start, updated
from hrf_paper.locomotion.policy import ImplicitAttentionPolicy, PixelMoments
from hrf_paper.locomotion.terrain import nearest_ground
from hrf_paper.locomotion.training import judge_pair, rehearsal, rehearse

TINY = LocomotionTraining(
    PolicyConfig(method="exact"),
    rehearsals=5,
    walks=1,
    rehearsal_pairs=2,
    walk_pairs=1,
    walk_distance=0.3,
    judge_every=100,
    judged_fields=1,
)


@pytest.fixture(autouse=True)
def own_checkpoints(monkeypatch, tmp_path):
    monkeypatch.setenv("HRF_CHECKPOINTS", str(tmp_path / "checkpoints"))


def test_ranks_are_centred_and_ties_share_theirs():
    ranks = centred_ranks(torch.tensor([[3.0, 1.0], [2.0, 1.0]]))
    torch.testing.assert_close(ranks, torch.tensor([[0.5, -1 / 3], [1 / 6, -1 / 3]]))
    assert centred_ranks(torch.tensor([1e9, -1e9, 0.0])).tolist() == [0.5, -0.5, 0.0]


def test_returns_that_are_not_finite_are_counted():
    with pytest.raises(FloatingPointError, match="2 of 4 returns are not finite"):
        centred_ranks(torch.tensor([1.0, torch.nan, torch.inf, 0.0]))


def test_evolution_climbs_a_quadratic():
    target = torch.randn(20, generator=Generator().manual_seed(0))
    state = start(torch.zeros(20))
    for iteration in range(150):
        noise = directions(8, 20, seed=0, iteration=iteration)
        tried = torch.stack([state.parameters + 0.05 * noise, state.parameters - 0.05 * noise])
        returns = -((tried - target) ** 2).sum(-1)
        state = updated(state, noise, returns, deviation=0.05, learning_rate=0.05)
    assert ((state.parameters - target) ** 2).sum() < 0.02 * (target**2).sum()


def test_equal_returns_leave_the_parameters_alone():
    state = updated(
        start(torch.ones(3)),
        directions(4, 3, seed=0, iteration=0),
        torch.zeros(2, 4),
        deviation=0.1,
        learning_rate=1,
    )
    assert state.parameters.tolist() == [1, 1, 1]


def test_moments_normalise_and_merge():
    images = torch.randn(50, 2, 24, 32, generator=Generator().manual_seed(0)) * 0.2 + 0.5
    moments = PixelMoments().plus(images)
    found = moments.normalised(images)
    torch.testing.assert_close(found.mean(0), torch.zeros(2, 24, 32), atol=0.02, rtol=0)
    assert found.abs().max() <= 3
    halves = PixelMoments().plus(images[:20]).merged(PixelMoments().plus(images[20:]))
    torch.testing.assert_close(halves.total, moments.total)
    constant = PixelMoments().plus(torch.full((4, 2, 24, 32), 0.3))
    assert constant.normalised(torch.full((2, 24, 32), 0.3)).abs().max() < 1e-6


def test_rehearsals_reward_stones_and_punish_gaps():
    situations = rehearsal(StoneField(), 0)
    feet = situations.x[:, None] + situations.footholds.double().numpy()

    class Known:
        """Steps onto stones, which it knows, or into the nearest gap."""

        def __init__(self, towards):
            shift = (towards - feet) / 0.15
            self.action = torch.tensor(np.clip(shift, -1, 1))

        def decide(self, *_):
            return self

    safe = Known(nearest_ground(situations.stones, feet, 0.03))
    gaps = (situations.stones[1:, 0] + situations.stones[:-1, 1]) / 2
    unsafe = Known(gaps[np.abs(feet[..., None] - gaps).argmin(-1)])
    moments = PixelMoments().plus(situations.depth)
    returns = [rehearse(policy, torch.empty(0), moments, situations) for policy in (safe, unsafe)]
    assert returns[0] > -0.1
    assert returns[1] < returns[0] - 0.2


def test_a_training_resumes_bit_by_bit():
    whole = LocomotionTrainer(TINY)
    result = whole.trained()
    whole.path.unlink()
    interrupted = LocomotionTrainer(TINY, _failing_after(6))
    with pytest.raises(KeyboardInterrupt):
        interrupted.trained()
    calls = []

    def counted(function, tasks):
        calls.append(function)
        return map(function, tasks)

    resumed = LocomotionTrainer(TINY, counted)
    again = resumed.trained()
    assert torch.equal(again.parameters, result.parameters)
    assert torch.equal(again.moments.total, result.moments.total)
    assert [e["return"] for e in resumed.history] == [e["return"] for e in whole.history]
    assert calls.count(judge_pair) == 1  # five iterations came from the checkpoint
    loaded = load_policy(resumed.path)
    assert loaded.config == TINY.policy
    assert torch.equal(loaded.parameters, result.parameters)


def _failing_after(count):
    left = [count]

    def mapped(function, tasks):
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return map(function, tasks)

    return mapped


@pytest.mark.slow
def test_processes_find_what_one_process_finds():
    training = replace(TINY, rehearsals=1)
    alone = LocomotionTrainer(training).trained()
    LocomotionTrainer(training).path.unlink()
    with workers(2) as mapped:
        together = LocomotionTrainer(training, mapped).trained()
    assert torch.equal(alone.parameters, together.parameters)


def test_progress_lines_have_the_return():
    lines = []
    LocomotionTrainer(replace(TINY, rehearsals=1, walks=0), report=lines.append).trained()
    assert len(lines) == 1
    assert lines[0].startswith("iteration 1 of 1: return ")
    assert "of 1 fields crossed" in lines[0]


def test_a_damaged_checkpoint_is_named():
    trainer = LocomotionTrainer(TINY)
    trainer.path.parent.mkdir(parents=True)
    trainer.path.write_bytes(b"no tensors")
    with pytest.raises(ValueError, match=r"is not a checkpoint .* remove it to train anew"):
        LocomotionTrainer(TINY)


def test_attention_that_is_not_finite_stops_a_training(monkeypatch):
    monkeypatch.setattr(
        ImplicitAttentionPolicy, "first_parameters", lambda self: torch.full((self.n_parameters,), torch.nan)
    )
    with pytest.raises(FloatingPointError, match="attention by exact is not finite"):
        LocomotionTrainer(TINY).trained()


def test_ray_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(ModuleNotFoundError, match="training on Ray needs ray: pip install ray"),
        workers(ray=True),
    ):
        pass
    with pytest.raises(ValueError, match="processes is 0; expected at least 1"), workers(0):
        pass


def test_a_training_without_iterations_gets_a_sentence():
    with pytest.raises(ValueError, match="expected at least one iteration"):
        replace(TINY, rehearsals=0, walks=0)

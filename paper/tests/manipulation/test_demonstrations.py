"""The teacher's rules, one by one, and the random scenes that it answers for."""

from __future__ import annotations

import numpy as np
import pytest

from hrf_paper.manipulation.demonstrations import expert_action, random_scene
from hrf_paper.manipulation.scene import EDGE, HIGHEST_POSE, HOME, LOWERED, LOWEST_POSE, RAISED

LEFT = np.array([[-0.2, -0.05, 0.014], [-0.18, 0.02, 0.014], [-0.07, -0.1, 0.014]])


def left(balls: np.ndarray, *place: float) -> np.ndarray:
    """Return the action of the left arm, at a place of its paddle."""
    wanted = HOME.copy()
    wanted[0, :3] = place
    return expert_action(balls, wanted)[:6]


def test_it_goes_behind_the_outermost_balls():
    action = left(LEFT, -0.16, 0.2, RAISED)
    assert action[1] == -1  # back, behind the ball at y = −0.05
    assert action[2] == 1
    # 4 cm inwards of the outermost ball: the paddle is there already.
    assert action[0] == pytest.approx(0, abs=1e-9)


def test_it_goes_down_behind_them():
    assert left(LEFT, -0.16, -0.11, RAISED)[2] == -1
    assert left(LEFT, -0.16, -0.05, RAISED)[2] == 1  # would land on the ball
    assert left(LEFT, -0.1, -0.11, RAISED)[2] == 1  # beside them


def test_it_keeps_going_down_a_little_beside_its_place():
    assert left(LEFT, -0.16 + 0.045, -0.11, RAISED)[2] == 1
    assert left(LEFT, -0.16 + 0.045, -0.11, RAISED - 0.05)[2] == -1


def test_it_pushes_past_the_edge_and_raises():
    assert left(LEFT, -0.16, 0.1, LOWERED)[:3].tolist() == [0, 0.6, -1]
    assert left(LEFT, -0.16, EDGE + 0.04, LOWERED)[:3].tolist() == [0, 0, 1]


def test_it_goes_home_without_balls():
    delivered = np.array([[-0.2, 0.3, -0.12]])
    assert left(delivered, *HOME[0, :3])[:2].tolist() == [0, 0]
    assert left(delivered, -0.14, 0.2, RAISED)[1] == -1


def test_it_straightens_its_paddle():
    wanted = HOME.copy()
    wanted[1, 5] = 0.1
    assert expert_action(LEFT, wanted)[11] == pytest.approx(-0.5)


def test_it_is_symmetric():
    right = LEFT * (-1, 1, 1)
    mirror = expert_action(LEFT, HOME).reshape(2, 6)[::-1] * (-1, 1, 1, 1, -1, -1)
    assert expert_action(right, HOME).reshape(2, 6) == pytest.approx(mirror)


def test_random_scenes_are_in_the_workspace_and_show_all_that_the_teacher_does():
    actions = []
    for seed in range(200):
        balls, poses = random_scene(np.random.default_rng(seed))
        assert balls.shape == (12, 3)
        assert ((poses >= LOWEST_POSE) & (poses <= HIGHEST_POSE)).all()
        actions.append(np.r_[expert_action(balls, poses)[:3], poses[0, 2]])
    found = np.array(actions)
    air, down = found[found[:, 3] > LOWERED + 0.02], found[found[:, 3] < LOWERED + 0.02]
    assert 0.05 < (air[:, 2] < 0).mean() < 0.6  # goes down
    assert 0.5 < (down[:, 1] > 0).mean() < 1  # pushes, or raises its paddle
    again = random_scene(np.random.default_rng(0))
    assert all(
        np.array_equal(a, b) for a, b in zip(again, random_scene(np.random.default_rng(0)), strict=True)
    )

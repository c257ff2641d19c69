"""The physics: arms reach their poses, nothing interpenetrates, no ball vanishes, episodes repeat."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from hrf_paper.manipulation.demonstrations import expert_action
from hrf_paper.manipulation.environment import SweepingTable
from hrf_paper.manipulation.scene import (
    BALL_RADIUS,
    BOWL_DEPTH,
    HIGHEST_POSE,
    HOME,
    LOWEST_POSE,
    PADDLE,
    is_delivered,
    is_lost,
)


@pytest.fixture(scope="module")
def table():
    world = SweepingTable()
    yield world
    world.close()


def played(table, seed, steps, act):
    table.reset(np.random.default_rng(seed))
    found = []
    for _ in range(steps):
        table.step(act(table))
        found.append(table.balls())
    return np.array(found)


def teacher(table):
    return expert_action(table.balls(), table.wanted)


@pytest.mark.parametrize("arm", [0, 1])
def test_inverse_kinematics_reaches_the_corners_of_the_workspace(table, arm):
    low, high = LOWEST_POSE[arm], HIGHEST_POSE[arm]
    for corner in product((0, 1), repeat=3):
        pose = np.where([*corner, 0, 0, 0], high, low)
        pose[3:] = 0
        table.reset(np.random.default_rng(0))
        for _ in range(25):
            table.arms[arm].move_to(pose)
            for _ in range(16):
                table.world.stepSimulation()
        assert np.abs(table.arms[arm].pose() - pose)[:3].max() < BALL_RADIUS / 2


def test_arms_follow_the_wanted_poses(table):
    table.reset(np.random.default_rng(1))
    rng = np.random.default_rng(2)
    errors = []
    for _ in range(30):
        table.step(rng.uniform(-0.5, 0.5, 12))
        errors.append(np.abs(table.poses() - table.wanted)[:, :3].max())
    # Motors lag behind: by less than the largest change of half a step.
    assert max(errors) < 0.03


def test_wanted_poses_stay_in_the_workspace(table):
    table.reset(np.random.default_rng(1))
    for _ in range(12):
        table.step(np.ones(12))
    assert np.array_equal(table.wanted, HIGHEST_POSE)


def test_starts_span_more_than_one_paddle(table):
    """A paddle in the middle of a half covers 12 of the 20 cm of the heaps: sight is needed to sweep up the others."""
    starts = []
    for seed in range(20):
        table.reset(np.random.default_rng(seed))
        starts.append(table.balls())
    distances = np.abs(np.array(starts)[..., 0])
    middle = float(np.abs(HOME[:, 0]).mean())
    covered = np.abs(distances - middle) < PADDLE[0]
    assert covered.mean() < 0.67  # 12 of 20 cm; of 16 cm, it would cover three quarters
    assert distances.min() < middle - PADDLE[0]
    assert distances.max() > middle + PADDLE[0]


def test_balls_do_not_interpenetrate_and_are_all_accounted_for(table):
    history = played(table, 3, 45, teacher)
    for balls in history:
        apart = np.linalg.norm(balls[:, None] - balls[None], axis=-1)[np.triu_indices(len(balls), 1)]
        # The solver lets contacts overlap a little for one step of 6 ms.
        assert apart.min() > 2 * BALL_RADIUS - 0.006
        on_table = balls[:, 2] > BOWL_DEPTH
        assert (on_table | is_delivered(balls) | is_lost(balls)).all()
        assert np.abs(balls[on_table, 0]).max(initial=0) < 0.31
        assert balls[on_table, 2].min(initial=1) > BALL_RADIUS - 0.005 or (balls[:, 1] > 0.2).any()


def test_balls_at_rest_stay_at_rest(table):
    history = played(table, 4, 10, lambda t: np.zeros(12))
    assert np.abs(history[-1] - history[4]).max() < 0.002
    assert np.allclose(history[-1][:, 2], BALL_RADIUS, atol=0.002)


def test_episodes_depend_on_the_seed_alone(table):
    first = played(table, 5, 20, teacher)
    played(table, 6, 8, teacher)
    assert np.array_equal(played(table, 5, 20, teacher), first)
    other = SweepingTable()
    assert np.array_equal(played(other, 5, 20, teacher), first)
    other.close()
    assert not np.array_equal(played(table, 6, 1, teacher)[0], first[0])


def test_the_teacher_delivers(table):
    shares = [is_delivered(played(table, seed, 60, teacher)[-1]).mean() for seed in (10, 11, 12)]
    assert np.mean(shares) >= 0.9


def test_idle_arms_deliver_nothing(table):
    assert not is_delivered(played(table, 10, 10, lambda t: np.zeros(12))[-1]).any()


def test_a_ball_is_delivered_in_a_bowl_and_lost_beside_it():
    balls = np.array([[0.1, 0.3, -0.12], [0.5, 0.3, -0.12], [0.1, 0.3, -0.9], [0.1, 0.0, 0.014]])
    assert is_delivered(balls).tolist() == [True, False, False, False]
    assert is_lost(balls).tolist() == [False, True, True, False]


def test_no_balls_are_refused():
    with pytest.raises(ValueError, match="n_balls is 0; expected at least 1"):
        SweepingTable(0)


def test_home_is_inside_the_workspace():
    assert ((LOWEST_POSE <= HOME) & (HOME <= HIGHEST_POSE)).all()

"""The table and its arms, and the environment."""

from __future__ import annotations

import sys
from itertools import product

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from hrf_paper.experiments.registry import EXPERIMENTS
from hrf_paper.manipulation import ENVIRONMENT
from hrf_paper.manipulation.demonstrations import expert_action
from hrf_paper.manipulation.environment import SweepingEnv, SweepingTable
from hrf_paper.manipulation.scene import (
    BALL_RADIUS,
    BOWL_DEPTH,
    COLOURS,
    HIGHEST_POSE,
    HOME,
    LOWEST_POSE,
    PADDLE,
    VIEW,
    Drawing,
    is_delivered,
    is_lost,
)
from hrf_paper.robots import write_gif
from hrf_paper.runner import reproduce

# The physics: arms reach their poses, nothing interpenetrates, no ball vanishes, episodes repeat.


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


def test_home_is_inside_the_workspace():
    assert ((LOWEST_POSE <= HOME) & (HOME <= HIGHEST_POSE)).all()


# The environment behind Gymnasium's interface, and its images.


def test_gymnasium_finds_nothing_wrong():
    check_env(gymnasium.make(ENVIRONMENT, render_mode="rgb_array", image_size=32).unwrapped)


def test_reward_is_the_share_of_balls_in_bowls():
    environment = SweepingEnv(image_size=16)
    environment.reset(seed=2)
    rewards = []
    for _ in range(25):
        action = expert_action(environment.table.balls(), environment.table.wanted)
        _, reward, ended, truncated, found = environment.step(action)
        rewards.append(reward)
        assert reward == environment.table.delivered().mean() == found["delivered"]
        assert not ended
        assert not truncated
    assert 0 == rewards[0] < rewards[-1] <= 1
    environment.close()


def test_an_episode_is_truncated():
    environment = SweepingEnv(image_size=16, steps=2)
    environment.reset(seed=2)
    assert [environment.step(np.zeros(12, np.float32))[3] for _ in range(2)] == [False, True]
    environment.close()


@pytest.mark.slow
def test_environments_in_processes_agree_with_one_process():
    many = gymnasium.make_vec(
        ENVIRONMENT, num_envs=2, vectorization_mode="async", image_size=16, vector_kwargs={"context": "fork"}
    )
    alone = SweepingEnv(image_size=16)
    seen, _ = many.reset(seed=[7, 8])
    assert np.array_equal(seen["image"][1], alone.reset(seed=8)[0]["image"])
    action = np.linspace(-1, 1, 12, dtype=np.float32)
    seen = many.step(np.stack([action, action]))[0]
    assert np.array_equal(seen["image"][1], alone.step(action)[0]["image"])
    assert not np.array_equal(seen["image"][0], seen["image"][1])
    many.close()
    alone.close()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"camera": "none"}, "camera is 'none'; expected one of drawn, rendered"),
        ({"steps": 0}, "steps is 0; expected at least 1"),
        ({"image_size": 4}, "the image size is 4; expected at least 16 pixels"),
        ({"render_mode": "human"}, "render_mode is 'human'; expected 'rgb_array' or None"),
    ],
)
def test_bad_options_get_a_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        SweepingEnv(**options)


def test_actions_that_are_no_numbers_are_refused():
    environment = SweepingEnv(image_size=16)
    environment.reset(seed=0)
    with pytest.raises(ValueError, match="expected finite numbers"):
        environment.step(np.full(12, np.nan, np.float32))
    environment.close()


def test_the_rendered_camera_has_the_same_shape_and_writes_a_gif(tmp_path):
    environment = SweepingEnv(image_size=48, camera="rendered", render_mode="rgb_array")
    seen, _ = environment.reset(seed=0)
    assert seen["image"].shape == (48, 48, 3)
    assert environment.observation_space.contains(seen)
    frame = environment.render()
    assert frame.shape == (256, 256, 3)
    write_gif(tmp_path / "sweeping.gif", [frame, frame])
    assert (tmp_path / "sweeping.gif").read_bytes()[:3] == b"GIF"
    environment.close()


@pytest.mark.parametrize("size", [64, 500])
def test_a_ball_is_drawn_where_it_is(size):
    left, low, extent = VIEW
    ball = np.array([[0.1, -0.05, 0.014]])
    image = Drawing(size).image(ball, HOME).astype(float) / 255
    red = (np.abs(image - COLOURS["ball"]).max(-1) < 0.02).nonzero()
    column, row = (ball[0, 0] - left) / extent * size, (low + extent - ball[0, 1]) / extent * size
    assert abs(red[1].mean() + 0.5 - column) < 1
    assert abs(red[0].mean() + 0.5 - row) < 1


def test_the_image_is_mirrored_with_the_scene():
    balls = np.random.default_rng(0).uniform(-0.1, 0.1, (5, 3))
    drawing = Drawing(64)
    turned = HOME[::-1] * (-1, 1, 1, 1, -1, -1)
    image = drawing.image(balls * (-1, 1, 1), turned).astype(int)
    assert np.abs(image[:, ::-1] - drawing.image(balls, HOME)).max() <= 1  # rounding


def test_without_the_extra_a_sentence_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pybullet", None)
    with pytest.raises(ModuleNotFoundError, match=r"sweeping needs pybullet: pip install .*robotics"):
        reproduce([EXPERIMENTS["sweeping"]], quick=True, seed=0, out=tmp_path)

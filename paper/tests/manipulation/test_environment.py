"""The environment behind Gymnasium's interface, and its images."""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from hrf_paper.experiments.registry import EXPERIMENTS
from hrf_paper.manipulation import ENVIRONMENT
from hrf_paper.manipulation.demonstrations import expert_action
from hrf_paper.manipulation.environment import SweepingEnv
from hrf_paper.manipulation.scene import COLOURS, HOME, VIEW, Drawing
from hrf_paper.robots import write_gif
from hrf_paper.runner import reproduce


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

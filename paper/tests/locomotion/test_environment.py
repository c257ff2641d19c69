from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import hrf_paper.locomotion  # noqa: F401 (registers the environment)
from hrf_paper.locomotion import StepStones, StoneField
from hrf_paper.locomotion.environment import LARGEST_SHIFT, SPEED, SWING_TIME
from hrf_paper.locomotion.legs import TOE_RADIUS
from hrf_paper.locomotion.terrain import nearest_ground

TOES = (3, 7, 11, 15)  # links of the robot

LEVEL = StoneField(distance=1.5, gaps=(0.0, 0.0))
SHORT = StoneField(distance=1.5)


@pytest.fixture(scope="module")
def stones():
    environment = StepStones(SHORT)
    yield environment
    environment.close()


def zeros(environment):
    return np.zeros(2)


def seeing(environment):
    """Return the smallest shifts that bring the next footholds onto stones, which this oracle knows."""
    footholds = environment.walker.footholds()
    return (nearest_ground(environment.walker.stones, footholds, 0.03) - footholds) / LARGEST_SHIFT


def played(environment, policy, seed):
    """Return the sum of rewards, the last info and the trace of an episode."""
    environment.reset(seed=seed)
    total, trace, ended = 0.0, [], False
    while not ended:
        _, reward, terminated, truncated, info = environment.step(policy(environment))
        total, ended = total + reward, terminated or truncated
        trace.append(environment.walker.world.position)
    return total, info, np.array(trace)


def test_the_checker_of_gymnasium_has_nothing_to_say(stones):
    check_env(stones, skip_render_check=True)  # warnings are errors


def test_the_name_gives_the_papers_field():
    environment = gymnasium.make("hrf/StepStones-v0")
    assert environment.unwrapped.walker.field == StoneField()
    assert environment.observation_space["depth"].shape == (2, 24, 32)
    environment.close()


def test_a_seed_gives_one_episode_whatever_came_before(stones):
    first = played(stones, seeing, 3)
    other = played(stones, seeing, 4)
    again = played(stones, seeing, 3)
    np.testing.assert_array_equal(first[2], again[2])
    assert first[0] == again[0]
    assert other[0] != first[0]


def test_level_ground_is_walked_at_about_the_wanted_speed():
    environment = StepStones(LEVEL)
    total, info, trace = played(environment, zeros, 0)
    environment.close()
    assert info["crossed"]
    assert not info["fell"]
    speed = np.diff(trace[5:, 0]).mean() / SWING_TIME
    assert 0.7 * SPEED < speed < 1.3 * SPEED
    assert total == pytest.approx(trace[-1, 0], abs=0.3)


def test_sight_is_needed(stones):
    """An oracle that sees the stones crosses every field, and a blind robot falls in every one."""
    blind = [played(stones, zeros, seed) for seed in range(3)]
    seen = [played(stones, seeing, seed) for seed in range(3)]
    assert all(info["fell"] for _, info, _ in blind)
    assert all(info["crossed"] for _, info, _ in seen)
    assert min(total for total, _, _ in seen) > 2 * max(total for total, _, _ in blind)


def test_feet_stand_on_stones_and_do_not_sink_in(stones):
    stones.reset(seed=5)
    world = stones.walker.world
    for _ in range(12):
        stones.step(seeing(stones))
        contacts = world.engine.getContactPoints(world.robot)
        assert {contact[3] for contact in contacts} <= set(TOES)
        # Bullet lets bodies overlap by a few millimetres.
        assert min(contact[8] for contact in contacts) > -0.01
        standing = stones.walker.feet[:, 2] < TOE_RADIUS + 0.005
        assert standing.sum() >= 2
        edges = stones.walker.stones
        for x in stones.walker.feet[standing, 0]:
            assert ((edges[:, 0] - 0.03 < x) & (x < edges[:, 1] + 0.03)).any()


def test_a_robot_without_torques_gains_no_energy(stones):
    stones.reset(seed=0)
    world = stones.walker.world
    heights, speeds = [], []
    for _ in range(60):
        world.advance(np.zeros(12))
        heights.append(world.position[2])
        speeds.append(world.velocity[2])
    assert max(heights) <= heights[0] + 1e-3
    energy = 9.81 * np.array(heights) + np.square(speeds) / 2
    assert energy[-1] < energy[0]


@pytest.mark.slow
def test_two_processes_walk_like_one(stones):
    fields, action, seeds = {"field": SHORT}, np.array([0.2, 0.0], np.float32), [3, 4]
    # One process first: the others find its compiled controllers on disk.
    alone = [(stones.reset(seed=seed)[0], *stones.step(action)[:2]) for seed in seeds]
    many = gymnasium.make_vec("hrf/StepStones-v0", 2, "async", vector_kwargs={"context": "spawn"}, **fields)
    observations, _ = many.reset(seed=seeds)
    after, rewards, *_ = many.step(np.stack([action, action]))
    many.close()
    for place, (first, second, reward) in enumerate(alone):
        np.testing.assert_array_equal(observations["depth"][place], first["depth"])
        np.testing.assert_array_equal(after["depth"][place], second["depth"])
        assert rewards[place] == reward


def test_pictures_need_no_display():
    environment = StepStones(SHORT, render_mode="rgb_array")
    environment.reset(seed=0)
    picture = environment.render()
    environment.close()
    assert picture.shape == (240, 320, 3)
    assert picture.std() > 10


def test_bad_arguments_get_a_sentence(stones):
    with pytest.raises(ValueError, match="render_mode is 'human'; expected 'rgb_array' or None"):
        StepStones(render_mode="human")
    with pytest.raises(ValueError, match="most_decisions is 0; expected at least 1"):
        StepStones(most_decisions=0)
    stones.reset(seed=0)
    with pytest.raises(ValueError, match="expected two finite numbers"):
        stones.step(np.array([np.nan, 0.0]))


def test_without_the_extra_a_sentence_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("hrf_paper.locomotion")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pybullet", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"hrf_paper.locomotion needs pybullet: pip install .*robotics"
    ):
        import hrf_paper.locomotion  # noqa: F401

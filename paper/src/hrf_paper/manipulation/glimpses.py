"""Random scenes without physics: episodes show few layouts of the balls, and the teacher can answer for any."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from hrf_paper.manipulation.expert import expert_action
from hrf_paper.manipulation.scene import (
    BALL_RADIUS,
    EDGE,
    HIGHEST_POSE,
    LARGEST_CHANGE,
    LOWERED,
    LOWEST_POSE,
    RAISED,
    Array,
)

__all__ = ["random_scene"]

_NEARBY = 0.5  # share of the arms in the air that are about to go down
_ON_TABLE = 0.25  # share of the arms that push


def random_scene(rng: Generator, n_balls: int = 12) -> tuple[Array, Array]:
    """Draw balls ``(n, 3)``, in heaps, scattered or delivered, and poses ``(2, 6)`` that arms were told to take."""
    balls = np.concatenate([_half(rng, side, n_balls // 2) for side in (-1, 1)])
    poses = rng.uniform(LOWEST_POSE, HIGHEST_POSE)
    poses[:, 3:] = rng.normal(0, 0.02, (2, 3)) * (1 if rng.random() < 0.7 else 5)
    poses[:, 2] = np.where(rng.random(2) < 0.6, RAISED, poses[:, 2])
    # Where the teacher would go from here, a few steps later.
    goals = poses.copy()
    for _ in range(2):
        action = expert_action(balls, goals).reshape(2, 6)[:, :2]
        change = np.where(np.abs(action) == 1, 4, 1) * action * LARGEST_CHANGE[:2]
        goals[:, :2] = np.clip(goals[:, :2] + change, LOWEST_POSE[:, :2], HIGHEST_POSE[:, :2])
    goals[:, :2] += rng.normal(0, 0.04, (2, 2))
    draw = rng.random((2, 1))
    poses[:, :2] = np.where(draw < (1 - _ON_TABLE) * _NEARBY, goals[:, :2], poses[:, :2])
    down = draw[:, 0] > 1 - _ON_TABLE
    poses[down, 2] = LOWERED + 0.02 * rng.random(down.sum()) ** 3
    return balls, np.clip(poses, LOWEST_POSE, HIGHEST_POSE)


def _half(rng: Generator, side: int, count: int) -> Array:
    """Draw the balls of one half of the table: some delivered, the others around up to three centres."""
    delivered = rng.random(count) < rng.choice([0.0, 0.3, 0.6, 1.0], p=[0.5, 0.2, 0.2, 0.1])
    centres = rng.uniform((0.04, -0.19), (0.26, EDGE), (rng.integers(1, 4), 2))
    place = centres[rng.integers(len(centres), size=count)] + rng.normal(
        0, rng.choice([0.012, 0.03]), (count, 2)
    )
    balls = np.full((count, 3), BALL_RADIUS)
    balls[:, 0], balls[:, 1] = np.clip(place[:, 0], 0.01, 0.278), np.clip(place[:, 1], -0.22, EDGE)
    bowl = rng.uniform((0.02, EDGE + 0.02, -0.13), (0.28, EDGE + 0.15, -0.12), (count, 3))
    return np.where(delivered[:, None], bowl, balls) * (side, 1, 1)

"""A scripted teacher that sees the balls: a function of the scene alone, without memory.

Each arm serves its own half. In the air it goes behind the ball that is farthest from the bowls and lowers its paddle; on
the table it pushes until no ball is ahead of it or the edge is passed, and raises its paddle.
"""

from __future__ import annotations

import numpy as np

from hrf_paper.manipulation.scene import (
    BOWL_DEPTH,
    EDGE,
    HIGHEST_POSE,
    HOME,
    LARGEST_CHANGE,
    LOWERED,
    LOWEST_POSE,
    PADDLE,
    RAISED,
    Array,
)

__all__ = ["expert_action"]

_BEHIND = 0.05  # from the ball to a paddle that goes down
_NEAR = 0.02  # a paddle that is so close to its place goes down
_HEAP = 0.04  # balls within this distance along x are swept together
_GENTLE = 0.6  # of the largest change, while pushing
_PASSED = EDGE + 0.03  # where a push ends


def expert_action(balls: Array, wanted: Array) -> Array:
    """Return the action ``(12,)`` for balls ``(n, 3)`` and the poses ``(2, 6)`` that the arms were told to take."""
    on_table = balls[balls[:, 2] > BOWL_DEPTH]
    action = np.zeros((2, 6))
    for arm, side in enumerate((-1, 1)):
        pose, own = wanted[arm], on_table[np.sign(on_table[:, 0]) == side]
        goal = np.clip(_goal(own, pose, arm), LOWEST_POSE[arm], HIGHEST_POSE[arm])
        action[arm] = np.clip((goal - pose) / LARGEST_CHANGE, -1, 1)
        if _is_down(pose):
            action[arm, 1] = min(action[arm, 1], _GENTLE)
    return action.ravel()


def _is_down(pose: Array) -> bool:
    return bool(pose[2] < LOWERED + 0.02)


def _goal(balls: Array, pose: Array, arm: int) -> Array:
    """Return the pose to go to next, given the balls of the own half."""
    up = np.array([pose[0], pose[1], RAISED, 0, 0, 0])
    if _is_down(pose):
        ahead = (np.abs(balls[:, 0] - pose[0]) < PADDLE[0]) & (balls[:, 1] > pose[1] - 0.01)
        return up if pose[1] > _PASSED or not ahead.any() else np.array([pose[0], EDGE + 0.05, LOWERED, 0, 0, 0])
    if not len(balls):
        return HOME[arm] if pose[2] > RAISED - 0.03 else up
    far = balls[balls[:, 1].argmin()]
    heap = balls[np.abs(balls[:, 0] - far[0]) < _HEAP]
    place = np.clip([heap[:, 0].mean(), far[1] - _BEHIND], LOWEST_POSE[arm, :2], HIGHEST_POSE[arm, :2])
    if np.hypot(*(pose[:2] - place)) < _NEAR:
        return np.array([pose[0], pose[1], LOWERED, 0, 0, 0])
    return np.array([*place, RAISED, 0, 0, 0]) if pose[2] > RAISED - 0.03 else up

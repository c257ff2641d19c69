"""A scripted teacher that sees the balls: a function of the scene alone, without memory.

Each arm serves its own half. It goes behind the ball that is farthest from the bowls, and lower the closer it comes. On the
table it pushes, and steers towards the balls ahead, until the edge is passed or no ball is ahead; then it raises its
paddle. Actions are nearly continuous in the scene, apart from these two events, so that they can be learned.
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

_BEHIND = 0.05  # from the ball to the place where a paddle goes down
_HEAP = 0.04  # balls within this distance along x are swept together
_DOWN = LOWERED + 0.02  # a paddle below touches balls
_GENTLE, _STEERING = 0.6, 0.3  # of the largest change, along y and x, while pushing
_PASSED = EDGE + 0.03  # where a push ends
_NEAR = 0.02  # within this distance of its place, a paddle is lowered all the way


def expert_action(balls: Array, wanted: Array) -> Array:
    """Return the action ``(12,)`` for balls ``(n, 3)`` and the poses ``(2, 6)`` that the arms were told to take."""
    on_table = balls[balls[:, 2] > BOWL_DEPTH]
    action = np.zeros((2, 6))
    for arm, side in enumerate((-1, 1)):
        pose, own = wanted[arm], on_table[np.sign(on_table[:, 0]) == side]
        goal = np.clip(_goal(own, pose, arm), LOWEST_POSE[arm], HIGHEST_POSE[arm])
        action[arm] = np.clip((goal - pose) / LARGEST_CHANGE, -1, 1)
        if pose[2] < _DOWN:
            action[arm, :2] = np.clip(action[arm, :2], -_STEERING, (_STEERING, _GENTLE))
    return action.ravel()


def _goal(balls: Array, pose: Array, arm: int) -> Array:
    """Return the pose to go to next, given the balls of the own half."""
    if pose[2] < _DOWN:
        ahead = balls[(np.abs(balls[:, 0] - pose[0]) < PADDLE[0]) & (balls[:, 1] > pose[1] - 0.01)]
        if pose[1] > _PASSED or not len(ahead):
            return np.array([*pose[:2], RAISED, 0, 0, 0])
        return np.array([ahead[:, 0].mean(), EDGE + 0.05, LOWERED, 0, 0, 0])
    if not len(balls):
        return HOME[arm]
    far = balls[balls[:, 1].argmin()]
    heap = balls[np.abs(balls[:, 0] - far[0]) < _HEAP]
    place = np.clip([heap[:, 0].mean(), far[1] - _BEHIND], LOWEST_POSE[arm, :2], HIGHEST_POSE[arm, :2])
    height = LOWERED + max(0.0, float(np.hypot(*(pose[:2] - place))) - _NEAR)
    return np.array([*place, min(height, RAISED), 0, 0, 0])

"""A scripted teacher that sees the balls: a function of the scene alone, without memory.

Each arm serves its own half, from the outside in: it goes behind the balls of the outermost lane, lowers its paddle,
pushes past the edge of the table and raises its paddle. The lane depends on the balls alone, heights are asked for
with full strength, and a paddle on its way down is stopped by larger errors only, so that small errors of a pupil do
not add up.
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
    RAISED,
    Array,
)

__all__ = ["expert_action"]

_INWARD = 0.04  # from the outermost ball to the middle of the paddle, along x
_LANE = 0.1  # width of a lane, from the outermost ball on
_BEHIND = 0.06  # from the last ball of the lane to the paddle, along y
_BESIDE, _BEFORE, _PAST = (
    0.035,
    0.06,
    0.03,
)  # a paddle goes down so far beside its place, behind it and before it
_DOWN = LOWERED + 0.02  # a paddle below is on the table
_FALLING = RAISED - 0.02  # a paddle between this and the table is on its way
_COMMITTED = 1.5  # times as far from its place, it still goes down
_GENTLE = 0.6  # of the largest change, while pushing
_PASSED = EDGE + 0.03  # where a push ends


def expert_action(balls: Array, wanted: Array) -> Array:
    """Return the action ``(12,)`` for balls ``(n, 3)`` and the poses ``(2, 6)`` that the arms were told to take."""
    on_table = balls[balls[:, 2] > BOWL_DEPTH]
    action = np.zeros((2, 6))
    for arm, side in enumerate((-1, 1)):
        pose, own = wanted[arm], on_table[np.sign(on_table[:, 0]) == side]
        action[arm, 3:] = np.clip(-pose[3:] / LARGEST_CHANGE[3:], -1, 1)
        action[arm, :3] = _pushed(pose) if pose[2] < _DOWN else _approach(own, pose, arm, side)
    return action.ravel()


def _pushed(pose: Array) -> tuple[float, float, float]:
    """Push, or raise the paddle behind the edge."""
    return (0.0, 0.0, 1.0) if pose[1] > _PASSED else (0.0, _GENTLE, -1.0)


def _approach(balls: Array, pose: Array, arm: int, side: int) -> Array:
    """Go to the place behind the outermost lane, and down when it is near; home without balls."""
    place = HOME[arm, :2]
    if len(balls):
        outward = side * balls[:, 0]
        lane = balls[outward > outward.max() - _LANE]
        place = np.array([side * (outward.max() - _INWARD), lane[:, 1].min() - _BEHIND])
        place = np.clip(place, LOWEST_POSE[arm, :2], HIGHEST_POSE[arm, :2])
    change = place - pose[:2]
    beside, past, before = (
        (_COMMITTED if pose[2] < _FALLING else 1.0) * reach for reach in (_BESIDE, _PAST, _BEFORE)
    )
    lower = len(balls) and abs(change[0]) < beside and -past < change[1] < before
    return np.array([*np.clip(change / LARGEST_CHANGE[:2], -1, 1), -1.0 if lower else 1.0])

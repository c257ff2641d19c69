"""Sizes, limits and colours of the sweeping task: a table between two arms, bowls behind its far edge.

Lengths are in metres and angles in radians; x points to the right arm, y to the bowls, z up, and the table's surface is
at z = 0. The left arm is arm 0. A pose is (x, y, z, roll, pitch, yaw) of a paddle's centre.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ARMS",
    "BALL_RADIUS",
    "BOWLS",
    "BOWL_DEPTH",
    "COLOURS",
    "CONTROL_SECONDS",
    "EDGE",
    "HIGHEST_POSE",
    "HOME",
    "LARGEST_CHANGE",
    "LOWERED",
    "LOWEST_POSE",
    "PADDLE",
    "RAISED",
    "STEPS",
    "TABLE",
    "WALLS",
    "Array",
    "Block",
    "is_delivered",
    "is_lost",
]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """A fixed box.

    Attributes:
        centre: its centre.
        half: half of its extents.
    """

    centre: tuple[float, float, float]
    half: tuple[float, float, float]


CONTROL_SECONDS = 0.1
STEPS = 60  # per episode
EDGE = 0.22  # the table's end along y
RAISED, LOWERED = 0.16, 0.06  # heights of a paddle's centre in the air and on the table
BALL_RADIUS = 0.014
PADDLE = (0.06, 0.008, 0.05)  # half extents: wide along x, thin along y
ARMS = (((-0.72, 0.0, 0.0), 0.0), ((0.72, 0.0, 0.0), math.pi))  # base and yaw of each arm

HOME: Array = np.array([[-0.14, -0.2, RAISED, 0, 0, 0], [0.14, -0.2, RAISED, 0, 0, 0]])
LOWEST_POSE: Array = np.array(
    [[-0.225, -0.24, LOWERED, -0.3, -0.3, -0.6], [0.065, -0.24, LOWERED, -0.3, -0.3, -0.6]]
)
HIGHEST_POSE: Array = np.array([[-0.065, 0.27, RAISED, 0.3, 0.3, 0.6], [0.225, 0.27, RAISED, 0.3, 0.3, 0.6]])
LARGEST_CHANGE: Array = np.array([0.06, 0.06, 0.05, 0.2, 0.2, 0.2])  # of a pose per step

TABLE = Block((0, EDGE - 0.3, -0.05), (0.5, 0.3, 0.05))
# Low walls at three sides, so that balls stay on the table.
WALLS = (
    Block((-0.3, EDGE - 0.3, 0.012), (0.008, 0.3, 0.012)),
    Block((0.3, EDGE - 0.3, 0.012), (0.008, 0.3, 0.012)),
    Block((0, EDGE - 0.6, 0.012), (0.3, 0.008, 0.012)),
)
BOWL_DEPTH = -0.03  # a ball lower than this has left the table
_BOWL_Y, _BOWL_HALF = EDGE + 0.09, (0.15, 0.09)
# The floor of each bowl, then its walls at the back and at both sides.
BOWLS = tuple(
    (
        Block((x, _BOWL_Y, -0.15), (*_BOWL_HALF, 0.01)),
        Block((x, _BOWL_Y + 0.09, -0.05), (0.15, 0.006, 0.11)),
        Block((x - 0.145, _BOWL_Y, -0.11), (0.006, 0.09, 0.05)),
        Block((x + 0.145, _BOWL_Y, -0.11), (0.006, 0.09, 0.05)),
    )
    for x in (-0.15, 0.15)
)

# Red, green and blue in [0, 1].
COLOURS = {
    "floor": (0.25, 0.25, 0.27),
    "table": (0.85, 0.80, 0.70),
    "wall": (0.60, 0.50, 0.40),
    "bowl": (0.10, 0.75, 0.20),
    "ball": (0.90, 0.10, 0.10),
    "paddle": (0.20, 0.30, 0.90),
    "arm": (0.45, 0.45, 0.50),
}


def is_delivered(balls: Array) -> NDArray[np.bool_]:
    """Tell which balls ``(n, 3)`` are inside a bowl."""
    inside = (balls[:, 1] > EDGE - 0.02) & (balls[:, 1] < _BOWL_Y + 0.1) & (np.abs(balls[:, 0]) < 0.31)
    return inside & (balls[:, 2] < BOWL_DEPTH) & (balls[:, 2] > -0.2)


def is_lost(balls: Array) -> NDArray[np.bool_]:
    """Tell which balls ``(n, 3)`` fell from the table beside the bowls."""
    return (balls[:, 2] < BOWL_DEPTH) & ~is_delivered(balls)

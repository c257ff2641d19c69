"""The sweeping task: sizes, limits and colours, and images from straight above."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Sizes, limits and colours of the sweeping task: a table between two arms, bowls behind its far edge.
#
# Lengths are in metres and angles in radians; x points to the right arm, y to the bowls, z up, and the table's surface
# is at z = 0. The left arm is arm 0. A pose is (x, y, z, roll, pitch, yaw) of a paddle's centre.

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


# Images of the scene from straight above, drawn from its geometry: fast, and the same on every machine.
#
# Shapes are given by signed distances, positive outside, and a pixel is covered by as much as its centre is inside, in
# pixels. Arms are drawn as thin rods from their bases to the paddles, so that they hide few balls.

N_BALLS = 12
VIEW = (-0.32, -0.26, 0.64)  # smallest x and y of the image, and its extent
_ROD = 0.006  # half of a rod's width


class Drawing:
    """Draw scenes as square images.

    Args:
        size: pixels per side.
    """

    def __init__(self, size: int) -> None:
        if size < 16:
            raise ValueError(f"the image size is {size}; expected at least 16 pixels")
        left, low, extent = VIEW
        self.size, self._pixel = size, extent / size
        centres: Array = (np.arange(size, dtype=np.float64) + 0.5) * self._pixel
        self._x: Array = (left + centres)[None, :]  # (1, W)
        self._y: Array = (low + extent - centres)[:, None]  # (H, 1): the bowls are at the top
        self._background = self._furniture()

    def image(self, balls: Array, poses: Array) -> NDArray[np.uint8]:
        """Draw balls ``(n, 3)`` and paddles with poses ``(2, 6)``: ``(size, size, 3)``."""
        canvas = self._background.copy()
        x, y = balls[:, 0, None, None], balls[:, 1, None, None]
        nearest = np.sqrt(((self._x - x) ** 2 + (self._y - y) ** 2).min(0))
        self._paint(canvas, nearest - BALL_RADIUS, "ball")
        for pose, (base, _) in zip(poses, ARMS, strict=True):
            self._paint(canvas, self._paddle(pose), "paddle")
            self._paint(canvas, self._rod(base, pose), "arm")
        return np.rint(255 * canvas).astype(np.uint8)

    def _furniture(self) -> NDArray[np.float32]:
        canvas = np.empty((self.size, self.size, 3), np.float32)
        canvas[:] = COLOURS["floor"]
        self._paint(canvas, self._block(TABLE), "table")
        for wall in WALLS:
            self._paint(canvas, self._block(wall), "wall")
        for floor, *_ in BOWLS:
            self._paint(canvas, self._block(floor), "bowl")
        return canvas

    def _paint(self, canvas: NDArray[np.float32], distance: Array, part: str) -> None:
        cover = np.clip(0.5 - distance / self._pixel, 0, 1)[..., None].astype(np.float32)
        canvas += cover * (np.array(COLOURS[part], np.float32) - canvas)

    def _block(self, block: Block) -> Array:
        return np.maximum(
            np.abs(self._x - block.centre[0]) - block.half[0],
            np.abs(self._y - block.centre[1]) - block.half[1],
        )

    def _paddle(self, pose: Array) -> Array:
        """Return distances to a paddle, turned by its yaw."""
        cos, sin = np.cos(pose[5]), np.sin(pose[5])
        x, y = self._x - pose[0], self._y - pose[1]
        return np.maximum(np.abs(cos * x + sin * y) - PADDLE[0], np.abs(cos * y - sin * x) - PADDLE[1])

    def _rod(self, base: tuple[float, float, float], pose: Array) -> Array:
        """Return distances to the segment from an arm's base to its paddle."""
        along = np.array(base[:2]) - pose[:2]
        x, y = self._x - pose[0], self._y - pose[1]
        share = np.clip((x * along[0] + y * along[1]) / (along @ along), 0, 1)
        return np.hypot(x - share * along[0], y - share * along[1]) - _ROD

"""Stones in a row, and depth images of them in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hrf_paper.locomotion.legs import TRUNK_HEIGHT

# Stepping stones in a row along x, level with each other: where they begin and end.
#
# The paper's stones are 50 cm wide and 50–80 cm long, with gaps of 10–20 cm.

Array = NDArray[np.float64]

PLATFORM = 1.6  # length of the stone that the robot starts on
_FIRST_EDGE = (0.55, 0.80)  # where that stone ends, in front of the robot
_AFTER = 1.5  # metres of stones behind the end of the field


@dataclass(frozen=True)
class StoneField:
    """Sizes of a field in metres.

    Attributes:
        distance: the way to go.
        width: width of all stones.
        lengths: shortest and longest stone.
        gaps: smallest and largest gap; (0, 0) is level ground.
    """

    distance: float = 4.0
    width: float = 0.5
    lengths: tuple[float, float] = (0.5, 0.8)
    gaps: tuple[float, float] = (0.1, 0.2)

    def __post_init__(self) -> None:
        low, high = self.lengths
        if not 0 < low <= high <= 2 * low:
            raise ValueError(
                f"lengths is {self.lengths}; expected the longest to be up to twice the shortest"
            )
        if not 0 <= self.gaps[0] <= self.gaps[1]:
            raise ValueError(f"gaps is {self.gaps}; expected two lengths, the smaller first, from 0 on")
        if not (self.distance > 0 and self.width > 0):
            raise ValueError(
                f"distance is {self.distance} and width is {self.width}; expected positive lengths"
            )

    @property
    def most_stones(self) -> int:
        """The number of stones of a field with the shortest stones and gaps."""
        return 2 + int((self.distance + _AFTER) / (self.lengths[0] + self.gaps[0]))


def draw_stones(field: StoneField, generator: np.random.Generator) -> Array:
    """Return the beginning and end of each stone, ``(n, 2)``; the first is the platform under the robot."""
    end = generator.uniform(*_FIRST_EDGE)
    stones = [(end - PLATFORM, end)]
    while end < field.distance + _AFTER:
        begin = end + generator.uniform(*field.gaps)
        end = begin + generator.uniform(*field.lengths)
        stones.append((begin, end))
    return np.array(stones)


def nearest_ground(stones: Array, x: Array, margin: float) -> Array:
    """Return the places next to ``x``, of any shape, that are on a stone, a margin away from its edges."""
    places = np.clip(x[..., None], stones[:, 0] + margin, stones[:, 1] - margin)
    nearest = np.abs(places - x[..., None]).argmin(-1)
    return np.take_along_axis(places, nearest[..., None], -1)[..., 0]


def off_stone(stones: Array, x: Array, margin: float = 0.0) -> Array:
    """Return the distance from each ``x`` to the nearest stone without its margin, 0 on it."""
    distance: Array = np.abs(nearest_ground(stones, x, margin) - x)
    return distance


# Two depth cameras, in front and below the trunk, by intersecting their rays with the stones in closed form.
#
# A ray meets the top of a stone at height 0, or the end of a stone on its way into a gap; everything else is out of
# range. The robot's own legs are not seen. Depth is measured along the axis of a camera.


N_CAMERAS, HEIGHT, WIDTH = 2, 24, 32
RANGE = 1.5  # metres
STONE_HEIGHT = 0.2
_FIELD_OF_VIEW = math.radians(70)  # from the top of the image to its bottom
_DOWN = math.radians(58)  # how far the front camera looks down
_PLACES = np.array([[0.28, 0.0, -0.02], [-0.05, 0.0, -0.12]])
_AXES = np.array([[math.cos(_DOWN), 0.0, -math.sin(_DOWN)], [0.0, 0.0, -1.0]])
_UP = np.array([[math.sin(_DOWN), 0.0, math.cos(_DOWN)], [1.0, 0.0, 0.0]])


def _rays() -> Array:
    """Return the direction of each pixel in the frame of the trunk, of length one along the axis."""
    half = math.tan(_FIELD_OF_VIEW / 2)
    up = (1 - (np.arange(HEIGHT) + 0.5) / HEIGHT * 2) * half
    right = ((np.arange(WIDTH) + 0.5) / WIDTH * 2 - 1) * half * WIDTH / HEIGHT
    vertical = up[:, None, None] * _UP[:, None, None]
    horizontal = right[:, None] * np.cross(_AXES, _UP)[:, None, None]
    return _AXES[:, None, None] + vertical + horizontal


_RAYS = _rays()  # (2, 24, 32, 3)


def _level() -> Array:
    """Return the distance of level ground from an upright trunk along the axes, at most `RANGE`, ``(2, 24, 32)``."""
    height = TRUNK_HEIGHT + _PLACES[:, 2]
    return np.minimum(height[:, None, None] / np.maximum(-_RAYS[..., 2], 1e-6), RANGE)


def level_depth() -> Array:
    """Return the images ``(2, 24, 32)`` of level ground from an upright trunk."""
    return _level() / RANGE


def ground_points() -> Array:
    """Return where each pixel sees level ground from an upright trunk, ``(2, 24, 32, 2)``: x and y from the trunk.

    Rays to the horizon end at `RANGE`.
    """
    return _PLACES[:, None, None, :2] + _level()[..., None] * _RAYS[..., :2]


def depth_images(position: Array, rotation: Array, stones: Array, width: float) -> NDArray[np.float32]:
    """Return the images ``(2, 24, 32)`` of a trunk's cameras, from 0 to 1, in units of `RANGE`.

    Args:
        position: of the trunk, ``(3,)``.
        rotation: of the trunk, ``(3, 3)``.
        stones: beginning and end of each stone, ``(n, 2)``.
        width: width of the stones, in the middle of which y is 0.
    """
    eye = (position + _PLACES @ rotation.T)[:, None, None]
    ray = _RAYS @ rotation.T
    top = -eye[..., 2] / np.minimum(ray[..., 2], -1e-6)
    edges = stones.ravel()
    after = np.searchsorted(edges, eye[..., 0] + top * ray[..., 0])  # odd on a stone, even in a gap
    on_stone = (after % 2 == 1) & (np.abs(eye[..., 1] + top * ray[..., 1]) < width / 2)
    forward = np.where(np.abs(ray[..., 0]) < 1e-6, 1e-6, ray[..., 0])
    faced = np.where(forward > 0, np.minimum(after, len(edges) - 1), np.maximum(after - 1, 0))
    face = (edges[faced] - eye[..., 0]) / forward
    z, y = eye[..., 2] + face * ray[..., 2], eye[..., 1] + face * ray[..., 1]
    on_face = (after % 2 == 0) & (face > 0) & (z > -STONE_HEIGHT) & (np.abs(y) < width / 2)
    depth = np.where(on_stone, top, np.where(on_face, face, RANGE))
    images: NDArray[np.float32] = np.clip(depth / RANGE, 0, 1).astype(np.float32)
    return images

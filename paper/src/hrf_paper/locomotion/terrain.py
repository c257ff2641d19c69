"""Stepping stones in a row along x, level with each other: where they begin and end.

The paper's stones are 50 cm wide and 50–80 cm long, with gaps of 10–20 cm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["PLATFORM", "StoneField", "draw_stones", "nearest_ground", "off_stone"]

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

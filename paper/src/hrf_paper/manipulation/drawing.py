"""Images of the scene from straight above, drawn from its geometry: fast, and the same on every machine.

Shapes are given by signed distances, positive outside, and a pixel is covered by as much as its centre is inside, in
pixels. Arms are drawn as thin rods from their bases to the paddles, so that they hide few balls.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrf_paper.manipulation.scene import (
    ARMS,
    BALL_RADIUS,
    BOWLS,
    COLOURS,
    PADDLE,
    TABLE,
    WALLS,
    Array,
    Block,
)

__all__ = ["VIEW", "Drawing"]

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

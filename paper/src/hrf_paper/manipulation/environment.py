"""``hrf/Sweeping-v0``: two arms sweep balls into bowls, behind Gymnasium's interface."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hrf_paper.manipulation.drawing import Drawing
from hrf_paper.manipulation.scene import HIGHEST_POSE, LOWEST_POSE, STEPS
from hrf_paper.manipulation.table import SweepingTable

__all__ = ["CAMERAS", "IMAGE_SIZE", "SweepingEnv"]

IMAGE_SIZE = 64
CAMERAS = ("drawn", "rendered")
_VIDEO_SIZE = 256

Observation = dict[str, NDArray[Any]]


class SweepingEnv(gymnasium.Env[Any, NDArray[np.float32]]):
    """Two arms with paddles sweep red balls over the edge of a table into green bowls.

    Observation: a dictionary with ``image``, ``(size, size, 3)`` of type uint8, and ``poses``, ``(12,)``: x, y, z (m),
    roll, pitch, yaw (radians) that the left paddle, then the right one was told to take.

    Action: ``(12,)`` in [−1, 1], changes of both poses in a step of 0.1 s: 1 is 6 cm along x and y, 5 cm along z and
    0.2 radians of each angle. Poses are kept in the workspace of their arm.

    Reward of a step: the share of the balls that are inside a bowl. An episode ends when every ball is in a bowl or has
    fallen beside the bowls, and is truncated after ``steps``. ``info`` has ``delivered`` and ``lost``, shares of the
    balls.

    Args:
        render_mode: ``"rgb_array"`` or ``None``.
        image_size: pixels per side of the image; the paper has 500.
        steps: length of an episode.
        n_balls: number of balls, in four heaps.
        camera: ``"drawn"``, from straight above, or ``"rendered"``, by Bullet from behind the bowls, about twenty times
            as slow.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (declared by Gymnasium)

    def __init__(
        self,
        render_mode: str | None = None,
        *,
        image_size: int = IMAGE_SIZE,
        steps: int = STEPS,
        n_balls: int = 12,
        camera: str = "drawn",
    ) -> None:
        if camera not in CAMERAS:
            raise ValueError(f"camera is {camera!r}; expected one of {', '.join(CAMERAS)}")
        if steps < 1:
            raise ValueError(f"steps is {steps}; expected at least 1")
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {render_mode!r}; expected 'rgb_array' or None")
        self.render_mode, self._steps, self._camera = render_mode, steps, camera
        self._drawing = Drawing(image_size)
        self.table = SweepingTable(n_balls)
        self._step = 0
        low, high = (limit.ravel().astype(np.float32) for limit in (LOWEST_POSE, HIGHEST_POSE))
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (image_size, image_size, 3), np.uint8),
                "poses": spaces.Box(low, high, dtype=np.float32),
            }
        )
        self.action_space = spaces.Box(-1, 1, (12,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode: arms at home, balls in four random heaps."""
        super().reset(seed=seed)
        self.table.reset(self.np_random)
        self._step = 0
        return self._observation(), self._information()

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move both arms for a tenth of a second."""
        if not np.isfinite(action).all():
            raise ValueError(f"the action is {action}; expected finite numbers")
        self.table.step(np.asarray(action, np.float64))
        self._step += 1
        found = self._information()
        ended = bool(found["delivered"] + found["lost"] > 1 - 1e-9)
        return self._observation(), found["delivered"], ended, self._step >= self._steps, found

    def render(self) -> NDArray[np.uint8] | None:
        """Return a frame of a video, ``(256, 256, 3)``, with ``render_mode="rgb_array"``."""
        return self.table.photograph(_VIDEO_SIZE) if self.render_mode else None

    def close(self) -> None:
        """End the simulation."""
        self.table.close()

    def _observation(self) -> Observation:
        size = self._drawing.size
        image = (
            self._drawing.image(self.table.balls(), self.table.poses())
            if self._camera == "drawn"
            else self.table.photograph(size)
        )
        poses = np.clip(
            self.table.wanted.ravel().astype(np.float32),
            self.observation_space["poses"].low,  # type: ignore[index]
            self.observation_space["poses"].high,  # type: ignore[index]
        )
        return {"image": image, "poses": poses}

    def _information(self) -> dict[str, Any]:
        return {
            "delivered": float(self.table.delivered().mean()),
            "lost": float(self.table.lost().mean()),
        }

"""``hrf/StepStones-v0``: Laikago walks over stepping stones that it sees through two depth cameras."""

from __future__ import annotations

from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hrf_paper.locomotion.cameras import HEIGHT, N_CAMERAS, WIDTH
from hrf_paper.locomotion.terrain import StoneField
from hrf_paper.locomotion.walker import LARGEST_SHIFT, SPEED, SWING_TIME, Walker

__all__ = ["Observation", "StepStones"]

Observation = dict[str, NDArray[np.float32]]

_NEAR = 0.05  # metres beside a stone at which a foothold costs the whole penalty
_PENALTY = 0.2


class StepStones(gymnasium.Env[Observation, NDArray[np.float32]]):
    """A quadruped crosses a field of stones, one decision per swing of two diagonal legs (0.18 s).

    Observation, a dictionary:

    - ``depth``: ``(2, 24, 32)``, images of the front camera and of the camera below the trunk, from 0 to 1 (1.5 m).
    - ``footholds``: ``(2,)``, where Raibert's rule would put the front and the rear foot that swing next, in metres
      from the middle of the trunk.

    Action: ``(2,)`` from -1 to 1, shifts of these two footholds along the way, in units of 15 cm.

    Reward per decision: metres of progress, but no more than at the wanted speed of 0.5 m/s, minus up to 0.2 per
    foothold beside the stones (0.2 from 5 cm on). Walking faster and falling does not pay.

    An episode ends (terminated) with a fall or at the end of the field, and (truncated) after ``most_decisions``.
    ``info`` has ``fell``, ``crossed``, ``x`` (metres from the start) and ``off``, the share of the penalty.

    Args:
        field: sizes of the stones; the paper's by default, 4 m of them.
        most_decisions: decisions until an episode is truncated.
        render_mode: ``"rgb_array"`` for `render`, which needs no display.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 6}  # noqa: RUF012 (Gymnasium declares it so)

    def __init__(
        self, field: StoneField | None = None, *, most_decisions: int = 80, render_mode: str | None = None
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode is {render_mode!r}; expected 'rgb_array' or None")
        if most_decisions < 1:
            raise ValueError(f"most_decisions is {most_decisions}; expected at least 1")
        self.render_mode, self.most_decisions = render_mode, most_decisions
        self.walker = Walker(StoneField() if field is None else field, visual=render_mode is not None)
        seen: dict[str, gymnasium.Space[Any]] = {
            "depth": spaces.Box(0, 1, (N_CAMERAS, HEIGHT, WIDTH), np.float32),
            "footholds": spaces.Box(-10, 10, (2,), np.float32),
        }
        self.observation_space = cast("gymnasium.Space[Observation]", spaces.Dict(seen))
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draw new stones; the same seed gives the same field and the same episode."""
        super().reset(seed=seed)
        self.walker.reset(self.np_random)
        self._decisions = 0
        return self._observation(), {}

    def step(self, action: NDArray[Any]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Swing two legs."""
        shifts = np.clip(np.asarray(action, np.float64), -1, 1) * LARGEST_SHIFT
        if not np.isfinite(shifts).all():
            raise ValueError(f"action is {action}; expected two finite numbers")
        stride = self.walker.stride(shifts)
        self._decisions += 1
        off = float(np.minimum(stride.off / _NEAR, 1).sum())
        reward = min(stride.progress, SPEED * SWING_TIME) - _PENALTY * off
        x = float(self.walker.world.position[0])
        crossed = not stride.fell and x >= self.walker.field.distance
        info = {"fell": stride.fell, "crossed": crossed, "x": x, "off": off}
        ended = stride.fell or crossed
        return self._observation(), reward, ended, not ended and self._decisions >= self.most_decisions, info

    def _observation(self) -> Observation:
        footholds = self.walker.footholds() - self.walker.world.position[0]
        return {
            "depth": self.walker.depth(),
            "footholds": np.clip(footholds, -10, 10).astype(np.float32),
        }

    def render(self) -> NDArray[np.uint8] | None:
        """Return a picture ``(240, 320, 3)`` of the robot, ``None`` without a render mode."""
        return None if self.render_mode is None else self.walker.world.picture(320, 240)

    def close(self) -> None:
        """End the simulation."""
        self.walker.world.close()

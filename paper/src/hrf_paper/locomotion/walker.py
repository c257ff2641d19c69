"""A trot of decisions: in each, two diagonal legs swing to footholds while the other two carry the trunk.

Raibert's rule proposes the footholds, such that the trunk keeps its speed; a decision shifts them along x.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hrf_paper.locomotion.cameras import depth_images
from hrf_paper.locomotion.control import locate_feet, stance_torques, swing_torques
from hrf_paper.locomotion.legs import HIPS, N_LEGS, TOE_RADIUS
from hrf_paper.locomotion.terrain import StoneField, draw_stones, nearest_ground, off_stone
from hrf_paper.locomotion.world import STANDING, World

__all__ = ["LARGEST_SHIFT", "SPEED", "SWING_TIME", "Stride", "Walker", "oracle"]

Array = NDArray[np.float64]

SPEED = 0.5  # metres per second
SWING_TIME = 0.18  # seconds per decision
LARGEST_SHIFT = 0.15  # metres
TIME_STEP = 0.006
_CLEARANCE = 0.08  # height of a swing
_PAIRS = np.array([[0, 3], [1, 2]])  # FR with RL, FL with RR: the front leg first
_LOW, _TILTED = (
    0.28,
    0.7,
)  # height of the trunk in metres, and roll or pitch, beyond which the robot has fallen
_SETTLE = 10  # time steps on four legs before the first decision


class Stride(NamedTuple):
    """What came of a decision.

    Attributes:
        progress: metres that the trunk moved forward.
        off: distance of the two footholds from the nearest stone, ``(2,)``, in metres.
        fell: whether the robot fell.
    """

    progress: float
    off: Array
    fell: bool


class Walker:
    """A robot that trots along stones, one decision after another.

    Attributes:
        world: the simulated robot.
        stones: beginning and end of each stone, ``(n, 2)``.
        feet: the feet in the world, ``(4, 3)``.
    """

    def __init__(self, field: StoneField, *, visual: bool = False) -> None:
        self.field = field
        self.world = World(field, time_step=TIME_STEP, visual=visual)
        self._substeps = round(SWING_TIME / TIME_STEP)
        self.feet = np.zeros((N_LEGS, 3))
        self._jacobians, self._torques = np.zeros((N_LEGS, 3, 3)), np.zeros(3 * N_LEGS)

    def reset(self, generator: np.random.Generator) -> None:
        """Draw a field of stones, and stand before it."""
        self.stones = draw_stones(self.field, generator)
        self.world.reset(self.stones)
        self._turn = 0
        nowhere, nobody = np.zeros((N_LEGS, 3)), np.zeros(N_LEGS, np.bool_)
        for _ in range(_SETTLE):
            self._advance(nobody, nowhere, nowhere, 0.0, 0.0)

    @property
    def pair(self) -> NDArray[np.int64]:
        """The legs that swing next, the front leg first."""
        return _PAIRS[self._turn]

    def footholds(self) -> Array:
        """Return the footholds of the next pair by Raibert's rule, ``(2,)``: x in the world."""
        speed = self.world.velocity[0]
        ahead = speed * SWING_TIME + 0.5 * SPEED * SWING_TIME + 0.05 * (speed - SPEED)
        return self.world.position[0] + HIPS[self.pair, 0] + ahead

    def depth(self) -> NDArray[np.float32]:
        """Return the images of the cameras, ``(2, 24, 32)``."""
        return depth_images(self.world.position, self.world.rotation, self.stones, self.field.width)

    def stride(self, shifts: Array) -> Stride:
        """Swing the next pair to its footholds, shifted by metres ``(2,)``."""
        pair, world = self.pair, self.world
        swinging = np.zeros(N_LEGS, np.bool_)
        swinging[pair] = True
        target = np.zeros((N_LEGS, 3))
        target[pair, 0] = self.footholds() + shifts
        target[:, 2] = TOE_RADIUS - 0.005  # a little into the ground, so that the feet touch it in time
        start, begin, fell = self.feet.copy(), world.position[0], False
        for step in range(self._substeps):
            target[:, 1] = self._beside((self._substeps - step) * TIME_STEP)
            self._advance(swinging, start, target, (step + 1) / self._substeps, SPEED)
            if fell := self.has_fallen:
                break
        self._turn = 1 - self._turn
        off = off_stone(self.stones, target[pair, 0])
        return Stride(float(world.position[0] - begin), off, fell)

    def _beside(self, left: float) -> Array:
        """Return the footholds' y: sideways, they follow the trunk while the feet swing."""
        drift = self.world.velocity[1] * (left + 0.5 * SWING_TIME + 0.03)
        return np.clip(1.1 * self.world.position[1] + STANDING[:, 1] + drift, -0.22, 0.22)

    def _advance(
        self, swinging: NDArray[np.bool_], start: Array, target: Array, phase: float, speed: float
    ) -> None:
        w = self.world
        locate_feet(w.angles, w.position, w.rotation, self.feet, self._jacobians)
        stance_torques(
            w.position,
            w.rotation,
            w.attitude,
            w.velocity,
            w.turning,
            speed,
            swinging,
            self.feet,
            self._jacobians,
            self._torques,
        )
        swing_torques(
            w.angles,
            w.rates,
            w.position,
            w.rotation,
            swinging,
            start,
            target,
            phase,
            _CLEARANCE,
            self._torques,
        )
        w.advance(self._torques)

    @property
    def has_fallen(self) -> bool:
        """Whether the trunk is low or tilted."""
        roll, pitch, _ = self.world.attitude
        return bool(self.world.position[2] < _LOW or max(abs(roll), abs(pitch)) > _TILTED)


def oracle(walker: Walker, margin: float = 0.03) -> Array:
    """Return the smallest shifts ``(2,)`` in metres that bring the next footholds onto stones, which it knows."""
    footholds = walker.footholds()
    return nearest_ground(walker.stones, footholds, margin) - footholds

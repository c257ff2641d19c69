"""The physics of the task: two arms, balls, a table and bowls in Bullet, in steps of a tenth of a second."""

from __future__ import annotations

import numpy as np
import pybullet
from numpy.random import Generator
from numpy.typing import NDArray

from hrf_paper.bullet import BulletClient
from hrf_paper.manipulation.arms import Arm
from hrf_paper.manipulation.scene import (
    ARMS,
    BALL_RADIUS,
    BOWLS,
    COLOURS,
    CONTROL_SECONDS,
    HIGHEST_POSE,
    HOME,
    LARGEST_CHANGE,
    LOWEST_POSE,
    TABLE,
    WALLS,
    Array,
    Block,
    is_delivered,
    is_lost,
)

__all__ = ["SweepingTable"]

_SUBSTEPS = 16
_HEAPS = 4  # two in each half of the table


class SweepingTable:
    """The world of one episode.

    Args:
        n_balls: number of balls.

    Attributes:
        wanted: poses that the arms were told to take, ``(2, 6)``.
    """

    def __init__(self, n_balls: int = 12) -> None:
        if n_balls < 1:
            raise ValueError(f"n_balls is {n_balls}; expected at least 1")
        self.world = BulletClient()
        self._n_balls = n_balls
        self._build()

    def _build(self) -> None:
        """Build everything anew; solver and kinematics of Bullet remember the episodes before otherwise."""
        self.world.resetSimulation()
        self.world.setGravity(0, 0, -9.81)
        self.world.setTimeStep(CONTROL_SECONDS / _SUBSTEPS)
        self.world.setPhysicsEngineParameter(numSolverIterations=30, deterministicOverlappingPairs=1)
        self._build_furniture()
        self.arms = [Arm(self.world, *place, home) for place, home in zip(ARMS, HOME, strict=True)]
        self._balls = [self._ball() for _ in range(self._n_balls)]
        self.wanted = HOME.copy()

    def reset(self, rng: Generator) -> None:
        """Put the arms home and the balls in small heaps, two per half."""
        self._build()
        for arm in self.arms:
            arm.jump_home()
        centres = [(side * rng.uniform(0.05, 0.25), rng.uniform(-0.16, 0.12)) for side in (-1, 1, -1, 1)]
        for k, ball in enumerate(self._balls):
            x, y = centres[k % _HEAPS] + rng.normal(0, 0.012, 2)
            side = np.sign(centres[k % _HEAPS][0])
            place = [side * np.clip(side * x, 0.03, 0.265), np.clip(y, -0.19, 0.15), BALL_RADIUS + 0.001 * k]
            self.world.resetBasePositionAndOrientation(ball, place, [0, 0, 0, 1])
            self.world.resetBaseVelocity(ball, [0, 0, 0], [0, 0, 0])
        self._simulate()

    def step(self, action: Array) -> None:
        """Change the wanted poses by an action in [−1, 1], ``(12,)``, and let a control step pass."""
        change = np.clip(action, -1, 1).reshape(2, 6) * LARGEST_CHANGE
        self.wanted = np.clip(self.wanted + change, LOWEST_POSE, HIGHEST_POSE)
        for arm, pose in zip(self.arms, self.wanted, strict=True):
            arm.move_to(pose)
        self._simulate()

    def balls(self) -> Array:
        """Return the centres of all balls, ``(n, 3)``."""
        return np.array([self.world.getBasePositionAndOrientation(ball)[0] for ball in self._balls])

    def poses(self) -> Array:
        """Return the poses of both paddles as they are, ``(2, 6)``."""
        return np.array([arm.pose() for arm in self.arms])

    def delivered(self) -> NDArray[np.bool_]:
        """Tell which balls are inside a bowl."""
        return is_delivered(self.balls())

    def lost(self) -> NDArray[np.bool_]:
        """Tell which balls fell beside the bowls."""
        return is_lost(self.balls())

    def photograph(self, size: int) -> NDArray[np.uint8]:
        """Render the scene from behind the bowls, ``(size, size, 3)``."""
        view = self.world.computeViewMatrix([0, 0.75, 0.95], [0, 0.04, 0], [0, 0, 1])
        lens = self.world.computeProjectionMatrixFOV(44, 1.0, 0.1, 3.0)
        found = self.world.getCameraImage(
            size, size, view, lens, renderer=pybullet.ER_TINY_RENDERER, flags=pybullet.ER_NO_SEGMENTATION_MASK
        )
        return np.asarray(found[2], np.uint8).reshape(size, size, 4)[..., :3].copy()

    def close(self) -> None:
        """End the simulation; a second call does nothing."""
        self.world.disconnect()

    def _simulate(self) -> None:
        for _ in range(_SUBSTEPS):
            self.world.stepSimulation()

    def _build_furniture(self) -> None:
        self._box(TABLE, "table")
        for wall in WALLS:
            self._box(wall, "wall")
        for bowl in BOWLS:
            for block in bowl:
                self._box(block, "bowl")

    def _box(self, block: Block, part: str) -> None:
        shape = self.world.createCollisionShape(pybullet.GEOM_BOX, halfExtents=block.half)
        look = self.world.createVisualShape(
            pybullet.GEOM_BOX, halfExtents=block.half, rgbaColor=(*COLOURS[part], 1)
        )
        self.world.createMultiBody(0, shape, look, block.centre)

    def _ball(self) -> int:
        shape = self.world.createCollisionShape(pybullet.GEOM_SPHERE, radius=BALL_RADIUS)
        look = self.world.createVisualShape(
            pybullet.GEOM_SPHERE, radius=BALL_RADIUS, rgbaColor=(*COLOURS["ball"], 1)
        )
        ball: int = self.world.createMultiBody(0.02, shape, look, [0, 0, 1])
        self.world.changeDynamics(
            ball,
            -1,
            lateralFriction=0.6,
            rollingFriction=0.002,
            spinningFriction=0.002,
            linearDamping=0.8,
            angularDamping=0.8,
        )
        return ball

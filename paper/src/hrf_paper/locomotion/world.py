"""Laikago and its stones in PyBullet: state in, torques out, pictures on demand.

Bodies are made once and moved from field to field. A field starts from a saved state of the engine, which has no
contacts, so that an episode depends on its seed alone and not on the episodes before it.
"""

from __future__ import annotations

import numpy as np
import pybullet as bullet
import pybullet_data
from numpy.typing import NDArray

from hrf_paper.bullet import BulletClient
from hrf_paper.locomotion.cameras import STONE_HEIGHT
from hrf_paper.locomotion.control import TRUNK_HEIGHT
from hrf_paper.locomotion.legs import HIPS, N_LEGS, TOE_RADIUS, joint_angles
from hrf_paper.locomotion.terrain import PLATFORM, StoneField

__all__ = ["STANDING", "TOES", "World"]

Array = NDArray[np.float64]

MOTORS = (0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14)
TOES = (3, 7, 11, 15)
_AWAY = (0.0, 0.0, -9.0)
_STONE_COLOUR = (0.6, 0.62, 0.65, 1.0)
# Feet of a robot that stands, in the frame of the trunk.
STANDING = np.stack(
    [HIPS[:, 0], np.array([-0.13, 0.13, -0.13, 0.13]), np.full(N_LEGS, TOE_RADIUS - TRUNK_HEIGHT)], 1
)


def _standing_angles() -> Array:
    angles = np.empty((N_LEGS, 3))
    for leg in range(N_LEGS):
        joint_angles(leg, STANDING[leg], angles[leg])
    return angles.ravel()


class World:
    """A simulated robot on stones.

    Args:
        field: sizes of the stones.
        time_step: of the engine, in seconds.
        visual: whether `picture` is to be used; meshes for it take 200 MB.

    Attributes:
        angles: of the joints, ``(12,)``; ``rates`` are their derivatives.
        position: of the trunk; ``velocity`` is its derivative, ``turning`` its angular velocity.
        rotation: of the trunk, ``(3, 3)``; ``attitude`` is roll, pitch and yaw.
    """

    angles: Array
    rates: Array
    position: Array
    velocity: Array
    turning: Array
    rotation: Array
    attitude: Array

    def __init__(self, field: StoneField, *, time_step: float, visual: bool) -> None:
        self.engine = BulletClient()
        self._visual, self._field = visual, field
        self.engine.setGravity(0, 0, -9.81)
        self.engine.setPhysicsEngineParameter(
            fixedTimeStep=time_step, numSolverIterations=10, deterministicOverlappingPairs=1
        )
        self.robot = self._load_robot()
        self._platform = self._stone(PLATFORM)
        shortest, longest = field.lengths
        self._stones = [self._stone(shortest) for _ in range(field.most_stones)]
        # A longer stone has a second box at its end.
        more = field.most_stones if longest > shortest else 0
        self._extensions = [self._stone(longest - shortest) for _ in range(more)]
        self._standing = _standing_angles().tolist()
        self._empty = self.engine.saveState()

    def _load_robot(self) -> int:
        engine = self.engine
        engine.setAdditionalSearchPath(pybullet_data.getDataPath())
        flags = 0 if self._visual else bullet.URDF_IGNORE_VISUAL_SHAPES
        robot: int = engine.loadURDF("laikago/laikago_toes_zup.urdf", (0, 0, 2.0), flags=flags)
        for link in range(-1, engine.getNumJoints(robot)):
            engine.changeDynamics(robot, link, linearDamping=0, angularDamping=0, lateralFriction=1.0)
        for joint in MOTORS:  # toes and trunk touch the ground; legs do not
            engine.setCollisionFilterGroupMask(robot, joint, 0, 0)
        engine.setJointMotorControlArray(robot, MOTORS, bullet.VELOCITY_CONTROL, forces=[0.0] * len(MOTORS))
        return robot

    def _stone(self, length: float) -> int:
        engine, half = self.engine, (length / 2, self._field.width / 2, STONE_HEIGHT / 2)
        shape = engine.createCollisionShape(bullet.GEOM_BOX, halfExtents=half)
        look = -1
        if self._visual:
            look = engine.createVisualShape(bullet.GEOM_BOX, halfExtents=half, rgbaColor=_STONE_COLOUR)
        box: int = engine.createMultiBody(0, shape, look, _AWAY)
        engine.changeDynamics(box, -1, lateralFriction=1.0)
        return box

    def reset(self, stones: Array) -> None:
        """Put the stones ``(n, 2)`` in place, the platform first, and the robot on the platform."""
        engine = self.engine
        engine.restoreState(self._empty)
        engine.performCollisionDetection()  # forgets the contacts of the episode before
        self._move(self._platform, stones[0, 1] - PLATFORM / 2)
        shortest, longest = self._field.lengths
        for body, (begin, _) in zip(self._stones, stones[1:], strict=False):
            self._move(body, begin + shortest / 2)
        for body, (_, end) in zip(self._extensions, stones[1:], strict=False):
            self._move(body, end - (longest - shortest) / 2)
        engine.resetBasePositionAndOrientation(self.robot, (0, 0, TRUNK_HEIGHT), (0, 0, 0, 1))
        engine.resetBaseVelocity(self.robot, (0, 0, 0), (0, 0, 0))
        for joint, angle in zip(MOTORS, self._standing, strict=True):
            engine.resetJointState(self.robot, joint, angle, 0)
        self._sense()

    def _move(self, body: int, x: float) -> None:
        self.engine.resetBasePositionAndOrientation(body, (x, 0, -STONE_HEIGHT / 2), (0, 0, 0, 1))

    def advance(self, torques: Array) -> None:
        """Apply torques ``(12,)`` for one time step."""
        self.engine.setJointMotorControlArray(
            self.robot, MOTORS, bullet.TORQUE_CONTROL, forces=torques.tolist()
        )
        self.engine.stepSimulation()
        self._sense()

    def _sense(self) -> None:
        engine, robot = self.engine, self.robot
        joints = engine.getJointStates(robot, MOTORS)
        self.angles = np.array([joint[0] for joint in joints])
        self.rates = np.array([joint[1] for joint in joints])
        position, quaternion = engine.getBasePositionAndOrientation(robot)
        velocity, turning = engine.getBaseVelocity(robot)
        self.position, self.velocity, self.turning = np.array(position), np.array(velocity), np.array(turning)
        self.rotation = np.array(engine.getMatrixFromQuaternion(quaternion)).reshape(3, 3)
        self.attitude = np.array(engine.getEulerFromQuaternion(quaternion))

    def picture(self, width: int, height: int) -> NDArray[np.uint8]:
        """Return an image ``(height, width, 3)`` of the robot from the side, by software alone."""
        engine = self.engine
        target = (self.position[0] + 0.25, 0.0, 0.15)
        view = engine.computeViewMatrixFromYawPitchRoll(target, 1.7, 40, -25, 0, 2)
        projection = engine.computeProjectionMatrixFOV(50, width / height, 0.1, 10)
        pixels = engine.getCameraImage(
            width, height, view, projection, renderer=bullet.ER_TINY_RENDERER, shadow=0
        )[2]
        return np.asarray(pixels, np.uint8).reshape(height, width, 4)[..., :3].copy()

    def close(self) -> None:
        """End the engine; a second call does nothing."""
        self.engine.disconnect()

"""Laikago in PyBullet, its trot with one decision per swing, and the environment for Gymnasium."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import gymnasium
import numpy as np
import pybullet as bullet
import pybullet_data
from gymnasium import spaces
from numpy.typing import NDArray

from hrf_paper.locomotion.legs import (
    HIPS,
    N_LEGS,
    TOE_RADIUS,
    TRUNK_HEIGHT,
    joint_angles,
    locate_feet,
    stance_torques,
    swing_torques,
)
from hrf_paper.locomotion.terrain import (
    HEIGHT,
    N_CAMERAS,
    PLATFORM,
    STONE_HEIGHT,
    WIDTH,
    StoneField,
    depth_images,
    draw_stones,
    off_stone,
)
from hrf_paper.robots import BulletClient

# Laikago and its stones in PyBullet: state in, torques out, pictures on demand.
#
# Bodies are made once and moved from field to field. A field starts from a saved state of the engine, which has no
# contacts, so that an episode depends on its seed alone and not on the episodes before it.

Array = NDArray[np.float64]

MOTORS = (0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14)
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


# A trot of decisions: in each, two diagonal legs swing to footholds while the other two carry the trunk.
#
# Raibert's rule proposes the footholds, such that the trunk keeps its speed; a decision shifts them along x.


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


# ``hrf/StepStones-v0``: Laikago walks over stepping stones that it sees through two depth cameras.

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

"""Two arms over a table in Bullet, and the environment for Gymnasium."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pybullet
import pybullet_data
from gymnasium import spaces
from numpy.random import Generator
from numpy.typing import NDArray

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
    N_BALLS,
    PADDLE,
    STEPS,
    TABLE,
    WALLS,
    Array,
    Block,
    Drawing,
    is_delivered,
    is_lost,
)
from hrf_paper.robots import BulletClient

# An arm with a paddle: a Kuka iiwa of seven joints, its inverse kinematics and its motors.

_JOINTS = list(range(7))
_TIP = 8  # the paddle's link, after seven joints and the stick
_LIMITS = np.array([2.9, 2.0, 2.9, 2.0, 2.9, 2.0, 3.0])
_REST = (0.0, 0.7, 0.0, -1.5, 0.0, 0.9, 0.0)
_FORCE, _GAIN = 200.0, 0.4
_INERTIA = '<inertia ixx="1e-3" ixy="0" ixz="0" iyy="1e-3" iyz="0" izz="1e-3"/>'


class Arm:
    """One arm in a world of Bullet. Its links pass through everything; its paddle does not.

    Args:
        world: a client of Bullet.
        base: where the arm stands.
        yaw: how it is turned about the vertical axis.
        home: the pose of its paddle to begin with.
    """

    def __init__(self, world: Any, base: tuple[float, float, float], yaw: float, home: Array) -> None:
        self._world = world
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "arm.urdf"
            path.write_text(_description(), encoding="utf-8")
            self.body: int = world.loadURDF(
                str(path), base, world.getQuaternionFromEuler([0, 0, yaw]), useFixedBase=True
            )
        for link in range(-1, _TIP):
            world.setCollisionFilterGroupMask(self.body, link, 0, 0)
        self._home: tuple[float, ...] = _REST
        for _ in range(20):
            self._jump(self._home)
            self._home = self.joints_for(home)

    def joints_for(self, pose: Array) -> tuple[float, ...]:
        """Solve for the joint angles of a pose (x, y, z, roll, pitch, yaw), near the present angles."""
        found = self._world.calculateInverseKinematics(
            self.body,
            _TIP,
            pose[:3].tolist(),
            self._world.getQuaternionFromEuler(pose[3:].tolist()),
            lowerLimits=(-_LIMITS).tolist(),
            upperLimits=_LIMITS.tolist(),
            jointRanges=(2 * _LIMITS).tolist(),
            restPoses=_REST,
            maxNumIterations=20,
            residualThreshold=1e-4,
        )
        return tuple(found[:7])

    def jump_home(self) -> None:
        """Set the joints to the first pose, at rest."""
        self._jump(self._home)
        self._drive(self._home)

    def _jump(self, joints: tuple[float, ...]) -> None:
        """Set the joints at once, at rest."""
        for joint, angle in zip(_JOINTS, joints, strict=True):
            self._world.resetJointState(self.body, joint, angle, 0)

    def move_to(self, pose: Array) -> None:
        """Let the motors drive the paddle to a pose."""
        self._drive(self.joints_for(pose))

    def pose(self) -> Array:
        """Return the paddle's pose as it is."""
        state = self._world.getLinkState(self.body, _TIP, computeForwardKinematics=1)
        return np.array([*state[4], *self._world.getEulerFromQuaternion(state[5])])

    def _drive(self, joints: tuple[float, ...]) -> None:
        self._world.setJointMotorControlArray(
            self.body,
            _JOINTS,
            pybullet.POSITION_CONTROL,
            targetPositions=joints,
            forces=[_FORCE] * 7,
            positionGains=[_GAIN] * 7,
        )


def _description() -> str:
    """Return the URDF of Bullet's Kuka iiwa with a paddle on a stick at its flange."""
    data = Path(pybullet_data.getDataPath()) / "kuka_iiwa"
    text = (data / "model.urdf").read_text(encoding="utf-8")
    size = " ".join(str(2 * half) for half in PADDLE)
    tool = f"""
<link name="stick">
  <inertial><mass value="0.1"/>{_INERTIA}</inertial>
  <visual><origin xyz="0 0 0.07"/><geometry><cylinder radius="0.012" length="0.14"/></geometry>{_paint("arm")}</visual>
</link>
<link name="paddle">
  <inertial><mass value="0.2"/>{_INERTIA}</inertial>
  <visual><geometry><box size="{size}"/></geometry>{_paint("paddle")}</visual>
  <collision><geometry><box size="{size}"/></geometry></collision>
</link>
<joint name="flange" type="fixed">
  <parent link="lbr_iiwa_link_7"/><child link="stick"/><origin xyz="0 0 0.045"/>
</joint>
<joint name="grip" type="fixed">
  <parent link="stick"/><child link="paddle"/><origin xyz="0 0 0.15" rpy="0 3.14159265 0"/>
</joint>
</robot>"""
    return text.replace('filename="meshes', f'filename="{data}/meshes').replace("</robot>", tool)


def _paint(part: str) -> str:
    colour = " ".join(str(value) for value in COLOURS[part])
    return f'<material name="{part}"><color rgba="{colour} 1"/></material>'


# The physics of the task: two arms, balls, a table and bowls in Bullet, in steps of a tenth of a second.

_SUBSTEPS = 16
_HEAPS = 4  # two in each half of the table


class SweepingTable:
    """The world of one episode.

    Attributes:
        wanted: poses that the arms were told to take, ``(2, 6)``.
    """

    def __init__(self) -> None:
        self.world = BulletClient()
        self._build()

    def _build(self) -> None:
        """Build everything anew; solver and kinematics of Bullet remember the episodes before otherwise."""
        self.world.resetSimulation()
        self.world.setGravity(0, 0, -9.81)
        self.world.setTimeStep(CONTROL_SECONDS / _SUBSTEPS)
        self.world.setPhysicsEngineParameter(numSolverIterations=30, deterministicOverlappingPairs=1)
        self._build_furniture()
        self.arms = [Arm(self.world, *place, home) for place, home in zip(ARMS, HOME, strict=True)]
        self._balls = [self._ball() for _ in range(N_BALLS)]
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


# ``hrf/Sweeping-v0``: two arms sweep balls into bowls, behind Gymnasium's interface.

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
        self.table = SweepingTable()
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

"""An arm with a paddle: a Kuka iiwa of seven joints, its inverse kinematics and its motors."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pybullet
import pybullet_data

from hrf_paper.manipulation.scene import COLOURS, PADDLE, Array

__all__ = ["Arm"]

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

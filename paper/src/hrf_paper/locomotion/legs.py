"""Kinematics of Laikago's legs in closed form, in the frame of its trunk. Legs are in the order FR, FL, RR, RL.

A leg has three joints: abduction turns its plane about the axis x, hip and knee turn thigh and shank in that plane.
Lengths and rest angles are those of the robot's description (``laikago_toes_zup.urdf``).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hrf_paper.locomotion.compiled import jit

__all__ = ["HIPS", "N_LEGS", "TOE_RADIUS", "foot", "joint_angles"]

Array = NDArray[np.float64]

N_LEGS = 4
TOE_RADIUS = 0.027
HIPS = np.array(
    [[0.1991, -0.0817, -0.03], [0.1991, 0.0817, -0.03], [-0.2382, -0.0817, -0.03], [-0.2382, 0.0817, -0.03]]
)
_SIDEWAYS = np.array([-0.0329, 0.0352, -0.0329, 0.0352])  # from the abduction joint to the plane of the leg
_SIGN = np.array([-1.0, 1.0, -1.0, 1.0])  # direction of the abduction joints
_THIGH, _THIGH_REST = math.hypot(0.1422, 0.2083), math.atan2(0.1422, 0.2083)
_SHANK, _SHANK_REST = math.hypot(0.022, 0.25), math.atan2(0.022, 0.25)
_SHORTEST, _LONGEST = 0.15, _THIGH + _SHANK - 0.01


@jit
def foot(leg: int, angles: Array, place: Array, jacobian: Array) -> None:
    """Write the position ``(3,)`` of a foot and its derivative ``(3, 3)`` by the joint angles ``(3,)``."""
    sign, sideways = _SIGN[leg], _SIDEWAYS[leg]
    abduction = sign * angles[0]
    thigh = _THIGH_REST + angles[1]
    shank = _SHANK_REST + angles[1] + angles[2]
    shank_x, shank_z = -_SHANK * math.sin(shank), -_SHANK * math.cos(shank)
    x, z = shank_x - _THIGH * math.sin(thigh), shank_z - _THIGH * math.cos(thigh)
    cos, sin = math.cos(abduction), math.sin(abduction)
    down_y, down_z = cos * sideways - sin * z, sin * sideways + cos * z
    place[0], place[1], place[2] = x + HIPS[leg, 0], down_y + HIPS[leg, 1], down_z + HIPS[leg, 2]
    jacobian[0, 0], jacobian[1, 0], jacobian[2, 0] = 0.0, -down_z * sign, down_y * sign
    # A turn in the plane of the leg moves (x, z) by (z, -x).
    jacobian[0, 1], jacobian[1, 1], jacobian[2, 1] = z, sin * x, -cos * x
    jacobian[0, 2], jacobian[1, 2], jacobian[2, 2] = shank_z, sin * shank_x, -cos * shank_x


@jit
def joint_angles(leg: int, place: Array, angles: Array) -> None:
    """Write the joint angles ``(3,)`` that bring a foot to a position ``(3,)``; feet out of reach are pulled in."""
    x, y, z = place[0] - HIPS[leg, 0], place[1] - HIPS[leg, 1], place[2] - HIPS[leg, 2]
    sideways = _SIDEWAYS[leg]
    down = math.sqrt(max(y * y + z * z - sideways * sideways, 1e-4))
    abduction = math.atan2(z, y) - math.atan2(-down, sideways)
    abduction = (abduction + math.pi) % (2 * math.pi) - math.pi
    reach = min(max(math.sqrt(x * x + down * down), _SHORTEST), _LONGEST)
    direction = math.atan2(-x, down)
    at_hip = (_THIGH * _THIGH + reach * reach - _SHANK * _SHANK) / (2 * _THIGH * reach)
    at_foot = (_SHANK * _SHANK + reach * reach - _THIGH * _THIGH) / (2 * _SHANK * reach)
    thigh = direction + math.acos(min(max(at_hip, -1.0), 1.0))
    shank = direction - math.acos(min(max(at_foot, -1.0), 1.0))
    angles[0] = _SIGN[leg] * abduction
    angles[1] = thigh - _THIGH_REST
    angles[2] = shank - thigh - (_SHANK_REST - _THIGH_REST)

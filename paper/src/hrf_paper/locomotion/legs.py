"""Laikago's legs: their kinematics in closed form, and torques of stance and swing legs, compiled by Numba."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

# The compiler of the controllers, which run a hundred times per second of simulated time.

Function = TypeVar("Function", bound=Callable[..., Any])


def jit(function: Function) -> Function:
    """Compile a function at its first call, and keep it on disk."""
    compiled: Any = numba.njit(cache=True)(function)
    return compiled


# Kinematics of Laikago's legs in closed form, in the frame of its trunk. Legs are in the order FR, FL, RR, RL.
#
# A leg has three joints: abduction turns its plane about the axis x, hip and knee turn thigh and shank in that plane.
# Lengths and rest angles are those of the robot's description (``laikago_toes_zup.urdf``).

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


# Torques of the twelve joints: stance legs carry the trunk, swing legs follow a path to their footholds.
#
# The stance controller is one step of predictive control: it asks for an acceleration of the trunk that leads position,
# speed and attitude back to the wanted ones, finds the forces at the feet that come closest to it in the sense of least
# squares, keeps them within the cone of friction, and turns them into torques by the transposed Jacobians. The swing
# controller brings the joints to the angles of a point that moves from the last foothold to the next one.


Bools = NDArray[np.bool_]

TRUNK_HEIGHT = 0.42
_MASS = 25.6
_CENTRE = np.array([-0.0216, 0.0, -0.0405])  # of mass, in the frame of the trunk
_INVERSE_INERTIA = 1 / np.array([0.604, 1.273, 1.348])
# Square roots of how much errors of the six accelerations count, three linear ones first.
_WEIGHTS = np.sqrt(np.array([1.0, 1.0, 3.0, 0.5, 0.5, 0.2]))
_RIDGE = 1e-5
_FRICTION, _LEAST_FORCE, _LARGEST_FORCE = 0.7, 5.0, 350.0
_LARGEST_TORQUE = 50.0
_STIFFNESS, _DAMPING = 250.0, 3.0


@jit
def clipped(value: float, low: float, high: float) -> float:
    """Return the value within the bounds."""
    return min(max(value, low), high)


@jit
def locate_feet(angles: Array, position: Array, rotation: Array, feet: Array, jacobians: Array) -> None:
    """Write the feet ``(4, 3)`` in the world, and their Jacobians ``(4, 3, 3)`` in the frame of the trunk."""
    place = np.empty(3)
    for leg in range(N_LEGS):
        foot(leg, angles[3 * leg : 3 * leg + 3], place, jacobians[leg])
        feet[leg] = position + rotation @ place


@jit
def _wanted_acceleration(
    position: Array, attitude: Array, velocity: Array, turning: Array, speed: float, height: float
) -> Array:
    """Return the three linear and three angular accelerations, gravity compensated; y = 0 is the way."""
    return np.array(
        [
            clipped(8.0 * (speed - velocity[0]), -6.0, 6.0),
            clipped(-8.0 * velocity[1] - 6.0 * position[1], -6.0, 6.0),
            clipped(150.0 * (TRUNK_HEIGHT - height) - 20.0 * velocity[2], -12.0, 12.0) + 9.81,
            clipped(-150.0 * attitude[0] - 20.0 * turning[0], -25.0, 25.0),
            clipped(-150.0 * attitude[1] - 20.0 * turning[1], -25.0, 25.0),
            clipped(-60.0 * attitude[2] - 20.0 * turning[2], -25.0, 25.0),
        ]
    )


@jit
def _forces(acceleration: Array, arms: Array) -> Array:
    """Return the forces ``(n, 3)`` on n feet, at ``arms`` from the centre of mass, that give the acceleration best."""
    n = len(arms)
    effect = np.zeros((6, 3 * n))
    for k in range(n):
        x, y, z = arms[k]
        lever = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
        for a in range(3):
            effect[a, 3 * k + a] = _WEIGHTS[a] / _MASS
            effect[3 + a, 3 * k : 3 * k + 3] = _WEIGHTS[3 + a] * _INVERSE_INERTIA[a] * lever[a]
    normal = effect.T @ effect + _RIDGE * np.eye(3 * n)
    forces = np.linalg.solve(normal, effect.T @ (_WEIGHTS * acceleration)).reshape(n, 3)
    for k in range(n):
        forces[k, 2] = clipped(forces[k, 2], _LEAST_FORCE, _LARGEST_FORCE)
        cone = _FRICTION * forces[k, 2]
        forces[k, 0] = clipped(forces[k, 0], -cone, cone)
        forces[k, 1] = clipped(forces[k, 1], -cone, cone)
    return forces


@jit
def stance_torques(
    position: Array,
    rotation: Array,
    attitude: Array,
    velocity: Array,
    turning: Array,
    speed: float,
    swinging: Bools,
    feet: Array,
    jacobians: Array,
    torques: Array,
) -> None:
    """Write the torques ``(12,)`` of the legs that do not swing, and leave the other torques alone."""
    legs = np.flatnonzero(~swinging)
    height = position[2] - feet[legs, 2].mean() + TOE_RADIUS
    acceleration = _wanted_acceleration(position, attitude, velocity, turning, speed, height)
    arms = feet[legs] - (position + rotation @ _CENTRE)
    arms[:, 2] -= TOE_RADIUS
    forces = _forces(acceleration, arms)
    for k, leg in enumerate(legs):
        push = np.ascontiguousarray(jacobians[leg].T) @ (np.ascontiguousarray(rotation.T) @ forces[k])
        for joint in range(3):
            torques[3 * leg + joint] = clipped(-push[joint], -_LARGEST_TORQUE, _LARGEST_TORQUE)


@jit
def swing_torques(
    angles: Array,
    rates: Array,
    position: Array,
    rotation: Array,
    swinging: Bools,
    start: Array,
    target: Array,
    phase: float,
    clearance: float,
    torques: Array,
) -> None:
    """Write the torques ``(12,)`` of the legs that swing from ``start`` to ``target``, both ``(4, 3)``.

    ``phase`` runs from 0 to 1. The path ends a little before the phase does, so that the feet are down in time.
    """
    way = 0.5 - 0.5 * math.cos(math.pi * min(1.0, phase / 0.9))
    lift = clearance * math.sin(math.pi * min(1.0, phase / 0.95))
    wanted = np.empty(3)
    back = np.ascontiguousarray(rotation.T)
    for leg in range(N_LEGS):
        if swinging[leg]:
            point = (1 - way) * start[leg] + way * target[leg] - position
            point[2] += lift
            joint_angles(leg, back @ point, wanted)
            for joint in range(3):
                j = 3 * leg + joint
                torque = _STIFFNESS * (wanted[joint] - angles[j]) - _DAMPING * rates[j]
                torques[j] = clipped(torque, -_LARGEST_TORQUE, _LARGEST_TORQUE)

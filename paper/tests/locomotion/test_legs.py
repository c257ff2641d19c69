from __future__ import annotations

import numpy as np
import pytest

from hrf_paper.locomotion.legs import HIPS, N_LEGS, foot, joint_angles, stance_torques, swing_torques

ANGLES = np.random.default_rng(0).uniform([-0.3, -0.3, -0.9], [0.3, 0.3, -0.3], (5, 3))


def place_and_jacobian(leg, angles):
    place, jacobian = np.empty(3), np.empty((3, 3))
    foot(leg, angles, place, jacobian)
    return place, jacobian


@pytest.mark.parametrize("leg", range(N_LEGS))
def test_inverse_kinematics_undo_forward_kinematics(leg):
    for angles in ANGLES:
        found = np.empty(3)
        joint_angles(leg, place_and_jacobian(leg, angles)[0], found)
        np.testing.assert_allclose(found, angles, atol=1e-10)


@pytest.mark.parametrize("leg", range(N_LEGS))
def test_jacobian_is_the_derivative(leg):
    step = 1e-6
    for angles in ANGLES:
        _, jacobian = place_and_jacobian(leg, angles)
        for joint in range(3):
            moved = step * np.eye(3)[joint]
            up, down = (place_and_jacobian(leg, angles + sign * moved)[0] for sign in (1, -1))
            # Central differences: truncation of order step², rounding of order 1e-16 / step.
            np.testing.assert_allclose((up - down) / (2 * step), jacobian[:, joint], atol=1e-9)


def test_a_foot_out_of_reach_is_pulled_in():
    angles = np.empty(3)
    far = HIPS[0] + np.array([0.0, -0.0329, -2.0])
    joint_angles(0, far, angles)
    place, _ = place_and_jacobian(0, angles)
    assert np.isfinite(angles).all()
    assert place[2] > far[2] + 1
    np.testing.assert_allclose(place[:2], far[:2], atol=1e-9)  # straight down, as asked


def standing(feet_x=(0.2, 0.2, -0.24, -0.24)):
    feet = np.array([[x, y, 0.027] for x, y in zip(feet_x, (-0.13, 0.13, -0.13, 0.13), strict=True)])
    jacobians = np.tile(np.eye(3), (N_LEGS, 1, 1))  # so that torques are minus the forces
    return feet, jacobians


def forces(velocity=(0.0, 0.0, 0.0), speed=0.0, swinging=(False,) * N_LEGS):
    feet, jacobians = standing()
    torques = np.zeros(12)
    position, still = np.array([0.0, 0.0, 0.42]), np.zeros(3)
    stance_torques(
        position,
        np.eye(3),
        still,
        np.array(velocity),
        still,
        speed,
        np.array(swinging),
        feet,
        jacobians,
        torques,
    )
    return -torques.reshape(N_LEGS, 3)


def test_standing_legs_carry_the_weight():
    # Less than the weight: torques are bounded, here at 50 N per leg and axis.
    found = forces()
    assert (found[:, 2] == 50).all()
    np.testing.assert_allclose(found[:, 1].sum(), 0, atol=1)


def test_legs_push_towards_the_wanted_speed_and_within_friction():
    assert forces(speed=0.5)[:, 0].sum() > 10
    assert forces(velocity=(0.5, 0, 0))[:, 0].sum() < -10
    assert forces(velocity=(0, 0.3, 0))[:, 1].sum() < -10


def test_swinging_legs_get_no_stance_torques():
    found = forces(swinging=(True, False, False, True))
    assert (found[[0, 3]] == 0).all()
    assert (found[[1, 2], 2] > 0).all()


def test_swing_torques_vanish_on_the_path_and_point_towards_it():
    angles = np.tile(ANGLES[0], N_LEGS)
    feet = np.array([place_and_jacobian(leg, ANGLES[0])[0] for leg in range(N_LEGS)])
    swinging = np.array([True, False, False, False])
    torques = np.zeros(12)
    arguments = (angles, np.zeros(12), np.zeros(3), np.eye(3), swinging, feet, feet, 1.0, 0.0)
    swing_torques(*arguments, torques)
    np.testing.assert_allclose(torques, 0, atol=1e-8)
    away = angles.copy()
    away[1] += 0.1
    swing_torques(away, *arguments[1:], torques)
    assert torques[1] < 0
    assert (torques[3:] == 0).all()

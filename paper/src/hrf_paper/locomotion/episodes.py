"""Returns of parameters: of walks in the simulation, and of rehearsed decisions without it.

A rehearsal shows the cameras' images from poses of a trot over a field of stones, and judges each decision by where it
would put the feet. It takes milliseconds where a walk takes a second, so that a training begins with it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hrf_paper.locomotion.cameras import depth_images
from hrf_paper.locomotion.environment import StepStones
from hrf_paper.locomotion.legs import HIPS
from hrf_paper.locomotion.normalisation import PixelMoments
from hrf_paper.locomotion.policy import ImplicitAttentionPolicy
from hrf_paper.locomotion.terrain import StoneField, draw_stones, off_stone
from hrf_paper.locomotion.walker import LARGEST_SHIFT, SPEED, SWING_TIME

__all__ = ["Rehearsal", "Walk", "rehearsal", "rehearse", "walk"]

_MARGIN, _NEAR, _SHIFT_COST = 0.03, 0.05, 0.3
_DECISIONS = 32
# Of a trot over stones: mean and deviation of height and speed, deviations of roll and pitch and of y.
_HEIGHT, _SPEED, _TILT, _SIDEWAYS = (0.425, 0.004), (0.4, 0.1), 0.02, 0.03


class Walk(NamedTuple):
    """An episode of the environment.

    Attributes:
        score: its return.
        crossed: whether the robot reached the end of the field.
        seen: moments of the images.
    """

    score: float
    crossed: bool
    seen: PixelMoments


class Rehearsal(NamedTuple):
    """Situations of a trot.

    Attributes:
        depth: images ``(n, 2, 24, 32)``.
        footholds: Raibert's, ``(n, 2)``, from the middle of the trunk.
        x: of the trunk, ``(n,)``.
        stones: of the field, ``(stones, 2)``.
    """

    depth: Tensor
    footholds: Tensor
    x: NDArray[np.float64]
    stones: NDArray[np.float64]


def walk(
    environment: StepStones,
    policy: ImplicitAttentionPolicy,
    parameters: Tensor,
    moments: PixelMoments,
    seed: int,
) -> Walk:
    """Play an episode."""
    observation, _ = environment.reset(seed=seed)
    score, ended, images = 0.0, False, []
    while not ended:
        depth = torch.from_numpy(observation["depth"])
        images.append(depth)
        footholds = torch.from_numpy(observation["footholds"])
        action = policy.decide(parameters, moments.normalised(depth), footholds).action
        observation, reward, terminated, truncated, info = environment.step(action.numpy())
        score, ended = score + reward, terminated or truncated
    seen = PixelMoments().plus(torch.stack(images))
    return Walk(float(score), info["crossed"], seen)


def rehearsal(field: StoneField, seed: int) -> Rehearsal:
    """Draw a field, and poses of the trunk along it."""
    generator = np.random.default_rng(seed)
    stones = draw_stones(field, generator)
    x = generator.uniform(0, field.distance, _DECISIONS)
    sway = generator.standard_normal((_DECISIONS, 5))
    speed = _SPEED[0] + _SPEED[1] * sway[:, 0]
    ahead = speed * SWING_TIME + 0.5 * SPEED * SWING_TIME + 0.05 * (speed - SPEED)
    footholds = HIPS[[0, 3], 0] + ahead[:, None]
    images = [
        depth_images(
            np.array([place, _SIDEWAYS * row[1], _HEIGHT[0] + _HEIGHT[1] * row[2]]),
            _tilted(*(_TILT * row[3:])),
            stones,
            field.width,
        )
        for place, row in zip(x, sway, strict=True)
    ]
    return Rehearsal(
        torch.from_numpy(np.stack(images)), torch.tensor(footholds, dtype=torch.float32), x, stones
    )


def _tilted(roll: float, pitch: float) -> NDArray[np.float64]:
    """Return the rotation by roll, then pitch."""
    (a, b), (c, d) = (np.cos(roll), np.sin(roll)), (np.cos(pitch), np.sin(pitch))
    about_x = np.array([[1, 0, 0], [0, a, -b], [0, b, a]])
    about_y = np.array([[c, 0, d], [0, 1, 0], [-d, 0, c]])
    return about_y @ about_x


def rehearse(
    policy: ImplicitAttentionPolicy, parameters: Tensor, moments: PixelMoments, situations: Rehearsal
) -> float:
    """Return minus the mean cost of a decision: footholds within 3 cm of an edge or in a gap, and shifts."""
    action = policy.decide(parameters, moments.normalised(situations.depth), situations.footholds).action
    places = situations.x[:, None] + (situations.footholds + LARGEST_SHIFT * action).double().numpy()
    off = off_stone(situations.stones, places, _MARGIN)
    return -float(np.minimum(off / _NEAR, 1).mean() + _SHIFT_COST * (action**2).mean())

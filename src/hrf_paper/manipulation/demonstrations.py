"""Episodes of the teacher as training data, made once and kept in a file.

In most episodes an arm is now and then driven a few steps at random, while labels stay the teacher's: the data show
how to recover from places where the teacher alone would never be. Glimpses, random scenes with the teacher's action,
show more layouts of the balls than episodes do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from hrf_paper.experiments.shared.checkpoints import checkpoint_folder, load_checkpoint, save_checkpoint
from hrf_paper.manipulation.drawing import Drawing
from hrf_paper.manipulation.expert import expert_action
from hrf_paper.manipulation.glimpses import random_scene
from hrf_paper.manipulation.scene import Array

__all__ = ["DemonstrationSettings", "Demonstrations", "Disturbance", "demonstrations"]

_FIRST_SEED = 1_000_000  # seeds of episodes for judging lie below


@dataclass(frozen=True)
class DemonstrationSettings:
    """How demonstrations are made.

    Attributes:
        episodes: number of episodes.
        glimpses: number of random scenes.
        steps: longest episode.
        image_size: pixels per side.
        disturbed: probability that an arm begins to be driven at random, per step; in one episode of four it is 0.
        seed: of balls and disturbances.
    """

    episodes: int = 60
    glimpses: int = 16_000
    steps: int = 60
    image_size: int = 64
    disturbed: float = 0.06
    seed: int = 0

    def __post_init__(self) -> None:
        if self.episodes < 1 or self.steps < 1:
            raise ValueError(
                f"there are {self.episodes} episodes of {self.steps} steps; expected at least one of each"
            )


@dataclass(frozen=True)
class Demonstrations:
    """Observations and the teacher's actions.

    Attributes:
        images: ``(N, size, size, 3)``, uint8.
        poses: ``(N, 12)``.
        actions: ``(N, 12)``.
        delivered: share of the balls that were delivered, per episode.
    """

    images: Tensor
    poses: Tensor
    actions: Tensor
    delivered: Tensor


class Disturbance:
    """Random drives of each arm: a constant action for one to five steps.

    Args:
        probability: that a drive begins, per arm and step.
        rng: the source of randomness.
    """

    def __init__(self, probability: float, rng: Generator) -> None:
        self._probability, self._rng = probability, rng
        self._left = np.zeros(2, int)  # steps that are left of each drive
        self._drive = np.zeros((2, 6))

    def applied(self, action: Array) -> Array:
        """Return what is done in place of an action ``(12,)``."""
        done = action.reshape(2, 6).copy()
        for arm in range(2):
            if not self._left[arm] and self._rng.random() < self._probability:
                self._left[arm] = self._rng.integers(1, 6)
                self._drive[arm] = self._rng.uniform(-1, 1, 6) * (1, 1, 1, 0.3, 0.3, 0.3)
            if self._left[arm]:
                self._left[arm] -= 1
                done[arm] = self._drive[arm]
        return done.ravel()


def demonstrations(
    settings: DemonstrationSettings, report: Callable[[str], None] | None = None
) -> Demonstrations:
    """Read the demonstrations of these settings, or make them; ``report`` gets a line of text per 40 episodes."""
    path = _path(settings)
    if not path.exists():
        made = _made(settings, report)
        save_checkpoint(path, vars(made), asdict(settings))
    return Demonstrations(**load_checkpoint(path)[0])


def _path(settings: DemonstrationSettings) -> Path:
    identity = sha256(json.dumps(asdict(settings), sort_keys=True).encode()).hexdigest()[:16]
    return checkpoint_folder() / f"sweeping-demonstrations-{identity}.safetensors"


def _made(settings: DemonstrationSettings, report: Callable[[str], None] | None) -> Demonstrations:
    from hrf_paper.manipulation.table import SweepingTable

    table, drawing = SweepingTable(), Drawing(settings.image_size)
    images, poses, actions, delivered = [], [], [], []
    for episode in range(settings.episodes):
        rng = np.random.default_rng([_FIRST_SEED, settings.seed, episode])
        disturbance = Disturbance(settings.disturbed if episode % 4 else 0.0, rng)
        table.reset(rng)
        for _ in range(settings.steps):
            balls = table.balls()
            action = expert_action(balls, table.wanted)
            images.append(drawing.image(balls, table.poses()))
            poses.append(table.wanted.ravel())
            actions.append(action)
            table.step(disturbance.applied(action))
            if (table.delivered() | table.lost()).all():
                break
        delivered.append(table.delivered().mean())
        if report is not None and (episode + 1) % 40 == 0:
            report(
                f"{episode + 1} of {settings.episodes} episodes, delivered {100 * np.mean(delivered):.1f} %"
            )
    table.close()
    for glimpse in range(settings.glimpses):
        rng = np.random.default_rng([_FIRST_SEED + 1, settings.seed, glimpse])
        balls, wanted = random_scene(rng)
        images.append(drawing.image(balls, wanted + rng.normal(0, 0.003, wanted.shape)))
        poses.append(wanted.ravel())
        actions.append(expert_action(balls, wanted))
    return Demonstrations(
        torch.from_numpy(np.array(images)),
        *(torch.from_numpy(np.array(part, np.float32)) for part in (poses, actions, delivered)),
    )

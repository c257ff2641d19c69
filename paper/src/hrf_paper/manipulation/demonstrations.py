"""Episodes of the teacher as training data, made once and kept in a file.

In most episodes an arm is now and then driven a few steps at random, while labels stay the teacher's: the data show
how to recover from places where the teacher alone would never be. Glimpses, random scenes with the teacher's action,
show more layouts of the balls than episodes do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from hrf_paper.manipulation.drawing import Drawing
from hrf_paper.manipulation.expert import expert_action
from hrf_paper.manipulation.glimpses import random_scene
from hrf_paper.manipulation.scene import STEPS, Array
from hrf_paper.resume import checkpoint_folder, load_checkpoint, save_checkpoint

if TYPE_CHECKING:
    from hrf_paper.manipulation.table import SweepingTable

__all__ = ["DemonstrationSettings", "Demonstrations", "Disturbance", "Record", "demonstrations", "kept"]

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
        rounds: rounds of `corrected_demonstrations`, in each of which a pupil plays and the teacher answers.
        pupil_steps: steps that train a pupil.
        pupil_episodes: episodes that it plays.
        seed: of balls, disturbances and pupils.
    """

    episodes: int = 60
    glimpses: int = 16_000
    steps: int = STEPS
    image_size: int = 64
    disturbed: float = 0.06
    rounds: int = 0
    pupil_steps: int = 600
    pupil_episodes: int = 120
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


class Record:
    """Scenes with the teacher's answers, one after the other.

    Args:
        image_size: pixels per side.
    """

    def __init__(self, image_size: int) -> None:
        self._drawing = Drawing(image_size)
        self._images: list[NDArray[np.uint8]] = []
        self._poses: list[Array] = []
        self._actions: list[Array] = []

    def add(self, balls: Array, wanted: Array, poses: Array) -> Array:
        """Keep a scene: balls ``(n, 3)``, poses ``(2, 6)`` as they were wanted and as they are; return the answer."""
        action = expert_action(balls, wanted)
        self._images.append(self._drawing.image(balls, poses))
        self._poses.append(wanted.ravel())
        self._actions.append(action)
        return action

    def watch(self, table: SweepingTable) -> Array:
        """Keep the scene of a table, and return the answer."""
        return self.add(table.balls(), table.wanted, table.poses())

    def examples(self, delivered: Sequence[float]) -> Demonstrations:
        """Return all that was kept, with the shares that episodes delivered."""
        numbers = (self._poses, self._actions, delivered)
        return Demonstrations(
            torch.from_numpy(np.array(self._images)),
            *(torch.from_numpy(np.array(part, np.float32)) for part in numbers),
        )


def demonstrations(
    settings: DemonstrationSettings, report: Callable[[str], None] | None = None
) -> Demonstrations:
    """Read the demonstrations of these settings, or make them; ``report`` gets a line of text per 40 episodes."""
    return kept("demonstrations", asdict(settings), lambda: _made(settings, report))


def kept(name: str, identity: dict[str, Any], make: Callable[[], Demonstrations]) -> Demonstrations:
    """Read the examples of this name and identity, which JSON can hold, or make and keep them."""
    digest = sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    path = checkpoint_folder() / f"sweeping-{name}-{digest}.safetensors"
    if not path.exists():
        save_checkpoint(path, vars(make()), identity)
    return Demonstrations(**load_checkpoint(path)[0])


def _made(settings: DemonstrationSettings, report: Callable[[str], None] | None) -> Demonstrations:
    record = Record(settings.image_size)
    delivered = _episodes(settings, record, report)
    for glimpse in range(settings.glimpses):
        rng = np.random.default_rng([_FIRST_SEED + 1, settings.seed, glimpse])
        balls, wanted = random_scene(rng)
        record.add(balls, wanted, wanted + rng.normal(0, 0.003, wanted.shape))
    return record.examples(delivered)


def _episodes(
    settings: DemonstrationSettings, record: Record, report: Callable[[str], None] | None
) -> list[float]:
    """Record episodes of the teacher; return the share of the balls that each delivered."""
    from hrf_paper.manipulation.table import SweepingTable

    table = SweepingTable()
    delivered: list[float] = []
    for episode in range(settings.episodes):
        rng = np.random.default_rng([_FIRST_SEED, settings.seed, episode])
        disturbance = Disturbance(settings.disturbed if episode % 4 else 0.0, rng)
        table.reset(rng)
        for _ in range(settings.steps):
            table.step(disturbance.applied(record.watch(table)))
            if (table.delivered() | table.lost()).all():
                break
        delivered.append(float(table.delivered().mean()))
        if report is not None and (episode + 1) % 40 == 0:
            report(
                f"{episode + 1} of {settings.episodes} episodes, delivered {100 * np.mean(delivered):.1f} %"
            )
    table.close()
    return delivered

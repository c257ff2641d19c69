"""Demonstrations: the scripted teacher, random scenes for it to answer, and its recorded episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from hrf_paper.manipulation.scene import (
    BALL_RADIUS,
    BOWL_DEPTH,
    EDGE,
    HIGHEST_POSE,
    HOME,
    LARGEST_CHANGE,
    LOWERED,
    LOWEST_POSE,
    N_BALLS,
    RAISED,
    STEPS,
    Array,
    Drawing,
)
from hrf_paper.resume import checkpoint_path, load_checkpoint, save_checkpoint

if TYPE_CHECKING:
    from hrf_paper.manipulation.environment import SweepingTable


# A scripted teacher that sees the balls: a function of the scene alone, without memory.
#
# Each arm serves its own half, from the outside in: it goes behind the balls of the outermost lane, lowers its paddle,
# pushes past the edge of the table and raises its paddle. The lane depends on the balls alone, heights are asked for
# with full strength, and a paddle on its way down is stopped by larger errors only, so that small errors of a pupil do
# not add up.

_INWARD = 0.04  # from the outermost ball to the middle of the paddle, along x
_LANE = 0.1  # width of a lane, from the outermost ball on
_BEHIND = 0.06  # from the last ball of the lane to the paddle, along y
_BESIDE, _BEFORE, _PAST = (
    0.035,
    0.06,
    0.03,
)  # a paddle goes down so far beside its place, behind it and before it
_DOWN = LOWERED + 0.02  # a paddle below is on the table
_FALLING = RAISED - 0.02  # a paddle between this and the table is on its way
_COMMITTED = 1.5  # times as far from its place, it still goes down
_GENTLE = 0.6  # of the largest change, while pushing
_PASSED = EDGE + 0.03  # where a push ends


def expert_action(balls: Array, wanted: Array) -> Array:
    """Return the action ``(12,)`` for balls ``(n, 3)`` and the poses ``(2, 6)`` that the arms were told to take."""
    on_table = balls[balls[:, 2] > BOWL_DEPTH]
    action = np.zeros((2, 6))
    for arm, side in enumerate((-1, 1)):
        pose, own = wanted[arm], on_table[np.sign(on_table[:, 0]) == side]
        action[arm, 3:] = np.clip(-pose[3:] / LARGEST_CHANGE[3:], -1, 1)
        action[arm, :3] = _pushed(pose) if pose[2] < _DOWN else _approach(own, pose, arm, side)
    return action.ravel()


def _pushed(pose: Array) -> tuple[float, float, float]:
    """Push, or raise the paddle behind the edge."""
    return (0.0, 0.0, 1.0) if pose[1] > _PASSED else (0.0, _GENTLE, -1.0)


def _approach(balls: Array, pose: Array, arm: int, side: int) -> Array:
    """Go to the place behind the outermost lane, and down when it is near; home without balls."""
    place = HOME[arm, :2]
    if len(balls):
        outward = side * balls[:, 0]
        lane = balls[outward > outward.max() - _LANE]
        place = np.array([side * (outward.max() - _INWARD), lane[:, 1].min() - _BEHIND])
        place = np.clip(place, LOWEST_POSE[arm, :2], HIGHEST_POSE[arm, :2])
    change = place - pose[:2]
    beside, past, before = (
        (_COMMITTED if pose[2] < _FALLING else 1.0) * reach for reach in (_BESIDE, _PAST, _BEFORE)
    )
    lower = len(balls) and abs(change[0]) < beside and -past < change[1] < before
    return np.array([*np.clip(change / LARGEST_CHANGE[:2], -1, 1), -1.0 if lower else 1.0])


# Random scenes without physics: episodes show few layouts of the balls, and the teacher can answer for any.

_NEARBY = 0.5  # share of the arms in the air that are about to go down
_ON_TABLE = 0.25  # share of the arms that push


def random_scene(rng: Generator) -> tuple[Array, Array]:
    """Draw balls ``(n, 3)``, in heaps, scattered or delivered, and poses ``(2, 6)`` that arms were told to take."""
    balls = np.concatenate([_half(rng, side, N_BALLS // 2) for side in (-1, 1)])
    poses = rng.uniform(LOWEST_POSE, HIGHEST_POSE)
    poses[:, 3:] = rng.normal(0, 0.02, (2, 3)) * (1 if rng.random() < 0.7 else 5)
    poses[:, 2] = np.where(rng.random(2) < 0.6, RAISED, poses[:, 2])
    # Where the teacher would go from here, a few steps later.
    goals = poses.copy()
    for _ in range(2):
        action = expert_action(balls, goals).reshape(2, 6)[:, :2]
        change = np.where(np.abs(action) == 1, 4, 1) * action * LARGEST_CHANGE[:2]
        goals[:, :2] = np.clip(goals[:, :2] + change, LOWEST_POSE[:, :2], HIGHEST_POSE[:, :2])
    goals[:, :2] += rng.normal(0, 0.04, (2, 2))
    draw = rng.random((2, 1))
    poses[:, :2] = np.where(draw < (1 - _ON_TABLE) * _NEARBY, goals[:, :2], poses[:, :2])
    down = draw[:, 0] > 1 - _ON_TABLE
    poses[down, 2] = LOWERED + 0.02 * rng.random(down.sum()) ** 3
    return balls, np.clip(poses, LOWEST_POSE, HIGHEST_POSE)


def _half(rng: Generator, side: int, count: int) -> Array:
    """Draw the balls of one half of the table: some delivered, the others around up to three centres."""
    delivered = rng.random(count) < rng.choice([0.0, 0.3, 0.6, 1.0], p=[0.5, 0.2, 0.2, 0.1])
    centres = rng.uniform((0.04, -0.19), (0.26, EDGE), (rng.integers(1, 4), 2))
    place = centres[rng.integers(len(centres), size=count)] + rng.normal(
        0, rng.choice([0.012, 0.03]), (count, 2)
    )
    balls = np.full((count, 3), BALL_RADIUS)
    balls[:, 0], balls[:, 1] = np.clip(place[:, 0], 0.01, 0.278), np.clip(place[:, 1], -0.22, EDGE)
    bowl = rng.uniform((0.02, EDGE + 0.02, -0.13), (0.28, EDGE + 0.15, -0.12), (count, 3))
    return np.where(delivered[:, None], bowl, balls) * (side, 1, 1)


# Episodes of the teacher as training data, made once and kept in a file.
#
# In most episodes an arm is now and then driven a few steps at random, while labels stay the teacher's: the data show
# how to recover from places where the teacher alone would never be. Glimpses, random scenes with the teacher's action,
# show more layouts of the balls than episodes do.

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
    path = checkpoint_path(f"sweeping-{name}", identity)
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
    from hrf_paper.manipulation.environment import SweepingTable

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

"""Episodes of a policy, several at a time: the share of the balls that it delivers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from hrf_paper.manipulation.cloning import search
from hrf_paper.manipulation.performer import VisionPerformer
from hrf_paper.manipulation.scene import STEPS

if TYPE_CHECKING:
    from hrf_paper.manipulation.environment import SweepingEnv
    from hrf_paper.manipulation.table import SweepingTable

__all__ = ["Episodes", "Search", "play"]


@dataclass(frozen=True)
class Search:
    """The search for an action.

    Attributes:
        samples: actions per arm and round.
        rounds: number of rounds.
    """

    samples: int = 512
    rounds: int = 6

    def __post_init__(self) -> None:
        if self.samples < 1 or self.rounds < 1:
            raise ValueError(
                f"a search has {self.samples} samples and {self.rounds} rounds; expected at least one of each"
            )


@dataclass(frozen=True)
class Episodes:
    """What became of the balls.

    Attributes:
        delivered: share inside the bowls at the end, per episode.
        lost: share that fell beside them.
        rewards: mean reward per step, where the last one counts for all steps after the end.
    """

    delivered: list[float]
    lost: list[float]
    rewards: list[float]


def play(
    policy: VisionPerformer,
    seeds: Sequence[int],
    how: Search,
    *,
    steps: int = STEPS,
    watch: Callable[[SweepingTable], object] | None = None,
) -> Episodes:
    """Let a policy act in one episode per seed.

    Args:
        policy: a trained policy.
        seeds: seeds of the episodes; those of demonstrations are others.
        how: the search for actions.
        steps: length of an episode.
        watch: called with the world of each episode before each of its steps.
    """
    environments = [_environment(i, policy.config.image_size) for i in range(len(seeds))]
    seen = [e.reset(seed=seed)[0] for e, seed in zip(environments, seeds, strict=True)]
    generator = torch.Generator().manual_seed(int(seeds[0]))
    rewards = np.zeros((steps, len(seeds)))
    lost = np.zeros(len(seeds))
    running = list(range(len(seeds)))
    policy.eval()
    for step in range(steps):
        images, poses = (
            torch.from_numpy(np.stack([seen[i][k] for i in running])) for k in ("image", "poses")
        )
        actions = search(
            policy, images, poses, samples=how.samples, rounds=how.rounds, generator=generator
        ).numpy()
        for i, action in zip(tuple(running), actions, strict=True):
            if watch is not None:
                watch(environments[i].table)
            seen[i], reward, ended, _, found = environments[i].step(action)
            rewards[step:, i], lost[i] = reward, found["lost"]
            if ended:
                running.remove(i)
        if not running:
            break
    return Episodes(rewards[-1].tolist(), lost.tolist(), rewards.mean(0).tolist())


@cache
def _environment(number: int, image_size: int) -> SweepingEnv:
    """Return the environment of this number, built once per process."""
    from hrf_paper.manipulation.environment import SweepingEnv

    return SweepingEnv(image_size=image_size)

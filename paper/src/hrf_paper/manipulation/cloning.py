"""Implicit behaviour cloning: the loss, the search for an action, episodes of a policy, and their replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.nn import functional as F

from hrf_paper.manipulation.performer import ARM_ACTION, VisionPerformer
from hrf_paper.manipulation.scene import STEPS, VIEW, Drawing

if TYPE_CHECKING:
    from hrf_paper.manipulation.environment import SweepingEnv, SweepingTable


# Implicit behaviour cloning (Florence et al., 2021): the loss of an energy, and the search for its best action.
#
# The loss is the paper's: the negative log-likelihood of the demonstrated action in a softmax over energies, among
# random actions. Since an energy is a sum over arms, the softmax over all pairs of halves is a product of two, and N
# candidates per arm stand for N² actions.

_GROUP = 32  # samples that search together
_SHRINK = 0.6  # of the noise, from one round of a search to the next
_NOISE = 0.6
_SAME = 0.1
# Reflection at x = 0: x, pitch and yaw change sign, and arms change places.
_REFLECTED = torch.tensor([-1.0, 1.0, 1.0, 1.0, -1.0, -1.0])


def negatives(actions: Tensor, count: int, near: float, generator: Generator) -> Tensor:
    """Draw counter-examples for actions of an arm: ``(B, 6) -> (B, count, 6)``.

    A share ``near`` of them resembles the demonstrations, in equal parts. Some are actions of other examples, which
    makes the energy choose between all that the teacher does. Some have coordinates of the action replaced: by those of
    another example, uniformly or close by. Angles stay in three of four of these, since they give an action away: the
    teacher holds its paddles straight. The others are uniform in [−1, 1].
    """
    size = (len(actions), count, ARM_ACTION)
    drawn = 2 * torch.rand(size, generator=generator) - 1
    own = actions[:, None]
    scales = 0.6 * 0.25 ** torch.rand(*size[:2], 1, generator=generator)  # 0.15 to 0.6
    close = (own + scales * torch.randn(size, generator=generator)).clamp(-1, 1)
    changed = torch.rand(size, generator=generator) < 0.5
    changed[..., 3:] &= torch.rand(*size[:2], 1, generator=generator) < 0.25
    borrowed = actions[torch.randint(len(actions), size[:2], generator=generator)]
    kinds = (borrowed, *(torch.where(changed, other, own) for other in (borrowed, drawn, close)))
    places = torch.arange(count)[:, None]
    found = drawn
    for place, kind in enumerate(kinds):
        found = torch.where((places < near * count) & (places % len(kinds) == place), kind, found)
    return found


def cloning_loss(
    policy: VisionPerformer,
    images: Tensor,
    poses: Tensor,
    actions: Tensor,
    *,
    count: int,
    near: float,
    generator: Generator,
) -> Tensor:
    """Return the mean negative log-likelihood of the demonstrated actions ``(B, 12)``, in nats per arm."""
    code = policy(images, poses)
    losses = []
    for arm, own in enumerate(actions.split(ARM_ACTION, -1)):
        candidates = torch.cat([own[:, None], negatives(own, count, near, generator)], 1)
        energies = policy.energy(code, candidates, arm)
        # A negative that is nearly the action itself is no counter-example.
        same = (candidates[:, 1:] - own[:, None]).abs().amax(-1) < _SAME
        energies = torch.cat([energies[:, :1], energies[:, 1:].masked_fill(same, -torch.inf)], 1)
        losses.append(F.cross_entropy(energies, torch.zeros(len(own), dtype=torch.long)))
    return (losses[0] + losses[1]) / 2


@torch.no_grad()
def search(
    policy: VisionPerformer, images: Tensor, poses: Tensor, *, samples: int, rounds: int, generator: Generator
) -> Tensor:
    """Return actions ``(B, 12)`` at maxima of the energy, found without derivatives.

    Samples form groups. The first round draws uniform samples; later rounds try samples around the best of each group
    so far, with noise that shrinks. Of the groups' maxima one is drawn, with the probability that the softmax of
    energies gives it: a policy that always took the highest maximum would wait for ever where two actions are nearly as
    good.
    """
    code = policy(images, poses)
    groups = max(1, samples // _GROUP)
    found = []
    for arm in range(2):
        best = torch.zeros(len(code), groups, ARM_ACTION)
        for turn in range(rounds):
            size = (len(code), groups, samples // groups, ARM_ACTION)
            if turn:
                noise = _NOISE * _SHRINK**turn * torch.randn(size, generator=generator)
                noise[:, :, 0] = 0
                tried = (best[:, :, None] + noise).clamp(-1, 1)
            else:
                tried = 2 * torch.rand(size, generator=generator) - 1
            # A policy that diverged acts at random.
            energies = policy.energy(code, tried.flatten(1, 2), arm).nan_to_num(0.0).unflatten(1, size[1:3])
            highest, places = energies.max(2)
            best = tried.take_along_dim(places[..., None, None], 2)[:, :, 0]
        chosen = torch.multinomial(highest.softmax(1), 1, generator=generator)
        found.append(best.take_along_dim(chosen[..., None], 1)[:, 0])
    return torch.cat(found, 1)


def mirrored(images: Tensor, poses: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reflect examples at the plane between the arms: the task is symmetric."""
    poses, actions = (
        (part.unflatten(1, (2, ARM_ACTION)).flip(1) * _REFLECTED).flatten(1) for part in (poses, actions)
    )
    return images.flip(2), poses, actions


# Episodes of a policy, several at a time: the share of the balls that it delivers.


@dataclass(frozen=True)
class Search:
    """The search for an action.

    Attributes:
        samples: actions per arm and round.
        rounds: number of rounds.
    """

    samples: int = 512
    rounds: int = 6


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


# Replay a trained policy on an unseen start, with the places that it looks at, as frames.

POLICIES = {"exact": "exact", "angular": "HRF-A (8, 8)"}  # committed policies, and their attention
_SIZE = 256
_WHITE = (255, 255, 255)


@dataclass(frozen=True)
class Replay:
    """An episode.

    Attributes:
        frames: the rendered scene beside the policy's image, in which white squares mark expected places of its pools,
            ``(256, 512, 3)`` each.
        delivered: share of the balls that were delivered.
        steps: number of steps.
    """

    frames: list[NDArray[np.uint8]]
    delivered: float
    steps: int


def policy_path(name: str) -> Path:
    """Return the file of a committed policy."""
    if name not in POLICIES:
        raise ValueError(f"there is no policy {name!r}; expected one of {', '.join(POLICIES)}")
    return Path(__file__).parent / "policies" / f"{name}.safetensors"


def replay(policy: VisionPerformer, seed: int, how: Search, *, steps: int = STEPS) -> Replay:
    """Let a policy act in the episode of a seed."""
    from hrf_paper.manipulation.environment import SweepingEnv

    environment = SweepingEnv(image_size=policy.config.image_size, steps=steps)
    drawing = Drawing(_SIZE)
    seen, _ = environment.reset(seed=seed)
    generator = torch.Generator().manual_seed(seed)
    frames: list[NDArray[np.uint8]] = []
    share = 0.0
    while len(frames) < steps:
        image, poses = (torch.from_numpy(seen[key])[None] for key in ("image", "poses"))
        large = drawing.image(environment.table.balls(), environment.table.poses())
        with torch.no_grad():
            _mark(large, policy.seen(image, poses)[1][0].double().numpy())
        frames.append(np.concatenate([environment.table.photograph(_SIZE), large], axis=1))
        action = search(policy, image, poses, samples=how.samples, rounds=how.rounds, generator=generator)
        seen, share, ended, _, _ = environment.step(action[0].numpy())
        if ended:
            break
    environment.close()
    return Replay(frames, share, len(frames))


def strip(frames: list[NDArray[np.uint8]], count: int) -> NDArray[np.uint8]:
    """Put frames from the beginning to the end of an episode below each other, in two columns."""
    chosen = [frames[i] for i in np.linspace(0, len(frames) - 1, count).round().astype(int)]
    rows = [np.concatenate(chosen[i : i + 2], axis=1) for i in range(0, count, 2)]
    return np.concatenate(rows, axis=0)


def _mark(image: NDArray[np.uint8], spots: NDArray[np.float64]) -> None:
    """Draw the outline of a square around each spot."""
    left, low, extent = VIEW
    for x, y in spots:
        column, row = int((x - left) / extent * _SIZE), int((low + extent - y) / extent * _SIZE)
        if 6 <= column < _SIZE - 6 and 6 <= row < _SIZE - 6:
            image[row - 5 : row + 6, [column - 5, column + 5]] = _WHITE
            image[[row - 5, row + 5], column - 5 : column + 6] = _WHITE

"""Replay a trained policy on an unseen start, with the places that it looks at, as frames."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hrf_paper.manipulation.cloning import search
from hrf_paper.manipulation.drawing import VIEW, Drawing
from hrf_paper.manipulation.environment import SweepingEnv
from hrf_paper.manipulation.performer import VisionPerformer
from hrf_paper.manipulation.rollouts import Search
from hrf_paper.manipulation.scene import STEPS

__all__ = ["POLICIES", "Replay", "policy_path", "replay", "strip"]

POLICIES = {"exact": "exact", "angular": "HRF-A (8,8)"}  # committed policies, and their attention
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

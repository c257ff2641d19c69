"""A trained policy on unseen stones: where it looks, and pictures of the walk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hrf_paper.locomotion.environment import LARGEST_SHIFT, StepStones
from hrf_paper.locomotion.policy import ImplicitAttentionPolicy
from hrf_paper.locomotion.terrain import HEIGHT, N_CAMERAS, WIDTH, level_depth
from hrf_paper.locomotion.training import TrainedPolicy

TRAINED = Path(__file__).parent / "trained.safetensors"
_DEEPER = 0.05  # than level ground, in units of the range: a gap
_MIDDLE = slice(8, 24)  # columns of an image that see the way, not its sides
_ENLARGED = 2  # pixels of a picture per pixel of a camera


class Look(NamedTuple):
    """A decision.

    Attributes:
        x: place of the trunk in metres.
        depth: images, ``(2, 24, 32)``.
        kept: which of their pixels are in patches that were read out, ``(2, 24, 32)``.
        shifts: of the front and the rear foothold, in metres.
        picture: of the robot, if the environment renders.
        fell: whether the robot fell afterwards.
        crossed: whether the field ended afterwards.
    """

    x: float
    depth: NDArray[np.float32]
    kept: NDArray[np.bool_]
    shifts: NDArray[np.float64]
    picture: NDArray[np.uint8] | None
    fell: bool
    crossed: bool


def looks(trained: TrainedPolicy, seed: int, *, render: bool = False) -> list[Look]:
    """Walk over the field of a seed, and return all decisions."""
    environment = StepStones(render_mode="rgb_array" if render else None)
    try:
        return list(_walked(environment, trained, seed))
    finally:
        environment.close()


def _walked(environment: StepStones, trained: TrainedPolicy, seed: int) -> Iterator[Look]:
    policy = ImplicitAttentionPolicy(trained.config)
    observation, _ = environment.reset(seed=seed)
    ended = False
    while not ended:
        depth, picture = observation["depth"], environment.render()
        x = float(environment.walker.world.position[0])
        footholds = torch.from_numpy(observation["footholds"])
        normalised = trained.moments.normalised(torch.from_numpy(depth))
        decision = policy.decide(trained.parameters, normalised, footholds)
        action = decision.action.numpy()
        observation, _, terminated, truncated, info = environment.step(action)
        ended = terminated or truncated
        kept = _pixels(decision.kept.numpy(), trained.config.patch)
        shifts = LARGEST_SHIFT * action.astype(np.float64)
        yield Look(x, depth, kept, shifts, picture, info["fell"], info["crossed"])


def _pixels(kept: NDArray[np.bool_], patch: tuple[int, int]) -> NDArray[np.bool_]:
    """Spread patches ``(n,)`` over their pixels, ``(2, 24, 32)``."""
    high, wide = patch
    blocks = kept.reshape(N_CAMERAS, HEIGHT // high, WIDTH // wide)
    return blocks.repeat(high, 1).repeat(wide, 2)


def gap_pixels(depth: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which pixels of images ``(..., 2, 24, 32)`` see into a gap on the way."""
    gap = depth > level_depth() + _DEEPER
    gap[..., : _MIDDLE.start] = gap[..., _MIDDLE.stop :] = False
    return gap


def kept_shares(seen: Sequence[Look]) -> tuple[float, float]:
    """Return the shares of pixels in gaps and of all other pixels that were read out."""
    kept, gap = np.stack([look.kept for look in seen]), gap_pixels(np.stack([look.depth for look in seen]))
    return float(kept[gap].mean()), float(kept[~gap].mean())


def masked_images(depth: NDArray[np.float32], kept: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return both images beside each other in grey, ``(24, 65, 3)``, with what was masked out in red."""
    grey = np.repeat((255 * (1 - depth))[..., None], 3, -1)
    red = 0.5 * grey + np.array([127.0, 0.0, 0.0])
    front, belly = np.where(kept[..., None], grey, red).astype(np.uint8)
    line = np.full((HEIGHT, 1, 3), 255, np.uint8)
    return np.concatenate([front, line, belly], 1)


def picture_of(look: Look) -> NDArray[np.uint8]:
    """Return the picture of the robot with the enlarged images in its upper left corner."""
    if look.picture is None:
        raise ValueError("the decision has no picture; expected one from looks(..., render=True)")
    picture = look.picture.copy()
    inset = masked_images(look.depth, look.kept).repeat(_ENLARGED, 0).repeat(_ENLARGED, 1)
    picture[: inset.shape[0], : inset.shape[1]] = inset
    return picture

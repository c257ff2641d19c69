"""The policy: a vision Performer encodes the image, and a small network gives every action an energy.

An image is cut into patches. Their colours less a mean image, and their places, become tokens, which pass layers of
attention. A few pools read them out: each is a softmax over the tokens, which gives the expected place and the expected
value under it. An action's energy is the sum of two terms, one per arm, so that a search finds each arm's half alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Generator, Tensor, nn

from hrf_paper.manipulation.attention import attention_flops, attention_layer

__all__ = ["ARM_ACTION", "Flops", "PerformerConfig", "VisionPerformer", "patches", "places"]

ARM_ACTION = 6  # degrees of freedom of an arm
_POSES = 2 * ARM_ACTION
_OCTAVES = 4  # of the waves that encode places


@dataclass(frozen=True)
class PerformerConfig:
    """Sizes of the policy.

    Attributes:
        image_size: pixels per side.
        patch: pixels per side of a patch.
        width: width of the tokens.
        heads: number of heads.
        layers: number of layers.
        hidden: width of the feed-forward part of a layer.
        pools: number of pools that read the tokens.
        pooled: width of the values that are pooled.
        code: width of the encoding of image and poses, and of the energy's hidden layers.
    """

    image_size: int = 64
    patch: int = 8
    width: int = 64
    heads: int = 4
    layers: int = 2
    hidden: int = 128
    pools: int = 16
    pooled: int = 16
    code: int = 96

    def __post_init__(self) -> None:
        if self.image_size % self.patch:
            raise ValueError(
                f"image_size is {self.image_size} with patches of {self.patch}; expected a multiple of the patch"
            )
        if self.width % self.heads:
            raise ValueError(
                f"width is {self.width} for {self.heads} heads; expected a multiple of the number of heads"
            )

    @property
    def tokens(self) -> int:
        """Number of patches."""
        return (self.image_size // self.patch) ** 2


class Flops(NamedTuple):
    """FLOPs of one decision, two per multiply-add.

    Attributes:
        attention: attention of all layers, from projected queries, keys and values to outputs.
        encoder: the encoding of the image, attention included.
        search: energies of all actions that a search tries.
    """

    attention: float
    encoder: float
    search: float

    @property
    def decision(self) -> float:
        """All of one decision."""
        return self.encoder + self.search


class VisionPerformer(nn.Module):
    """Energies of actions, given an image and poses; the larger, the better.

    Args:
        config: its sizes.
        method: the attention, a key of `METHODS` or `DIVIDED`; ``"blind"`` sees no image.
        generator: the source of random features.

    Attributes:
        mean_image: subtracted from every image, ``(size, size, 3)``.
        pose_mean: of the training data, ``(12,)``.
        pose_deviation: likewise.
    """

    mean_image: Tensor
    pose_mean: Tensor
    pose_deviation: Tensor

    def __init__(self, config: PerformerConfig, method: str, generator: Generator) -> None:
        super().__init__()
        self.config, self.method = config, method
        self.embed = nn.Linear(3 * config.patch**2, config.width)
        self.embed_place = nn.Linear(4 * _OCTAVES + 2, config.width)
        self.layers = nn.ModuleList(_Layer(config, method, generator) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.scores = nn.Linear(config.width, config.pools)
        self.values = nn.Linear(config.width, config.pooled)
        read = config.pools * (config.pooled + 2) + _POSES
        self.encoding = nn.Sequential(nn.Linear(read, config.code), nn.ReLU())
        self.energies = nn.ModuleList(_ArmEnergy(config.code) for _ in range(2))
        side = config.image_size
        self.register_buffer("mean_image", torch.zeros(side, side, 3))
        self.register_buffer("pose_mean", torch.zeros(_POSES))
        self.register_buffer("pose_deviation", torch.ones(_POSES))

    def forward(self, images: Tensor, poses: Tensor) -> Tensor:
        """Encode images ``(B, size, size, 3)``, 0 to 255, and poses ``(B, 12)``: ``(B, code)``."""
        standard = (poses - self.pose_mean) / self.pose_deviation
        if self.method == "blind":
            read = standard.new_zeros(len(poses), self.scores.out_features * (self.values.out_features + 2))
        else:
            cut = patches((images.float() - self.mean_image) / 64, self.config.patch)
            read = self.read(cut, places(self.config.image_size // self.config.patch).to(cut))
        return cast(Tensor, self.encoding(torch.cat([read, standard], -1)))

    def read(self, cut: Tensor, at: Tensor) -> Tensor:
        """Encode patches ``(B, n, 3 patch²)`` at places ``(n, 2)``; the order of the patches does not matter."""
        tokens = self.embed(cut) + self.embed_place(_waves(at))
        for layer in self.layers:
            tokens = layer(tokens)
        tokens = self.norm(tokens)
        weights = self.scores(tokens).softmax(-2)  # (B, n, pools): each pool's weights sum to one
        values = torch.cat([self.values(tokens), at.expand(len(cut), -1, -1)], -1)
        return (weights.transpose(1, 2) @ values).flatten(1)

    def energy(self, code: Tensor, actions: Tensor, arm: int) -> Tensor:
        """Return energies of actions of an arm ``(B, N, 6)``: ``(B, N)``."""
        return cast(Tensor, self.energies[arm](code, actions))

    def flops(self, tried: int) -> Flops:
        """Count the FLOPs of a decision that tries so many actions per arm; a multiply-add counts two."""
        c = self.config
        attention = c.layers * attention_flops(self.method, c.tokens, c.width, c.heads)
        token = 3 * c.patch**2 * c.width + c.layers * (4 * c.width**2 + 2 * c.width * c.hidden)
        token += c.width * (c.pools + c.pooled) + c.pools * (c.pooled + 2)
        last = sum(w.numel() for w in self.encoding.parameters() if w.ndim == 2)
        arm = ARM_ACTION * c.code + c.code**2 + c.code
        search = 2.0 * 2 * (c.code**2 + tried * arm)
        if self.method == "blind":
            return Flops(0.0, 2.0 * last, search)
        return Flops(attention, 2.0 * (c.tokens * token + last) + attention, search)


class _Layer(nn.Module):
    """Attention and a feed-forward part, each with a layer norm before it."""

    def __init__(self, config: PerformerConfig, method: str, generator: Generator) -> None:
        super().__init__()
        self.attention = attention_layer(method, config.width, config.heads, generator)
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(2))
        self.feed = nn.Sequential(
            nn.Linear(config.width, config.hidden), nn.GELU(), nn.Linear(config.hidden, config.width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + self.attention(y, y, y)[0]
        return x + cast(Tensor, self.feed(self.norms[1](x)))


class _ArmEnergy(nn.Module):
    """The energy of an arm's half of an action; the code is multiplied once, not once per action."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.of_code, self.of_action = nn.Linear(code, code), nn.Linear(ARM_ACTION, code, bias=False)
        self.last = nn.Sequential(nn.ReLU(), nn.Linear(code, code), nn.ReLU(), nn.Linear(code, 1))
        # Actions are small beside the code at first; the energy has to depend on them from the beginning.
        nn.init.normal_(self.of_action.weight)

    def forward(self, code: Tensor, actions: Tensor) -> Tensor:
        return cast(Tensor, self.last(self.of_code(code)[:, None] + self.of_action(actions)))[..., 0]


def patches(images: Tensor, patch: int) -> Tensor:
    """Cut images ``(B, size, size, 3)`` into patches, row by row: ``(B, n, 3 patch²)``."""
    rows = images.unflatten(2, (-1, patch)).unflatten(1, (-1, patch))  # (B, r, patch, c, patch, 3)
    return rows.transpose(2, 3).flatten(3).flatten(1, 2)


def places(side: int) -> Tensor:
    """Return the centres of side² patches, row by row, in [−1, 1]: ``(n, 2)``."""
    centres = (torch.arange(side) + 0.5) * (2 / side) - 1
    return torch.cartesian_prod(centres, centres)


def _waves(at: Tensor) -> Tensor:
    """Return places with sines and cosines of them: ``(n, 2) -> (n, 2 + 4 octaves)``."""
    angles = (at[..., None] * math.pi * 2.0 ** (torch.arange(_OCTAVES).to(at) - 1)).flatten(-2)
    return torch.cat([at, angles.sin(), angles.cos()], -1)

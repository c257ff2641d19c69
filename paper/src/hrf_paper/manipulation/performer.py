"""The vision Performer: attention methods by name, and an energy of images, poses and actions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

import hrf
from hrf import catalogue
from hrf.advice.errors import map_flops
from hrf_paper.manipulation.scene import HIGHEST_POSE, LOWEST_POSE, VIEW

# Attention methods by name, all with queries and keys of length one (paper, appendix on robotics).
#
# Names of maps are those of `hrf.catalogue`: a number is m, the number of projections. The paper's FAVOR+ and Trig of
# size 256 are read as 256 features: 128 projections.

Plain = Literal["exact", "uniform"]
Maker = Callable[..., hrf.FeatureMap]
HYBRID, REGULAR = "HRF-A (8, 8)", "FAVOR+ 128"


def _at_the_hybrids_flops(dim: int, *, heads: int, generator: Generator | None = None) -> hrf.FeatureMap:
    """Return the largest positive map whose attention costs no more FLOPs than that of the angular hybrid (8, 8)."""
    # Sizes are tried one by one: each map draws from the global generator, on which weights of stored runs depend.
    most = map_flops(catalogue.build(HYBRID, dim), dim)
    m = 1
    while map_flops(hrf.Positive(dim, n_projections=m + 1), dim) <= most:
        m += 1
    return hrf.Positive(dim, n_projections=m, heads=heads, generator=generator)


# Methods by name. "blind" sees no image, so that its attention is idle.
METHODS: dict[str, Plain | Maker] = {
    "exact": "exact",
    REGULAR: partial(catalogue.build, REGULAR),
    "FAVOR+ equal FLOPs": _at_the_hybrids_flops,
    HYBRID: partial(catalogue.build, HYBRID),
    "Trig 128": partial(catalogue.build, "Trig 128"),
    "uniform": "uniform",
    "blind": "uniform",
}
# Regular features whose sums are divided as they are, without a rule for small or negative denominators.
DIVIDED: dict[str, Maker] = {
    f"{name}, divided as is": partial(catalogue.build, name)
    for name in ("FAVOR+ 4", "FAVOR+ 16", "Trig 4", "Trig 16", "Trig 128")
}


class PlainAttention(nn.MultiheadAttention):
    """Self-attention with queries and keys of length one, and weights as a function gives them.

    Args:
        width: width of the tokens.
        heads: number of heads.
        mix: takes queries, keys and values ``(B, H, L, d)`` to outputs.
    """

    def __init__(self, width: int, heads: int, mix: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__(width, heads, batch_first=True)
        self._mix = mix

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Attend within tokens ``(B, L, width)``, given three times as PyTorch's layer is."""
        assert self.in_proj_weight is not None
        projected = F.linear(query, self.in_proj_weight, self.in_proj_bias)
        q, k, v = projected.unflatten(-1, (3, self.num_heads, -1)).movedim(-2, 1).unbind(-2)
        mixed = self._mix(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v)
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), None


def attention_layer(method: str, width: int, heads: int, generator: Generator) -> nn.MultiheadAttention:
    """Return the self-attention of a method, a key of `METHODS` or `DIVIDED`; maps are drawn by the generator."""
    if method in DIVIDED:
        drawn = DIVIDED[method](width // heads, heads=heads, generator=generator)
        return PlainAttention(width, heads, _Divided(drawn))
    if method not in METHODS:
        raise ValueError(f"there is no method {method!r}; expected one of {', '.join((*METHODS, *DIVIDED))}")
    chosen = METHODS[method]
    if isinstance(chosen, str):
        return PlainAttention(width, heads, _exact if chosen == "exact" else _uniform)
    return hrf.nn.MultiheadAttention(
        width, heads, batch_first=True, feature_map=chosen, normalize=True, generator=generator
    )


def attention_flops(method: str, tokens: int, width: int, heads: int) -> float:
    """Count the FLOPs of a layer's attention for one image, projections of tokens aside."""
    dim = width // heads
    chosen = DIVIDED.get(method) or METHODS[method]
    if isinstance(chosen, str):
        per_token = 4.0 * tokens * dim if chosen == "exact" else 1.0 * dim
    else:
        per_token = map_flops(chosen(dim, heads=heads), dim)
    return heads * tokens * per_token


def _exact(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, scale=1.0)


def _uniform(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return value.mean(-2, keepdim=True).expand_as(value)


class _Divided(nn.Module):
    """Attention with a map, whose numerators are divided by denominators of any size and sign."""

    def __init__(self, feature_map: hrf.FeatureMap) -> None:
        super().__init__()
        self.feature_map = feature_map

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return hrf.attention(query, key, value, self.feature_map, scale=1.0, denominator="none")


# The policy: a vision Performer encodes the image, and a small network gives every action an energy.
#
# An image is cut into patches. Their colours less a mean image, and their places, become tokens, which pass layers of
# attention. They are read out in two ways. On a grid of knots, a knot sums the values of the tokens around it, with
# bilinear weights. And a few pools, each a softmax over the tokens whose query comes from the poses, give expected
# places relative to both paddles. An action's energy is the sum of two terms, one per arm, so that a search finds each
# arm's half alone. A term is the logarithm of a sum of bumps, whose centres and heights come from the encoding: it may
# have several maxima, and costs little per action. All bumps have the same widths, so that the highest is the
# likeliest, not the narrowest.

ARM_ACTION = 6  # degrees of freedom of an arm
_POSES = 2 * ARM_ACTION
_OCTAVES, _POSE_OCTAVES = 4, 5  # of the waves that encode places and poses
_POSE_WAVES = _POSES * (1 + 2 * _POSE_OCTAVES)
_CONTRAST = 64.0  # unit of colours that differ from the mean image
_WIDTH = 0.5  # of a bump, to begin with
_REACH = 1.1  # centres lie within: actions of ±1 are common
_QUESTION = 16  # width of the pools' queries and keys
_NEARBY = 0.06  # metres: the unit of relative places


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
        knots: knots per side of the grid that reads the tokens.
        values: width of the values that are read.
        pools: number of expected places.
        code: width of the encoding of image and poses.
        bumps: bumps of an arm's energy.
    """

    image_size: int = 64
    patch: int = 8
    width: int = 64
    heads: int = 4
    layers: int = 2
    hidden: int = 128
    knots: int = 8
    values: int = 8
    pools: int = 8
    code: int = 96
    bumps: int = 4

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


@dataclass(frozen=True)
class Flops:
    """FLOPs of one decision, two per multiply-add.

    Attributes:
        attention: attention of all layers, from projected queries, keys and values to outputs.
        encoder: the encoding of the image, attention included.
        search: energies of all actions that a search tries.
    """

    attention: float
    encoder: float
    search: float


class VisionPerformer(nn.Module):
    """Energies of actions, given an image and poses; the larger, the better.

    Args:
        config: its sizes.
        method: the attention, a key of `METHODS` or `DIVIDED`; ``"blind"`` sees no image.
        generator: the source of random features.

    Attributes:
        mean_image: subtracted from every image, ``(size, size, 3)``.
    """

    mean_image: Tensor
    middle: Tensor
    reach: Tensor

    def __init__(self, config: PerformerConfig, method: str, generator: Generator) -> None:
        super().__init__()
        self.config, self.method = config, method
        self.embed = nn.Linear(3 * config.patch**2, config.width)
        self.embed_place = nn.Linear(4 * _OCTAVES + 2, config.width)
        self.layers = nn.ModuleList(_Layer(config, method, generator) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.values = nn.Linear(config.width, config.values)
        self.questions = nn.Linear(_POSE_WAVES, config.pools * _QUESTION)
        self.answers = nn.Linear(config.width, _QUESTION)
        self.offsets = nn.Linear(config.width, 2)
        nn.init.normal_(self.questions.bias)  # pools that are nearly uniform learn slowly
        self._read = config.knots**2 * config.values + 4 * config.pools
        self.encoding = nn.Sequential(
            nn.Linear(self._read + _POSE_WAVES, config.hidden),
            nn.ReLU(),
            nn.Linear(config.hidden, config.code),
            nn.ReLU(),
        )
        self.energies = nn.ModuleList(_Bumps(config.code, config.bumps) for _ in range(2))
        side = config.image_size
        self.register_buffer("mean_image", torch.zeros(side, side, 3))
        low, high = (torch.from_numpy(limit).float().flatten() for limit in (LOWEST_POSE, HIGHEST_POSE))
        self.register_buffer("middle", (low + high) / 2, persistent=False)
        self.register_buffer("reach", (high - low) / 2, persistent=False)

    def forward(self, images: Tensor, poses: Tensor) -> Tensor:
        """Encode images ``(B, size, size, 3)``, 0 to 255, and poses ``(B, 12)``: ``(B, code)``."""
        standard = self._standard(poses)
        if self.method == "blind":
            read = standard.new_zeros(len(poses), self._read)
        else:
            grid, spots = self.seen(images, poses)
            hands = poses.unflatten(1, (2, 1, ARM_ACTION))[..., :2]  # (B, arms, 1, 2)
            relative = (spots[:, None] - hands) / _NEARBY
            read = torch.cat([grid, relative.flatten(1)], 1)
        return cast(Tensor, self.encoding(torch.cat([read, standard], -1)))

    def seen(self, images: Tensor, poses: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is read of images ``(B, size, size, 3)`` with poses ``(B, 12)``, as `read` does."""
        cut = patches((images.float() - self.mean_image) / _CONTRAST, self.config.patch)
        return self.read(
            cut, places(self.config.image_size // self.config.patch).to(cut), self._standard(poses)
        )

    def _standard(self, poses: Tensor) -> Tensor:
        """Return poses with waves of them, so that small differences are seen: ``(B, 12) -> (B, 12 + 120)``."""
        return _waves((poses - self.middle) / self.reach, _POSE_OCTAVES)

    def read(self, cut: Tensor, at: Tensor, standard: Tensor) -> tuple[Tensor, Tensor]:
        """Encode patches ``(B, n, 3 patch²)`` at places ``(n, 2)``; the order of the patches does not matter.

        Args:
            cut: patches.
            at: their places (row, column) in [−1, 1].
            standard: poses with their waves, ``(B, 132)``.

        Returns:
            The grid ``(B, knots² values)``, and expected places in metres ``(B, pools, 2)``.
        """
        tokens = self.embed(cut) + self.embed_place(_waves(at, _OCTAVES))
        for layer in self.layers:
            tokens = layer(tokens)
        tokens = self.norm(tokens)
        grid = _bilinear(at, self.config.knots).T @ self.values(tokens)
        questions = self.questions(standard).unflatten(-1, (-1, _QUESTION))
        weights = (questions @ self.answers(tokens).mT).softmax(-1)  # (B, pools, n)
        return grid.flatten(1), weights @ (_in_metres(at) + _NEARBY * self.offsets(tokens))

    def energy(self, code: Tensor, actions: Tensor, arm: int) -> Tensor:
        """Return energies of actions of an arm ``(B, N, 6)``: ``(B, N)``."""
        return cast(Tensor, self.energies[arm](code, actions))

    def flops(self, tried: int) -> Flops:
        """Count the FLOPs of a decision that tries so many actions per arm; a multiply-add counts two."""
        c = self.config
        attention = c.layers * attention_flops(self.method, c.tokens, c.width, c.heads)
        token = 3 * c.patch**2 * c.width + c.layers * (4 * c.width**2 + 2 * c.width * c.hidden)
        token += c.width * (c.values + _QUESTION + 2) + c.pools * (_QUESTION + 2)
        token += 4 * c.values  # a token is between four knots
        last = sum(w.numel() for w in self.encoding.parameters() if w.ndim == 2)
        shapes = 2 * c.code * c.bumps * (1 + ARM_ACTION)
        # Difference, quotient, square and sum per coordinate; half, difference, exponential and sum per bump.
        search = 2.0 * (shapes + tried * c.bumps * (4 * ARM_ACTION + 4))
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


class _Bumps(nn.Module):
    """The energy of an arm's half of an action a: log Σ_k exp(h_k − Σ_i (a_i − c_ki)² / 2w_i²), with learned w."""

    def __init__(self, code: int, bumps: int) -> None:
        super().__init__()
        self.shapes = nn.Linear(code, bumps * (1 + ARM_ACTION))
        # Wide to begin with: far from every bump there is little to learn from.
        self.log_widths = nn.Parameter(torch.full((ARM_ACTION,), math.log(_WIDTH)))
        self.bumps = bumps

    def forward(self, code: Tensor, actions: Tensor) -> Tensor:
        shapes = self.shapes(code).unflatten(-1, (self.bumps, -1))[:, None]  # (B, 1, bumps, 7)
        heights, centres = shapes[..., 0], _REACH * torch.tanh(shapes[..., 1:])
        distances = ((actions[:, :, None] - centres) / self.log_widths.exp()).square().sum(-1)
        return (heights - distances / 2).logsumexp(-1)


def patches(images: Tensor, patch: int) -> Tensor:
    """Cut images ``(B, size, size, 3)`` into patches, row by row: ``(B, n, 3 patch²)``."""
    rows = images.unflatten(2, (-1, patch)).unflatten(1, (-1, patch))  # (B, r, patch, c, patch, 3)
    return rows.transpose(2, 3).flatten(3).flatten(1, 2)


def places(side: int) -> Tensor:
    """Return the centres of side² patches, row by row, in [−1, 1]: ``(n, 2)``."""
    centres = (torch.arange(side) + 0.5) * (2 / side) - 1
    return torch.cartesian_prod(centres, centres)


def _in_metres(at: Tensor) -> Tensor:
    """Return x and y of places (row, column) in the image."""
    left, low, extent = VIEW
    return torch.stack([left + extent * (at[:, 1] + 1) / 2, low + extent * (1 - at[:, 0]) / 2], -1)


def _bilinear(at: Tensor, knots: int) -> Tensor:
    """Return the weights of places ``(n, 2)`` at the knots of a grid, ``(n, knots²)``; each place's sum to one."""
    at_knots = (at.clamp(-1 + 1 / knots, 1 - 1 / knots) + 1) * (knots / 2) - 0.5  # in units of the grid
    hats = (1 - (at_knots[..., None] - torch.arange(knots).to(at)).abs()).clamp(min=0)  # (n, 2, knots)
    return (hats[:, 0, :, None] * hats[:, 1, None, :]).flatten(1)


def _waves(x: Tensor, octaves: int) -> Tensor:
    """Return coordinates in [−1, 1] with sines and cosines of them: ``(n, c) -> (n, c + 2c octaves)``."""
    angles = (x[..., None] * math.pi * 2.0 ** (torch.arange(octaves).to(x) - 1)).flatten(-2)
    return torch.cat([x, angles.sin(), angles.cos()], -1)

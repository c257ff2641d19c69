"""The encoder, a Conformer: its sizes, dropout, self-attention with exchangeable methods, and its blocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hrf
from hrf_paper.speech.utterances import CHARACTERS, padding_mask

# Sizes of the model: for a CPU, for streams, in between, and the paper's.


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a Conformer-Transducer.

    Attributes:
        channels: channels of the features.
        width: width of an encoded frame.
        layers: number of conformer blocks.
        heads: heads of attention per block.
        expansion: width of the feed-forward modules over ``width``.
        kernel: frames that the convolution module sees, an odd number.
        predictor: ``"lstm"``, or ``"stateless"``: the last two labels.
        predictor_width: width of the predictor.
        joint_width: width of the joiner.
        vocabulary: number of labels, the blank among them.
        dropout: probability to drop in the encoder.
        predictor_dropout: probability to drop in the predictor.
        positions: ``"sinusoidal"``, ``"rotary"`` or ``"none"``.
        position_range: while training, the first frame of a batch has a random position below this number, so that the
            positions of long utterances become known; 0 is never.
        key_length: length to which queries and keys are brought; ``None`` leaves them as they are.
        causal: whether a frame sees itself and frames before it only, for streaming.
    """

    channels: int = 26
    width: int = 96
    layers: int = 4
    heads: int = 4
    expansion: int = 4
    kernel: int = 15
    predictor: Literal["lstm", "stateless"] = "lstm"
    predictor_width: int = 96
    joint_width: int = 128
    vocabulary: int = len(CHARACTERS) + 1
    dropout: float = 0.1
    predictor_dropout: float = 0.3
    positions: Literal["sinusoidal", "rotary", "none"] = "sinusoidal"
    position_range: int = 0
    key_length: float | None = None
    causal: bool = False

    def __post_init__(self) -> None:
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel is {self.kernel}; expected an odd number")
        if self.key_length is not None and self.key_length <= 0:
            raise ValueError(f"key_length is {self.key_length}; expected a positive number or None")


CONFIGS = {
    "cpu": ModelConfig(),
    # Sees no later frame, and knows no positions, so that recordings of any length can be streamed.
    "stream": ModelConfig(channels=40, width=64, layers=3, positions="none", causal=True),
    "small": ModelConfig(
        channels=80, width=256, layers=8, heads=4, kernel=31, predictor_width=256, joint_width=256
    ),
    # 17 blocks, 8 heads, width 512 and so 64 per head (paper, appendix on speech); the kernel is that of the
    # Conformer's authors.
    "paper": ModelConfig(
        channels=80, width=512, layers=17, heads=8, kernel=31, predictor_width=640, joint_width=640
    ),
}


# Dropout whose masks are random bytes: several times cheaper than one float per entry.


class ByteDropout(nn.Module):
    """Drop entries while training, with a probability that is a multiple of 1/256, and scale the others up.

    Args:
        probability: of dropping an entry, rounded to 1/256.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.dropped = round(256 * probability)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` with entries dropped; ``x`` itself in evaluation."""
        if not self.training or not self.dropped:
            return x
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device)
        # All 64 bits: from the least number to the greatest.
        words.random_(-(2**63), None)
        kept = words.view(torch.uint8)[: x.numel()].view(x.shape) >= self.dropped
        return x * (kept * (256 / (256 - self.dropped)))


# Self-attention of a conformer, whose way to weigh values can be exchanged at any time: weights stay as they are.

Plain = Literal["exact", "uniform", "none"]
Method = Plain | hrf.FeatureMap | hrf.SummarisedAttention
Observer = Callable[[Tensor, Tensor, Tensor], None]


class SelfAttention(nn.Module):
    """Multi-head self-attention with a layer norm before it.

    Args:
        width: width of the tokens.
        heads: number of heads.
        dropout: probability to drop an output.
        rotary: whether to rotate queries and keys by their position (Su et al., 2021).
        length: length to which queries and keys are brought, as a map sees them; ``None`` leaves them. Signed
            estimators need short vectors.

    Attributes:
        method: ``"exact"`` softmax attention, ``"uniform"`` weights, ``"none"`` (the output is zero), a feature map
            or a `hrf.SummarisedAttention`, exchanged by `use`. A map is not a part of the module: neither
            ``state_dict`` nor ``parameters`` see it.
        causal: whether a frame sees itself and frames before it only.
        observer: called with queries and keys as a map sees them, ``(B, H, L, d)``, and the padding ``(B, L)``.
    """

    def __init__(
        self, width: int, heads: int, dropout: float, *, rotary: bool = False, length: float | None = None
    ) -> None:
        super().__init__()
        if width % (2 * heads):
            raise ValueError(f"width is {width} for {heads} heads; expected a multiple of {2 * heads}")
        self.heads, self.rotary, self.length = heads, rotary, length
        self.causal = False
        self.observer: Observer | None = None
        self.norm = nn.LayerNorm(width)
        self.inputs = nn.Linear(width, 3 * width)
        self.outputs = nn.Linear(width, width)
        self.dropout = ByteDropout(dropout)
        self._method: list[Method] = ["exact"]  # in a list, so that a map does not become a submodule

    @property
    def method(self) -> Method:
        """The way to weigh values."""
        return self._method[0]

    def use(self, method: Method) -> None:
        """Weigh values by another method from now on."""
        if isinstance(method, str) and method not in get_args(Plain):
            expected = ", ".join(map(repr, get_args(Plain)))
            raise ValueError(
                f"the method is {method!r}; expected {expected}, a feature map or summarised attention"
            )
        self._method[0] = method

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """Attend from all frames ``(B, L, width)`` to all but the padding ``(B, L)``."""
        if self.method == "none":
            return torch.zeros_like(x)
        query, key, value = self._projected(x)
        if self.observer is not None:
            self.observer(query, key, padding)
        return self._merged(self._mixed(query, key, value, padding))

    def attend_next(self, x: Tensor, state: hrf.AttentionState) -> Tensor:
        """Attend from the next frames ``(B, L, width)`` to themselves and to all frames that the state has seen."""
        return self._merged(state.prefill(*self._projected(x)))

    def _merged(self, mixed: Tensor) -> Tensor:
        """Return the output of all heads together."""
        return cast(Tensor, self.dropout(self.outputs(mixed.transpose(1, 2).flatten(2))))

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values ``(B, H, L, d)``; queries and keys at the scale of a map."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.inputs(self.norm(x)).chunk(3, -1)
        )
        if self.rotary:
            query, key = _rotated(query), _rotated(key)
        if self.length is not None:
            return self.length * F.normalize(query, dim=-1), self.length * F.normalize(key, dim=-1), value
        root = query.shape[-1] ** -0.25
        return query * root, key * root, value

    def _mixed(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor) -> Tensor:
        method = self.method
        if method == "exact":
            visible = ~padding[:, None, None, :]
            if self.causal:
                length = query.shape[-2]
                earlier = torch.ones(length, length, dtype=torch.bool, device=query.device)
                visible = visible & earlier.tril()
            return F.scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=1.0)
        if isinstance(method, str):
            return _mean(value, padding, self.causal)
        return hrf.attention(
            query,
            key,
            value,
            method,
            is_causal=self.causal,
            key_padding_mask=padding,
            query_padding_mask=padding if isinstance(method, hrf.SummarisedAttention) else None,
            scale=1.0,
        )


def _mean(value: Tensor, padding: Tensor, causal: bool) -> Tensor:
    """Return the mean of the values that a frame sees; zeros without any."""
    keep = (~padding).to(value.dtype)[:, None, :, None]
    total, count = value * keep, keep
    if causal:
        return total.cumsum(2) / count.cumsum(2).clamp(min=1)
    return (total.sum(2, keepdim=True) / count.sum(2, keepdim=True).clamp(min=1)).expand_as(value)


def _rotated(x: Tensor) -> Tensor:
    """Rotate pairs of coordinates by angles that grow with the position."""
    half = x.shape[-1] // 2
    speed = 10_000.0 ** -(torch.arange(half, device=x.device) / half)
    angle = torch.arange(x.shape[-2], device=x.device)[:, None] * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)


# The encoder: subsampling by four, then conformer blocks (Gulati et al., 2020).

STEM = 5  # kernel of the convolutions that subsample


class Conformer(nn.Module):
    """Turn features into encoded frames, one per four frames.

    Padding does not change the result: it is set to zero before each convolution and hidden from attention.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.stem = nn.ModuleList(
            nn.Conv1d(channels, width, STEM, stride=2, padding=0 if config.causal else STEM // 2)
            for channels in (config.channels, width)
        )
        self.inputs = nn.Linear(width, width)
        self.dropout = ByteDropout(config.dropout)
        self.blocks = nn.ModuleList(ConformerBlock(config) for _ in range(config.layers))

    def forward(self, features: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Encode ``(B, frames, channels)``: return ``(B, ⌈frames/4⌉, width)`` and the lengths ``(B,)``."""
        x = features
        for convolution in self.stem:
            x = x.masked_fill(padding_mask(frames, x.shape[1])[..., None], 0)
            if self.config.causal:
                x = F.pad(x, (0, 0, STEM - 1, 0))
            x = F.silu(convolution(x.mT).mT)
            frames = (frames + 1) // 2
        padding = padding_mask(frames, x.shape[1])
        x = self.inputs(x)
        if self.config.positions == "sinusoidal":
            x = x + sinusoids(self._start(), x.shape[1], x.shape[2], x.device).to(x.dtype)
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, padding)
        return x, frames

    def _start(self) -> int:
        """Return the position of the first frame."""
        wide = self.config.position_range
        return int(torch.randint(wide, ())) if wide and self.training else 0


class ConformerBlock(nn.Module):
    """Half a feed-forward step, attention, convolution, half a feed-forward step, layer norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.first, self.second = _feed_forward(config), _feed_forward(config)
        self.attention = SelfAttention(
            config.width,
            config.heads,
            config.dropout,
            rotary=config.positions == "rotary",
            length=config.key_length,
        )
        self.attention.causal = config.causal
        self.convolution = ConvolutionModule(config)
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """Apply the block to frames ``(B, L, width)``."""
        x = x + self.first(x) / 2
        x = x + self.attention(x, padding)
        x = x + self.convolution(x, padding)
        x = x + self.second(x) / 2
        return self.norm(x)


class ConvolutionModule(nn.Module):
    """Gated linear unit, depthwise convolution, layer norm, SiLU, projection.

    A layer norm stands in place of the original's batch norm, so that an utterance does not depend on its batch.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.width
        # Frames on both sides, or before a frame alone.
        self.sides = (config.kernel - 1, 0) if config.causal else (config.kernel // 2, config.kernel // 2)
        self.norm, self.middle = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs = nn.Linear(width, 2 * width)
        self.depthwise = nn.Conv1d(width, width, config.kernel, groups=width)
        self.outputs = nn.Linear(width, width)
        self.dropout = ByteDropout(config.dropout)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """Convolve frames ``(B, L, width)``, padding as silence."""
        return self.convolved(F.pad(self.gated(x, padding), (0, 0, *self.sides)))

    def gated(self, x: Tensor, padding: Tensor) -> Tensor:
        """Return the input of the convolution."""
        return F.glu(self.inputs(self.norm(x)), -1).masked_fill(padding[..., None], 0)

    def convolved(self, gated: Tensor) -> Tensor:
        """Convolve gated frames that have their neighbours on both sides."""
        return self.dropout(self.outputs(F.silu(self.middle(self.depthwise(gated.mT).mT))))


def _feed_forward(config: ModelConfig) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(config.width),
        nn.Linear(config.width, config.expansion * config.width),
        nn.SiLU(),
        nn.Linear(config.expansion * config.width, config.width),
        ByteDropout(config.dropout),
    )


def sinusoids(start: int, length: int, width: int, device: torch.device) -> Tensor:
    """Return sines and cosines of positions from ``start`` on: ``(length, width)``."""
    speed = torch.exp(-math.log(10_000) * torch.arange(0, width, 2, device=device) / width)
    angle = (start + torch.arange(length, device=device))[:, None] * speed
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)

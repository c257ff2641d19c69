"""The encoder: subsampling by four, then conformer blocks (Gulati et al., 2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hrf_paper.speech.attention import SelfAttention
from hrf_paper.speech.batches import padding_mask
from hrf_paper.speech.configs import ModelConfig
from hrf_paper.speech.dropout import ByteDropout

__all__ = ["STEM", "Conformer", "ConformerBlock", "sinusoids"]

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

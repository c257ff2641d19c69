"""Variations of an utterance for training: speed, vocal tract, microphone, SpecAugment's masks (Park et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

__all__ = ["Augmentation"]

_SHORTEST = 24  # frames


@dataclass(frozen=True)
class Augmentation:
    """The strength of each variation; zeros and empty masks leave features as they are.

    Attributes:
        speed: largest relative change of the speed.
        warp: largest relative stretch of the frequency axis, for the length of the vocal tract.
        tilt: largest tilt of the spectrum, in standard deviations at its ends.
        time_masks: number of masks over time.
        time_width: width of a mask over time, at most this share of the frames.
        longest_mask: width of a mask over time, at most this number of frames.
        channel_masks: number of masks over channels.
        channel_width: width of a mask over channels, at most this share of the channels.
    """

    speed: float = 0.12
    warp: float = 0.12
    tilt: float = 0.3
    time_masks: int = 2
    time_width: float = 0.06
    longest_mask: int = 20
    channel_masks: int = 2
    channel_width: float = 0.2

    def __call__(self, features: Tensor, generator: Generator) -> Tensor:
        """Return a variation of features ``(frames, channels)``."""
        speed, warp, tilt = (2 * torch.rand(3, generator=generator, dtype=torch.float64) - 1).tolist()
        features = _faster(features, 1 + self.speed * speed)
        features = _warped(features, 1 + self.warp * warp)
        frames, channels = features.shape
        features = features + self.tilt * tilt * torch.linspace(-1, 1, channels)
        # One mask over time per 500 frames and `time_masks`: joined utterances get as many as their parts.
        for _ in range(self.time_masks * -(-frames // 500)):
            start, stop = _mask(frames, min(self.longest_mask, self.time_width * frames), generator)
            features[start:stop] = 0
        for _ in range(self.channel_masks):
            start, stop = _mask(channels, self.channel_width * channels, generator)
            features[:, start:stop] = 0
        return features


def _faster(features: Tensor, factor: float) -> Tensor:
    """Change the number of frames by interpolation."""
    frames = max(min(_SHORTEST, len(features)), round(len(features) / factor))
    return F.interpolate(features.mT[None], size=frames, mode="linear", align_corners=True)[0].mT


def _warped(features: Tensor, factor: float) -> Tensor:
    """Stretch the axis of channels by interpolation."""
    last = features.shape[1] - 1
    place = (torch.arange(last + 1) * factor).clamp(max=last)
    low = place.floor().long()
    share = place - low
    return features[:, low] * (1 - share) + features[:, (low + 1).clamp(max=last)] * share


def _mask(length: int, widest: float, generator: Generator) -> tuple[int, int]:
    """Draw a mask: where it starts and stops."""
    size, place = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
    width = int(size * (widest + 1))
    start = int(place * (length - width + 1))
    return start, start + width

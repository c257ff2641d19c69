"""Observation normalisation: mean and deviation of each pixel over all images seen so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from hrf_paper.locomotion.cameras import HEIGHT, N_CAMERAS, WIDTH

__all__ = ["PixelMoments"]

_SHAPE = (N_CAMERAS, HEIGHT, WIDTH)
_LEAST_DEVIATION = 0.05  # pixels that hardly vary are not blown up
_LARGEST = 3.0


def _zeros() -> Tensor:
    return torch.zeros(_SHAPE, dtype=torch.float64)


@dataclass(frozen=True)
class PixelMoments:
    """Sums over images, in float64.

    Attributes:
        count: the number of images.
        total: sum of the images, ``(2, 24, 32)``.
        squares: sum of their squares.
    """

    count: int = 0
    total: Tensor = field(default_factory=_zeros)
    squares: Tensor = field(default_factory=_zeros)

    def plus(self, images: Tensor) -> PixelMoments:
        """Add images ``(n, 2, 24, 32)``."""
        wide = images.double()
        return PixelMoments(
            self.count + len(wide), self.total + wide.sum(0), self.squares + (wide * wide).sum(0)
        )

    def merged(self, other: PixelMoments) -> PixelMoments:
        """Add other moments."""
        return PixelMoments(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def normalised(self, images: Tensor) -> Tensor:
        """Centre and scale images ``(..., 2, 24, 32)``, within three deviations; 0 while nothing has been seen."""
        if self.count == 0:
            return torch.zeros_like(images)
        mean = self.total / self.count
        variance = (self.squares / self.count - mean * mean).clamp_min(0)
        deviation = variance.sqrt().clamp_min(_LEAST_DEVIATION)
        return ((images - mean) / deviation).clamp(-_LARGEST, _LARGEST).float()

"""Dropout whose masks are random bytes: several times cheaper than one float per entry."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["ByteDropout"]


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

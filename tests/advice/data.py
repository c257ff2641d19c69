"""Queries and keys whose best map is known beforehand."""

from __future__ import annotations

import torch
from torch import Generator, Tensor


def noise(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed), dtype=torch.float64)


def easy() -> tuple[Tensor, Tensor]:
    """Short vectors: every map is good."""
    return noise(160, 8, seed=1) / 8**0.5, noise(160, 8, seed=2) / 8**0.5


def hopeless() -> tuple[Tensor, Tensor]:
    """Norm 6 in all directions: no map within a small budget is good."""
    return 6 * noise(160, 16, seed=1) / 4, 6 * noise(160, 16, seed=2) / 4


def clusters() -> tuple[Tensor, Tensor]:
    """Tight clusters far from each other."""
    centers = 0.8 * noise(8, 8, seed=3)
    members = torch.arange(240) % 8
    q, k = (centers[members] + 0.05 * noise(240, 8, seed=seed) for seed in (1, 2))
    return q[torch.randperm(240, generator=Generator().manual_seed(4))], k


def together() -> tuple[Tensor, Tensor]:
    """All vectors around one point: x ≈ y."""
    point = 1.8 * torch.nn.functional.normalize(noise(8, seed=3), dim=0)
    return point + 0.15 * noise(160, 8, seed=1), point + 0.15 * noise(160, 8, seed=2)

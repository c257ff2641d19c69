"""Synthetic data with two clusters of queries and two of keys (paper, Appendix H.3).

The means are random vectors whose signs are chosen so that s, the least ‖Ax + A⁻¹y‖² over real diagonal A at
each of the four pairs of means, has prescribed values. A pair of coordinates of opposite signs adds nothing to
s, and a pair of equal signs adds 4xₖyₖ. Points are Gaussian around the means, then scaled to one norm per side.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

__all__ = ["QUERY_NORM", "clustered_data"]

# Not in the paper. These norms give the printed errors. Means whose coordinates have a variance of 14 explain why
# s₁ and s₂ are 1.6 times s₃ and s₄: (14 + 10)/(14 + 1) = 1.6.
QUERY_NORM, _KEY_NORM = 0.1, 1.0
_SPREAD = 14.0

_FLIPS = 4000


def clustered_data(
    dim: int, n_points: int, variance: float, s: tuple[float, ...], generator: Generator
) -> tuple[Tensor, Tensor]:
    """Draw queries and keys, ``(2 · n_points, d)`` each.

    Args:
        dim: d.
        n_points: points per cluster.
        variance: σ² of the points around their means, in all directions.
        s: prescribed values for the pairs (1, 1), (1, 2), (2, 1) and (2, 2) of means.
        generator: the source of randomness.
    """
    means = [_directions(dim, generator) * math.sqrt(_SPREAD * dim) for _ in range(2)]
    norms = (QUERY_NORM, _KEY_NORM)
    # The means after the points are scaled.
    scaled = [
        mean.abs() * norm / math.sqrt((_SPREAD + variance) * dim)
        for mean, norm in zip(means, norms, strict=True)
    ]
    signs = _signs(4 * scaled[0].unsqueeze(1) * scaled[1], torch.tensor(s).double().view(2, 2), generator)
    sides = []
    for mean, sign, norm in zip(means, signs, norms, strict=True):
        noise = torch.randn(2, n_points, dim, generator=generator, dtype=torch.float64)
        points = ((mean.abs() * sign).unsqueeze(1) + math.sqrt(variance) * noise).flatten(0, 1)
        sides.append(points * (norm / points.norm(dim=-1, keepdim=True)))
    return sides[0], sides[1]


def _directions(dim: int, generator: Generator) -> Tensor:
    rows = torch.randn(2, dim, generator=generator, dtype=torch.float64)
    return rows / rows.norm(dim=-1, keepdim=True)


def _signs(weights: Tensor, wanted: Tensor, generator: Generator) -> list[Tensor]:
    """Find signs ``(2, d)`` per side for which the weights ``(2, 2, d)`` of equal signs sum to ``wanted``.

    Random flips are kept where they do not increase the largest gap.
    """
    signs = [
        torch.randint(2, wanted.shape[:1] + weights.shape[2:], generator=generator) * 2 - 1 for _ in "xy"
    ]
    flips = torch.stack(
        [torch.randint(size, (_FLIPS,), generator=generator) for size in (2, 2, weights.shape[2])]
    )

    def gap() -> float:
        same = signs[0].unsqueeze(1) == signs[1]
        return float(((weights * same).sum(-1) - wanted).abs().max())

    best = gap()
    for side, cluster, k in flips.T.tolist():
        signs[side][cluster, k] *= -1
        if (found := gap()) <= best:
            best = found
        else:
            signs[side][cluster, k] *= -1
    return signs

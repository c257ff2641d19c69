"""Block-sparse attention: each block of queries meets the blocks of keys whose means score highest.

Blocks are consecutive tokens, with the means of their keys as landmarks; kept blocks are met exactly and all others
are left out.

FLOPs per token with blocks of b, of which n are kept: 2nb(d + e) for pairs, 2d L/b² for scores of means, 2d for
means.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from benchmarks.field.method import Method

__all__ = ["Blocks"]


@dataclass(frozen=True)
class Blocks(Method):
    """Attention to ``kept`` blocks of keys per block of queries; the length is a multiple of ``block``."""

    kept: int
    block: int = 16

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int = 0) -> Tensor:
        queries, keys, values = (u.unflatten(-2, (-1, self.block)) for u in (q, k, v))
        scores = queries.mean(-2) @ keys.mean(-2).mT  # (..., blocks, blocks)
        places = scores.topk(min(self.kept, scores.shape[-1]), -1).indices
        near, of_near = (_chosen(u, places) for u in (keys, values))
        return ((queries @ near.mT).softmax(-1) @ of_near).flatten(-3, -2)

    @override
    def flops(self, length: int, dim: int, value_dim: int) -> float:
        pairs = 2 * min(self.kept * self.block, length) * (dim + value_dim)
        return pairs + 2 * dim * length / self.block**2 + 2 * dim


def _chosen(blocks: Tensor, places: Tensor) -> Tensor:
    """Collect blocks: ``(..., n, b, d), (..., n, kept) -> (..., n, kept · b, d)``."""
    flat = places.flatten(-2)[..., None, None].expand(*places.shape[:-2], -1, *blocks.shape[-2:])
    return blocks.gather(-3, flat).unflatten(-3, places.shape[-2:]).flatten(-3, -2)

"""Linformer (Wang et al., 2020): softmax(Q (EK)ᵀ) EV with E of n rows; nothing is trained, so E is fixed.

E averages n segments of the sequence, or is Gaussian. The rows of a Gaussian E have variance 1/L in Wang et al.'s lemma
on random projections; keys EK of trained attention are then sums with signs.

FLOPs per token: 2n(d + e) for attention; d + e for averages, 2n(d + e) for a dense E.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor
from typing_extensions import override

from benchmarks.field.method import Method, segment_means, softmax_attention

__all__ = ["Linformer"]


@dataclass(frozen=True)
class Linformer(Method):
    """Attention to ``rows`` projections of keys and values."""

    rows: int
    projection: Literal["averages", "random"] = "averages"

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int = 0) -> Tensor:
        return softmax_attention(q, self.projected(k), self.projected(v))

    def projected(self, u: Tensor) -> Tensor:
        """Project along the length: ``(..., L, d) -> (..., rows, d)``."""
        if self.projection == "averages":
            return segment_means(u, self.rows)
        length = u.shape[-2]
        matrix = torch.randn(self.rows, length, generator=Generator().manual_seed(0)) / length**0.5
        return matrix.to(u) @ u

    @override
    def flops(self, length: int, dim: int, value_dim: int) -> float:
        dense = self.projection == "random"
        return 2 * self.rows * (dim + value_dim) * (2 if dense else 1) + (0 if dense else dim + value_dim)

"""Nyströmformer (Xiong et al., 2021): softmax(QK̃ᵀ) · pinv(softmax(Q̃K̃ᵀ)) · softmax(Q̃Kᵀ) V.

Landmarks Q̃ and K̃ are means of n segments; the pseudo-inverse is iterative.

FLOPs per token: 2nd for QK̃ᵀ, 2nd + 2ne for softmax(Q̃Kᵀ)V, 2ne for the last product; over all tokens 2n²d for Q̃K̃ᵀ,
8n³ per iteration, and 2n²e.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from benchmarks.field.method import Method, segment_means, softmax_attention

__all__ = ["Nystrom", "iterative_inverse"]


def iterative_inverse(a: Tensor, iterations: int) -> Tensor:
    """Approximate the pseudo-inverse of matrices with non-negative entries (Razavi et al., 2014), third order."""
    eye = torch.eye(a.shape[-1], dtype=a.dtype)
    z = a.mT / (a.sum(-1).amax(-1) * a.sum(-2).amax(-1))[..., None, None]
    for _ in range(iterations):
        az = a @ z
        z = z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4
    return z


@dataclass(frozen=True)
class Nystrom(Method):
    """Nyström attention with ``landmarks`` landmarks."""

    landmarks: int
    iterations: int = 6

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int = 0) -> Tensor:
        queries, keys = segment_means(q, self.landmarks), segment_means(k, self.landmarks)
        inverse = iterative_inverse((queries @ keys.mT).softmax(-1), self.iterations)
        return (q @ keys.mT).softmax(-1) @ (inverse @ softmax_attention(queries, k, v))

    @override
    def flops(self, length: int, dim: int, value_dim: int) -> float:
        n = self.landmarks
        once = 2 * n**2 * (dim + value_dim) + 8 * n**3 * self.iterations
        return 4 * n * (dim + value_dim) + once / length

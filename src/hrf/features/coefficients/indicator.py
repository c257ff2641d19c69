"""The indicator of a pair of clusters (paper, Sec. 2.4): a coefficient of 0 or 1, without randomness."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from hrf import theory
from hrf.features import flops
from hrf.features.base import Side
from hrf.features.coefficients.base import Coefficient
from hrf.features.flops import Flops
from hrf.fitting import assign
from hrf.numerics import Features

__all__ = ["Indicator"]


class Indicator(Coefficient):
    """λ = 1 if x lies in query cluster i and y in key cluster j, else 0 (paper, Sec. 2.4). No randomness.

    Args:
        query_centers: ``(n_q, d)``, or ``(H, n_q, d)`` for heads; a vector belongs to the nearest centre.
        key_centers: ``(n_k, d)``, or ``(H, n_k, d)``.
        pair: (i, j).
    """

    feature_dim = 1
    query_centers: Tensor
    key_centers: Tensor

    def __init__(self, query_centers: Tensor, key_centers: Tensor, *, pair: tuple[int, int]) -> None:
        super().__init__()
        shapes = tuple(query_centers.shape), tuple(key_centers.shape)
        if len(shapes[0]) not in (2, 3) or shapes[0][:-2] != shapes[1][:-2] or shapes[0][-1] != shapes[1][-1]:
            raise ValueError(
                f"the centres have shapes {shapes[0]} and {shapes[1]}; expected (n_q, d) and (n_k, d), "
                "both with the same leading axis for heads if there is one"
            )
        i, j = pair
        if not (0 <= i < shapes[0][-2] and 0 <= j < shapes[1][-2]):
            raise ValueError(f"pair is {pair}; expected indices below {shapes[0][-2]} and {shapes[1][-2]}")
        self.dim, self.heads, self.pair = (
            shapes[0][-1],
            (shapes[0][0] if len(shapes[0]) == 3 else None),
            (i, j),
        )
        self.register_buffer("query_centers", query_centers.detach().clone())
        self.register_buffer("key_centers", key_centers.detach().clone())

    @override
    def scaled(self, x: Tensor, side: Side) -> Features:
        centers, index = (
            (self.query_centers, self.pair[0]) if side == "query" else (self.key_centers, self.pair[1])
        )
        nearest = assign(x, centers.to(x.dtype)).unsqueeze(-1)
        return Features((nearest == index).to(x.dtype), torch.zeros_like(x[..., :1]))

    @override
    def _mean(self, x: Tensor, y: Tensor) -> theory.Scaled:
        return theory.Scaled.plain(self.scaled_estimate(x, y).values)

    @override
    def _moments(self, x: Tensor, y: Tensor) -> theory.Moments:
        mean = self._mean(x, y)
        return theory.Moments(mean, mean.times(0))

    @override
    def _flops(self) -> Flops:
        """Count distances to the centres."""
        return flops.distances(max(self.query_centers.shape[-2], self.key_centers.shape[-2]), self.dim)

    @override
    def config(self) -> dict[str, Any]:
        return {"query_centers": self.query_centers, "key_centers": self.key_centers, "pair": self.pair}

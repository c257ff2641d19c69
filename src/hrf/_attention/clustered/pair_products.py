"""Sums with features that each token has for every cluster of the other side, and weights beside them.

Weights are multiplied with the values, which are narrower than the features.
"""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from hrf._attention.clustered.outer_products import BlockProducts

__all__ = ["PairProducts"]


class PairProducts(BlockProducts):
    """The products W ``(N, size, k·D)`` of N blocks, weights ``(N, size, k)`` and features ``(N, k, size, D)``."""

    features: Tensor

    @override
    def sums(self, values: Tensor, n_segments: int) -> Tensor:
        _, k, _, width = self.features.shape
        states = values.new_zeros(n_segments, k, width, values.shape[-1])
        for some in self.pieces:
            weighted = self._weights(some) * values[some].unsqueeze(1)
            states.index_add_(0, self.segment[some], self.features[some].mT @ weighted)
        return states.flatten(1, 2)

    @override
    def products(self, states: Tensor) -> Tensor:
        out = states.new_empty(*self.weights.shape[:2], states.shape[-1])
        for some in self.pieces:
            torch.sum(
                self._weights(some) * (self.features[some] @ self._states(states, some)), 1, out=out[some]
            )
        return out

    @override
    def pull(self, values: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        weights, features = torch.empty_like(self.weights), torch.empty_like(self.features)
        for some in self.pieces:
            own, v = self._states(states, some), values[some].unsqueeze(1)
            torch.sum((self.features[some] @ own) * v, -1, out=weights[some].mT)
            torch.matmul(self._weights(some) * v, own.mT, out=features[some])
        return weights, features

    def _weights(self, some: slice) -> Tensor:
        """Return weights ``(n, k, size, 1)``."""
        return self.weights[some].mT.unsqueeze(-1)

    def _states(self, states: Tensor, some: slice) -> Tensor:
        """Return the states of blocks, ``(n, k, D, c)``."""
        return states.index_select(0, self.segment[some]).unflatten(1, (self.weights.shape[-1], -1))

"""Sums with all products W of a weight and a feature, which are far wider than both: W exists for a few blocks only.

Writing adds Wᵀv to the states of segments, reading returns W times a state, and each is the other's gradient. The
gradient of W itself is an outer product, from which weights and features take their shares block by block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["OuterProducts"]


class OuterProducts(NamedTuple):
    """The products W ``(N, size, k·D)`` of N blocks.

    Attributes:
        weights: ``(N, size, k)``.
        features: ``(N, size, D)``; ``None`` is 1.
        segment: of each block, ``(N,)``.
        pieces: batches of blocks, each multiplied at once.
    """

    weights: Tensor
    features: Tensor | None
    segment: Tensor
    pieces: list[slice]

    def write(self, values: Tensor, n_segments: int) -> Tensor:
        """Sum Wᵀv over the blocks of each segment: ``(N, size, c) -> (n_segments, k·D, c)``."""
        if not torch.is_grad_enabled():
            return self.sums(values, n_segments)
        return _Write.apply(values, n_segments, *self)

    def read(self, states: Tensor) -> Tensor:
        """Return W times the state of the block's segment: ``(n_segments, k·D, c) -> (N, size, c)``."""
        if not torch.is_grad_enabled():
            return self.products(states)
        return _Read.apply(states, *self)

    def sums(self, values: Tensor, n_segments: int) -> Tensor:
        """Run `write` without autograd."""
        width = self.weights.shape[-1] * (1 if self.features is None else self.features.shape[-1])
        states = values.new_zeros(n_segments, width, values.shape[-1])
        for some in self.pieces:
            states.index_add_(0, self.segment[some], self._products(some).mT @ values[some])
        return states

    def products(self, states: Tensor) -> Tensor:
        """Run `read` without autograd."""
        out = states.new_empty(*self.weights.shape[:2], states.shape[-1])
        for some in self.pieces:
            torch.bmm(self._products(some), self._states(states, some), out=out[some])
        return out

    def pull(self, values: Tensor, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of weights and features if that of W is values · statesᵀ."""
        weights = torch.empty_like(self.weights)
        features = None if self.features is None else torch.empty_like(self.features)
        for some in self.pieces:
            grad = values[some] @ self._states(states, some).mT
            if self.features is None or features is None:
                weights[some] = grad
                continue
            grad = grad.view(*weights[some].shape, -1)  # (n, size, k, D)
            weights[some] = (grad @ self.features[some].unsqueeze(-1)).squeeze(-1)
            features[some] = (self.weights[some].unsqueeze(-2) @ grad).squeeze(-2)
        return weights, features

    def _products(self, some: slice) -> Tensor:
        if self.features is None:
            return self.weights[some]
        return (self.weights[some].unsqueeze(-1) * self.features[some].unsqueeze(-2)).flatten(-2)

    def _states(self, states: Tensor, some: slice) -> Tensor:
        return states.index_select(0, self.segment[some])


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, n_segments: int, *wide: Any) -> Tensor:
        weights, features, segment, ctx.pieces = wide
        ctx.save_for_backward(values, weights, features, segment)
        return OuterProducts(*wide).sums(values, n_segments)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        values, weights, features, segment = ctx.saved_tensors
        products = OuterProducts(weights, features, segment, ctx.pieces)
        return products.products(grad), None, *products.pull(values, grad), None, None


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, *wide: Any) -> Tensor:
        weights, features, segment, ctx.pieces = wide
        ctx.save_for_backward(states, weights, features, segment)
        return OuterProducts(*wide).products(states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        states, weights, features, segment = ctx.saved_tensors
        products = OuterProducts(weights, features, segment, ctx.pieces)
        return products.sums(grad, len(states)), *products.pull(grad, states), None, None

"""Sums with products W of weights and features, which are far wider than values: W exists for a few blocks only.

Writing adds Wᵀv to the states of segments, reading returns W times a state, and each is the other's gradient. The
gradient of W itself is an outer product, from which weights and features take their shares block by block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

__all__ = ["BlockProducts", "OuterProducts"]


class BlockProducts:
    """The products W ``(N, size, k·D)`` of N blocks.

    Args:
        weights: ``(N, size, k)``.
        features: what the kind of products has beside weights.
        segment: of each block, ``(N,)``.
        pieces: batches of blocks, each multiplied at once.
    """

    def __init__(
        self, weights: Tensor, features: Tensor | None, segment: Tensor, pieces: list[slice]
    ) -> None:
        self.weights, self.features, self.segment, self.pieces = weights, features, segment, pieces

    def write(self, values: Tensor, n_segments: int) -> Tensor:
        """Sum Wᵀv over the blocks of each segment: ``(N, size, c) -> (n_segments, k·D, c)``."""
        if not torch.is_grad_enabled():
            return self.sums(values, n_segments)
        return _Write.apply(
            values, n_segments, type(self), self.weights, self.features, self.segment, self.pieces
        )

    def read(self, states: Tensor) -> Tensor:
        """Return W times the state of the block's segment: ``(n_segments, k·D, c) -> (N, size, c)``."""
        if not torch.is_grad_enabled():
            return self.products(states)
        return _Read.apply(states, type(self), self.weights, self.features, self.segment, self.pieces)

    def sums(self, values: Tensor, n_segments: int) -> Tensor:
        """Run `write` without autograd."""
        raise NotImplementedError

    def products(self, states: Tensor) -> Tensor:
        """Run `read` without autograd."""
        raise NotImplementedError

    def pull(self, values: Tensor, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of weights and features if that of W is values · statesᵀ."""
        raise NotImplementedError


class OuterProducts(BlockProducts):
    """All products of a weight and a feature ``(N, size, D)``; ``None`` is 1."""

    @override
    def sums(self, values: Tensor, n_segments: int) -> Tensor:
        width = self.weights.shape[-1] * (1 if self.features is None else self.features.shape[-1])
        states = values.new_zeros(n_segments, width, values.shape[-1])
        for some in self.pieces:
            states.index_add_(0, self.segment[some], self._products(some).mT @ values[some])
        return states

    @override
    def products(self, states: Tensor) -> Tensor:
        out = states.new_empty(*self.weights.shape[:2], states.shape[-1])
        for some in self.pieces:
            torch.bmm(self._products(some), self._states(states, some), out=out[some])
        return out

    @override
    def pull(self, values: Tensor, states: Tensor) -> tuple[Tensor, Tensor | None]:
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
    def forward(ctx: Any, values: Tensor, n_segments: int, kind: type[BlockProducts], *wide: Any) -> Tensor:
        weights, features, segment, ctx.pieces = wide
        ctx.kind = kind
        ctx.save_for_backward(values, weights, features, segment)
        return kind(*wide).sums(values, n_segments)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        values, *wide = ctx.saved_tensors
        products = ctx.kind(*wide, ctx.pieces)
        return products.products(grad), None, None, *products.pull(values, grad), None, None


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, kind: type[BlockProducts], *wide: Any) -> Tensor:
        weights, features, segment, ctx.pieces = wide
        ctx.kind = kind
        ctx.save_for_backward(states, weights, features, segment)
        return kind(*wide).products(states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        states, *wide = ctx.saved_tensors
        products = ctx.kind(*wide, ctx.pieces)
        return products.sums(grad, len(states)), None, *products.pull(grad, states), None, None

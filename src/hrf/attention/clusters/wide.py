"""Matrix products with all products of a weight and a feature, which are far wider than both: they are not kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["wide_product"]


def wide_product(weights: Tensor, features: Tensor, other: Tensor, *, transposed: bool = False) -> Tensor:
    """W @ other, or Wᵀ @ other, with the products W ``(n, size, k·D)``.

    Args:
        weights: ``(n, size, k)``.
        features: ``(n, size, D)``.
        other: ``(n, k·D, c)``, or ``(n, size, c)``.
        transposed: take Wᵀ.
    """
    return _WideProduct.apply(weights, features, other, transposed)


class _WideProduct(torch.autograd.Function):
    """The backward pass multiplies weights and features again."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, features: Tensor, other: Tensor, transposed: bool) -> Tensor:
        ctx.save_for_backward(weights, features, other)
        ctx.transposed = transposed
        wide = _wide(weights, features)
        return (wide.mT if transposed else wide) @ other

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        weights, features, other = ctx.saved_tensors
        wide = _wide(weights, features)
        grad_other = (wide if ctx.transposed else wide.mT) @ grad
        left, right = (other, grad) if ctx.transposed else (grad, other)
        grad_wide = torch.matmul(left, right.mT, out=wide).view(*weights.shape, -1)
        grad_weights = (grad_wide @ features.unsqueeze(-1)).squeeze(-1)
        grad_features = (weights.unsqueeze(-2) @ grad_wide).squeeze(-2)
        return grad_weights, grad_features, grad_other, None


def _wide(weights: Tensor, features: Tensor) -> Tensor:
    return (weights.unsqueeze(-1) * features.unsqueeze(-2)).flatten(-2)

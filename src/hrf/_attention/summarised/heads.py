"""Tensors of all heads at once, padding included."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["Heads"]


class Heads(NamedTuple):
    """Queries, keys and values of N heads (batch and heads in one axis); once `scaled`, a weight is exp(xᵀy).

    Attributes:
        x: queries ``(N, L, d)``.
        y: keys ``(N, S, d)``.
        v: values ``(N, S, d_v)``.
        queries: booleans ``(N, L)``, False for padding.
        keys: booleans ``(N, S)``, False for padding. Padding may hold anything finite.
    """

    x: Tensor
    y: Tensor
    v: Tensor
    queries: Tensor
    keys: Tensor

    def scaled(self, root: float) -> Heads:
        """Multiply queries and keys by √scale."""
        return self._replace(x=self.x * root, y=self.y * root)

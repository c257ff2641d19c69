"""The contract of a method, and what several methods share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.minilm import Attention

__all__ = ["Family", "Method", "segment_means", "softmax_attention"]


class Method(ABC):
    """Attention without the matrix of all pairs."""

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int = 0) -> Tensor:
        """Attend with the kernel exp(qᵀk): ``(..., L, d), (..., L, d), (..., L, e) -> (..., L, e)``.

        ``layer`` is for methods that were fitted to the layers of a model.
        """

    @abstractmethod
    def flops(self, length: int, dim: int, value_dim: int) -> float:
        """Count operations per token and head."""

    def measure_share(self, layers: Sequence[Attention]) -> None:
        """Measure the share of exact pairs at this length, if `flops` depends on it: call this first."""
        return


class Family(NamedTuple):
    """A method of any size.

    Attributes:
        name: what the table calls it.
        make: from a size to a method.
        largest: from a length to the largest size that makes sense; ``None`` for one size only.
        size: what the size counts.
    """

    name: str
    make: Callable[[int], Method]
    largest: Callable[[int], int] | None = None
    size: str = ""


def softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend exactly."""
    return (q @ k.mT).softmax(-1) @ v


def segment_means(u: Tensor, n: int) -> Tensor:
    """Average ``n`` consecutive segments of equal length, up to one: ``(..., L, d) -> (..., n, d)``."""
    segment = torch.arange(u.shape[-2]) * n // u.shape[-2]
    sums = u.new_zeros(*u.shape[:-2], n, u.shape[-1]).index_add(-2, segment, u)
    return sums / segment.bincount(minlength=n)[:, None]

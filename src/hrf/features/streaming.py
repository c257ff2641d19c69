"""Features written block by block: a block is small enough to be finished in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from types import EllipsisType
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Block", "Table"]

# Indices of sequences, of all heads, of rows and of columns.
Block = tuple[slice, EllipsisType, slice, slice]


class Table(NamedTuple):
    """Inputs and outputs with their leading axes folded into one, and the size of a block.

    Heads keep an axis of their own. Without heads all inputs are one long sequence.

    Attributes:
        inputs: ``(B, L, d)``, or ``(B, H, L, d)`` with heads.
        out: uninitialised, ``(B, L, D)`` or ``(B, H, L, D)``.
        n_sequences: how many of the B sequences a block has.
        n_rows: how many of the L rows a block has, of every head.
    """

    inputs: Tensor
    out: Tensor
    n_sequences: int
    n_rows: int

    @classmethod
    def of(cls, x: Tensor, heads: int | None, width: int, n_floats: int) -> Table:
        """Fold ``x (..., L, d)`` and lay out ``width`` features per row, in blocks of ``n_floats``."""
        if heads is None:
            shape: tuple[int, ...] = (1, x.shape[:-1].numel())
        else:
            shape = (x.shape[:-3].numel(), heads, x.shape[-2])
        n_rows = max(1, n_floats // ((heads or 1) * width))
        n_sequences = max(1, n_rows // max(1, shape[-1]))
        return cls(x.reshape(*shape, x.shape[-1]), x.new_empty(*shape, width), n_sequences, n_rows)

    def blocks(self) -> Iterator[Block]:
        """Yield the index of each block."""
        for first in range(0, len(self.out), self.n_sequences):
            for start in range(0, self.out.shape[-2], self.n_rows):
                yield (
                    slice(first, first + self.n_sequences),
                    ...,
                    slice(start, start + self.n_rows),
                    slice(None),
                )

    def scratch(self) -> Tensor:
        """Allocate a buffer as large as the largest block, which stays in the cache from block to block."""
        return torch.empty_like(self.out[: self.n_sequences, ..., : self.n_rows, :])

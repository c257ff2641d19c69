"""Sign bits in groups, whose values are codes."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["SIZE", "Codes"]

SIZE = 64  # tokens of a block, unless that is more than half of those of a code
_BITS = 2, 8  # of a group, at least and at most: its states are as many as its codes


class Codes(NamedTuple):
    """How n bits are cut into G groups of g, the last of which may have fewer.

    Attributes:
        weights: of each bit in the code of each group, ``(G, n)``.
        same: which of the 2g values of bits each code has, ``(G, 2g, 2^g)``; none of bits that there are not.
        differ: those it has not, likewise.
    """

    weights: Tensor
    same: Tensor
    differ: Tensor

    @classmethod
    def of(cls, n: int, length: int, like: Tensor) -> Codes:
        """As few groups as there can be with about a block for each code, of so many tokens."""
        least, most = _BITS
        n_groups = -(-n // min(max(int(math.log2(max(1, length / SIZE))), least), most))
        g = -(-n // n_groups)
        bits = torch.arange(n_groups * g, device=like.device).view(n_groups, 1, g)
        weights = torch.block_diag(*(2.0 ** (group % g) for group in bits))[:, :n]
        ones = torch.arange(2**g, device=like.device) >> bits[0].mT & 1  # (g, 2^g)
        real = (bits < n).repeat(1, 1, 2).mT
        same = torch.cat([ones, 1 - ones])
        return cls(*(table.to(like.dtype) for table in (weights, same * real, (1 - same) * real)))

    @property
    def shape(self) -> tuple[int, int]:
        """G and 2^g."""
        return self.same.shape[0], self.same.shape[2]

    def of_signs(self, products: Tensor) -> Tensor:
        """The codes of tokens with products ``(R, n, L)``: ``(R, G, L)``."""
        return (self.weights @ (products >= 0).to(products.dtype)).long()

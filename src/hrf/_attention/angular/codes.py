"""Sign bits in groups, whose values are codes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hrf import tuning

__all__ = ["Codes", "split"]


class Codes(NamedTuple):
    """A partition of n bits into G groups of g bits; the last group may have fewer.

    Attributes:
        bits: number of bits per group, ``(G,)``.
        weights: of each bit in the code of each group, ``(G, n)``.
        same: which of the 2g values of bits each code has, ``(G, 2g, 2^g)``; zeros for missing bits.
        differ: which values each code does not have, likewise.
    """

    bits: Tensor
    weights: Tensor
    same: Tensor
    differ: Tensor

    @classmethod
    def of(cls, n: int, n_codes: float, like: Tensor) -> Codes:
        """Cut into as few groups as possible with at most ``n_codes`` codes each."""
        least, most = tuning.CODE_BITS
        n_groups = -(-n // min(max(int(math.log2(max(1, n_codes))), least), most))
        g = -(-n // n_groups)
        bits = torch.arange(n_groups * g, device=like.device).view(n_groups, 1, g)
        weights = torch.block_diag(*(2.0 ** (group % g) for group in bits))[:, :n]
        ones = torch.arange(2**g, device=like.device) >> bits[0].mT & 1  # (g, 2^g)
        real = (bits < n).repeat_interleave(2, -1).mT
        same = torch.stack([1 - ones, ones], 1).flatten(0, 1)
        tables = (table.to(like.dtype) for table in (weights, same * real, (1 - same) * real))
        return cls((bits < n).sum((1, 2)), *tables)

    @property
    def shape(self) -> tuple[int, int]:
        """G and 2^g."""
        return self.same.shape[0], self.same.shape[2]

    def of_signs(self, products: Tensor) -> Tensor:
        """Return the codes of tokens with products ``(R, L, n)``: ``(R, G, L)``."""
        return (self.weights @ (products >= 0).to(products.dtype).mT).long()

    def counts(self, codes: Tensor) -> Tensor:
        """Count tokens with each value of each bit, given codes ``(R, G, L)``: ``(R, G, 2g)``."""
        n_groups, n_codes = self.shape
        group = torch.arange(len(codes) * n_groups, device=codes.device).view(-1, n_groups, 1)
        n = group.numel() * (n_codes + 1)  # the last of each counts tokens left out
        by_code = torch.bincount((codes + (n_codes + 1) * group).flatten(), minlength=n).view(
            -1, n_groups, n_codes + 1
        )
        return (self.same @ by_code[..., :-1, None].to(self.same.dtype)).squeeze(-1)

    def spread(self, states: Tensor, widths: Sequence[int], out: Tensor | None = None) -> Tensor:
        """Return what each code reads of states by bit: ``(R, G, 2g, ·) -> (R, G, 2^g, ·)``.

        For the first base it is the sum of the states of the other value of each bit, for the second that of its own
        value; ``widths`` says how columns divide between the bases. No difference is taken: a base whose weight is 0
        for all keys gets exactly 0.
        """
        same, differ = (table.mT.repeat(len(states), 1, 1) for table in (self.same, self.differ))
        into = [None, None] if out is None else split(out.flatten(0, 1), widths)
        parts = [
            torch.bmm(table, part, out=place)
            for table, part, place in zip(
                (differ, same), split(states.flatten(0, 1), widths), into, strict=True
            )
        ]
        return torch.cat(parts, -1).unflatten(0, states.shape[:2]) if out is None else out


def split(states: Tensor, widths: Sequence[int]) -> Sequence[Tensor]:
    """Split columns of numbers per feature by base."""
    each = states.shape[-1] // sum(widths)
    return states.split([each * width for width in widths], -1)

"""Tokens of one label side by side: blocks of a fixed size, so that one batched product serves all labels.

A segment is what one row (a head of one sequence) has of one label. It is cut into blocks; only the last of
them is not full, so the work is that of the tokens plus half a block a segment, however uneven the labels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["Blocks"]


class Blocks(NamedTuple):
    """Tokens by segment, for R rows of L tokens with G labels each.

    Attributes:
        members: token r·L + l at each place, ``(N, size)``; places left over repeat the block's first.
        filled: which places hold a token, ``(N, size)``.
        segment: (r·G + g)·n_labels + label of each block, ascending, ``(N,)``.
        counts: number of tokens in each segment, ``(R, G, n_labels)``.
        place: where each token is among all N·size places, ``(R, G, L)``; anywhere if it is left out.
        first: the first block of each row, and N: R + 1 numbers.
    """

    members: Tensor
    filled: Tensor
    segment: Tensor
    counts: Tensor
    place: Tensor
    first: list[int]

    @classmethod
    def of(cls, labels: Tensor, n_labels: int, size: int) -> Blocks:
        """Blocks of tokens by ``labels (R, G, L)``; a label of ``n_labels`` leaves a token out."""
        n_rows, n_groups, length = labels.shape
        device = labels.device
        every = torch.arange(n_rows * n_groups, device=device)
        own = labels + (n_labels + 1) * every.view(n_rows, n_groups, 1)
        counts = torch.bincount(own.flatten(), minlength=len(every) * (n_labels + 1))
        counts = counts.view(n_rows, n_groups, n_labels + 1)
        n_blocks = (counts[..., :n_labels] + size - 1) // size
        first = [0, *n_blocks.sum((1, 2)).cumsum(0).tolist()]
        # Sorted tokens of a segment are neighbours, and so are their places: the two differ by a constant.
        padded = pad(n_blocks * size, (0, 1)).flatten()
        gap = padded.cumsum(0) - padded - (counts.flatten().cumsum(0) - counts.flatten())
        labels, order = labels.sort(dim=-1, stable=True)
        rank = torch.arange(labels.numel(), device=device).view(labels.shape)
        place = rank + gap[own.gather(-1, order)]
        tokens = order + length * every[:n_rows].view(-1, 1, 1)
        n_places = first[-1] * size
        members = tokens.new_full((n_places + 1,), -1)  # the last place is for those left out
        members.scatter_(0, place.masked_fill(labels == n_labels, n_places).flatten(), tokens.flatten())
        members = members[:-1].view(-1, size)
        filled = members >= 0
        return cls(
            members.where(filled, members[:, :1]),
            filled,
            torch.repeat_interleave(n_blocks.flatten()),
            counts[..., :n_labels],
            torch.empty_like(place).scatter_(-1, order, place),
            first,
        )

    def pieces(self, start: int, end: int, n_places: int) -> list[slice]:
        """Blocks of rows ``start`` to ``end``, in even pieces of about ``n_places`` places."""
        first, last = self.first[start], self.first[end]
        n_pieces = max(1, round((last - first) * self.members.shape[-1] / n_places))
        step = max(1, -(-(last - first) // n_pieces))
        return [slice(block, min(block + step, last)) for block in range(first, last, step)]

"""Tokens of one label side by side: blocks of a fixed size, so that one batched product serves all labels.

A segment is all tokens of one row (a head of one sequence) with one label. It is cut into blocks; only its last
block is not full, so the work is that of the tokens plus half a block per segment, however uneven the labels.
`LabelBlocks` holds what this loop would build::

    for row, group, label in segments:                      # in this order
        tokens = [l for l in range(L) if labels[row, group, l] == label]
        for start in range(0, len(tokens), size):           # one block each
            members.append(tokens[start : start + size])    # padded with its first token
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from hrf.numerics import Features

__all__ = ["LabelBlocks", "Part", "joined", "nothing", "parts", "with_ones"]

Part = tuple[slice, slice]  # of batch elements and of heads

_ALL = slice(None)


class LabelBlocks(NamedTuple):
    """Tokens by segment, for R rows of L tokens with G labels each.

    Attributes:
        members: token r·L + l at each place, ``(N, size)``; places left over repeat the block's first.
        filled: which places hold a token, ``(N, size)``.
        segment: (r·G + g)·n_labels + label of each block, ascending, ``(N,)``.
        counts: number of tokens in each segment, ``(R, G, n_labels)``.
        place: where each token is among all N·size places, ``(R, G, L)``; anywhere if it is left out.
    """

    members: Tensor
    filled: Tensor
    segment: Tensor
    counts: Tensor
    place: Tensor

    @classmethod
    def of(cls, labels: Tensor, n_labels: int, size: int) -> LabelBlocks:
        """Sort tokens into blocks by ``labels (R, G, L)``; a label of ``n_labels`` leaves a token out."""
        n_rows, n_groups, length = labels.shape
        every = torch.arange(n_rows * n_groups, device=labels.device)
        n_segments = len(every) * n_labels
        own = labels + n_labels * every.view(n_rows, n_groups, 1)
        own = own.masked_fill(labels == n_labels, n_segments).flatten()
        counts = torch.bincount(own, minlength=n_segments + 1)[:-1]
        n_blocks = (counts + size - 1) // size
        # Sorted tokens of a segment are neighbours, and so are their places: the two differ by a constant.
        gap = (n_blocks * size - counts).cumsum(0) - (n_blocks * size - counts)
        gaps = gap.repeat_interleave(counts)
        # The narrowest dtype is sorted fastest.
        order = (
            own.to(torch.int16 if n_segments < 1 << 15 else torch.int32)
            .sort(stable=True)
            .indices[: len(gaps)]
        )
        ranked = torch.arange(len(gaps), device=labels.device) + gaps
        tokens = torch.arange(n_rows * length, device=labels.device).view(n_rows, 1, length)
        members = order.new_full((int(n_blocks.sum()) * size,), -1)
        members.index_copy_(0, ranked, tokens.expand_as(labels).flatten().index_select(0, order))
        members = members.view(-1, size)
        filled = members >= 0
        return cls(
            members.where(filled, members[:, :1]),
            filled,
            torch.repeat_interleave(n_blocks),
            counts.view(n_rows, n_groups, n_labels),
            torch.zeros_like(own).index_copy_(0, order, ranked).view_as(labels),
        )

    def pieces(self, step: int) -> list[slice]:
        """Cut all blocks into even pieces of about ``step`` blocks."""
        n_blocks = len(self.members)
        n_pieces = max(1, round(n_blocks / max(1, step)))
        step = max(1, -(-n_blocks // n_pieces))
        return [slice(block, min(block + step, n_blocks)) for block in range(0, n_blocks, step)]

    def take(self, tokens: Tensor, some: slice = _ALL) -> Tensor:
        """Gather ``tokens (R·L, d)`` into the places of some blocks: ``(n, size, d)``."""
        members = self.members[some]
        return tokens.index_select(0, members.flatten()).view(*members.shape, tokens.shape[-1])

    def take_once(self, tokens: Tensor, some: slice = _ALL) -> Tensor:
        """Gather tokens as `take` does, with zeros in the places left over."""
        members = self.members[some]
        left_over = (~self.filled[some]).flatten().nonzero().squeeze(-1)
        return self.take(tokens, some).flatten(0, 1).index_fill_(0, left_over, 0).unflatten(0, members.shape)

    def give(self, places: Tensor) -> Tensor:
        """Go back from places ``(N, size, d)`` to tokens, for one label per token: ``(R·L, d)``."""
        return places.flatten(0, 1).index_select(0, self.place.flatten())

    def add(self, blocks: Tensor) -> Tensor:
        """Sum over the blocks of each segment: ``(N, d) -> (R·G·n_labels, d)``."""
        return blocks.new_zeros(self.counts.numel(), blocks.shape[-1]).index_add_(0, self.segment, blocks)

    def largest(self, blocks: Tensor) -> Tensor:
        """Take the maximum over the blocks of each segment, −∞ without any: ``(N, d) -> (R·G·n_labels, d)``."""
        segments = blocks.new_full((self.counts.numel(), blocks.shape[-1]), -torch.inf)
        return segments.scatter_reduce_(0, self.segment.unsqueeze(-1).expand_as(blocks), blocks, "amax")

    def lists(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """List tokens of several labels, one list after the other, and return how many tokens each list has.

        Args:
            table: which labels are in which list, booleans ``(R, n, n_labels)``, for one label per token.
        """
        counts = table * self.counts  # (R, n, n_labels)
        flat, own = counts.flatten(), self.counts.flatten()
        start = (own.cumsum(0) - own).view(self.counts.shape).expand(counts.shape).flatten()
        shift = (start - (flat.cumsum(0) - flat)).repeat_interleave(flat)
        tokens = self.members[self.filled]  # segment by segment
        return tokens[shift + torch.arange(len(shift), device=shift.device)], counts.sum(-1).flatten()


def parts(x: Tensor, y: Tensor, tokens: int) -> Iterator[Part]:
    """Cut the rows of ``(B, H, L, d)`` and ``(B, H, S, d)`` into parts of about ``tokens`` tokens, at least one row.

    A part has some heads of one batch element, or all heads of several.
    """
    size, heads = x.shape[:2]
    n_rows = max(1, tokens // max(1, x.shape[2], y.shape[2]))
    elements, some = max(1, n_rows // heads), min(n_rows, heads)
    for b in range(0, size, elements):
        for h in range(0, heads, some):
            yield slice(b, min(b + elements, size)), slice(h, min(h + some, heads))


def nothing(x: Tensor, y: Tensor, values: Tensor) -> Features:
    """Return the sums for no queries or over no keys, ``(R, L, c)``, connected to autograd."""
    x, y, values = (t.flatten(0, -3) for t in (x, y, values))
    return Features(x @ y.mT @ values, torch.zeros_like(x[..., :1]))


def with_ones(values: Tensor) -> Tensor:
    """Append a column of ones, whose sums are the denominators."""
    return pad(values, (0, 1), value=1.0)


def joined(parts: Iterable[Features], x: Tensor) -> Features:
    """Concatenate streamed sums for queries ``(..., L, d)``."""
    every = zip(*parts, strict=True)
    return Features(*(torch.cat([p.flatten(0, -2) for p in t]).unflatten(0, x.shape[:-1]) for t in every))

"""What decoding keeps: finished blocks, the unfinished chunk, and the last queries."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hrf._attention.summarised.causal.blocks import Blocks, make_blocks
from hrf._attention.summarised.causal.descent import Found
from hrf._attention.summarised.causal.levels import Level, Tokens, exact_chunk, read_levels
from hrf._attention.summarised.causal.sizes import CHUNK, MEMBERS, blocks_of, n_cells

__all__ = ["Memory"]


class Memory(NamedTuple):
    """Tokens of N key heads.

    Attributes:
        x: queries of the last positions, `MEMBERS` or all, in pieces ``(N, ·, g, d)``: for the cells of the next block.
        real: which of these positions hold no padding, ``(N, ·)``.
        own: keys and values of the positions after the blocks, ``(N, ·, d + d_v)``; fewer than a chunk once they are
            `finished`.
        seen: number of keys so far that are no padding, ``(N,)``.
        length: number of positions so far.
        blocks: N each, of the first sizes that `blocks_of` the length has, all of them once they are `finished`.
    """

    x: tuple[Tensor, ...]
    real: Tensor
    own: Tensor
    seen: Tensor
    length: int
    blocks: list[Blocks]

    @classmethod
    def empty(cls, tokens: Tokens) -> Memory:
        """Return the memory before the first token of such heads."""
        x, y, v, _, real = (u[:, :0] for u in tokens)
        seen = torch.zeros(len(x), dtype=torch.long, device=x.device)
        return cls((x,), real, torch.cat([y, v], -1), seen, 0, [])

    @property
    def room(self) -> int:
        """Number of tokens that the unfinished chunk still takes."""
        return CHUNK - self.own.shape[1]

    @property
    def real_own(self) -> Tensor:
        """Which of the positions after the blocks hold no padding."""
        return self.real[:, self.real.shape[1] - self.own.shape[1] :]

    def with_tokens(self, tokens: Tokens) -> Memory:
        """Return the memory with some more tokens, not `finished` yet."""
        return Memory(
            (*self.x, tokens.x),
            torch.cat([self.real, tokens.keys], 1),
            torch.cat([self.own, torch.cat([tokens.y, tokens.v], -1)], 1),
            self.seen + tokens.keys.sum(1),
            self.length + tokens.x.shape[1],
            self.blocks,
        )

    def read(self, x: Tensor, tolerance: float) -> Found:
        """Return what the last queries ``(N, m, g, d)`` find, in the order ``(N, m, g)``; none is before the chunk."""
        y, v = self.own.split([x.shape[-1], self.own.shape[-1] - x.shape[-1]], -1)
        sums, top, exact = (u.flatten(0, 2) for u in exact_chunk(self.real_own, x, y, v))
        found = Found(sums, top, exact, sums.new_zeros(len(sums), sums.shape[-1] + 1))
        seen = self.seen_by(x.shape[1])[..., None].expand(x.shape[:3]).to(x.dtype).flatten()
        x = x.flatten(1, 2)
        rows = torch.arange(len(sums), device=x.device)
        return read_levels(found, [Level(blocks, x, rows) for blocks in self.blocks], seen, tolerance)

    def seen_by(self, last: int) -> Tensor:
        """Return the numbers of keys that the last queries see, ``(N, last)``."""
        if last == 1:
            return self.seen[:, None]
        later = self.real[:, -last:].flip(1).cumsum(1).flip(1)
        return self.seen[:, None] - later + self.real[:, -last:]

    def finished(self) -> Memory:
        """Make blocks of all chunks that are full; blocks of equal sizes become one."""
        if self.room > 0:
            return self
        spans, n_before = blocks_of(self.length), len(self.blocks)
        sizes = [block.clusters.tokens[0].numel() for block in self.blocks]
        kept = 0
        while kept < min(n_before, len(spans)) and sizes[kept] == spans[kept][1]:
            kept += 1
        own, real = (
            torch.cat(u, 1)
            for u in zip(*(_in_order(b) for b in self.blocks[kept:]), (self.own, self.real_own), strict=True)
        )
        x = torch.cat(self.x, 1)
        blocks = self.blocks[:kept]
        for first, size in spans[kept:]:
            last = first + size - self.length  # counted from the end, as are all others
            of_cells = (
                _between(x, last - min(size, MEMBERS), last),
                _between(self.real, last - min(size, MEMBERS), last),
            )
            blocks = [
                *blocks,
                _block(*of_cells, _between(own, last - size, last), _between(real, last - size, last)),
            ]
        finished = self.length // CHUNK * CHUNK - self.length
        recent = tuple(u[:, -MEMBERS:] for u in (x, self.real))
        return Memory((recent[0],), recent[1], _between(own, finished, 0), self.seen, self.length, blocks)


def _between(u: Tensor, first: int, last: int) -> Tensor:
    """Return ``u[:, first:last]``, both counted from the end: 0 is the end."""
    return u[:, u.shape[1] + first : u.shape[1] + last]


def _block(x: Tensor, members: Tensor, pairs: Tensor, real: Tensor) -> Blocks:
    groups, dim = x.shape[2:]
    y, v = pairs.split([dim, pairs.shape[-1] - dim], -1)
    return make_blocks(x.flatten(1, 2), members.repeat_interleave(groups, 1), y, v, real, n_cells(groups))


def _in_order(block: Blocks) -> tuple[Tensor, Tensor]:
    """Return keys and values of a block in their order, ``(N, n, d + d_v)``, and which are no padding."""
    length, filled = block.clusters.tokens[0].numel(), block.clusters.filled[..., None]
    pairs = block.clusters.put(torch.cat([block.keys, block.values], -1), length)
    return pairs, block.clusters.put(filled.to(pairs.dtype), length)[..., 0] > 0

"""Causal summarised attention in compiled loops, in float32: all blocks of a head in one array each."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from hrf import tuning
from hrf._attention import loops
from hrf._attention.summarised.causal.blocks import Blocks
from hrf._attention.summarised.causal.levels import Tokens, make_levels
from hrf._attention.summarised.causal.memory import Memory
from hrf._attention.summarised.causal.sizes import CHUNK, WIDTH

__all__ = ["Forest", "attend_compiled", "read_compiled", "serves"]


def serves(tokens: Tokens) -> bool:
    """Whether the loops can serve these tokens, whose outputs need no gradients."""
    tensors = tokens[:3]
    traced = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    readable = loops.serves(*tensors) and all(t.dtype == torch.float32 for t in tensors)
    return readable and not traced and tokens.x.numel() > 0


class Forest(NamedTuple):
    """Blocks of N key heads, of any sizes, one after the other.

    Attributes:
        blocks: number of keys, first row of the table and first cluster of each block, ``(B, 3)``.
        centre: r, ``(N, B, G, d)``.
        placed_centre: r R, likewise.
        root: R, ``(N, B, d, d)``.
        table: ``(N, ·, d + d_v + EXTRA)``.
        pairs: keys and values by cluster, ``(N, ·, d + d_v)``.
        counts: keys of each cluster, ``(N, ·)``.
    """

    blocks: Tensor
    centre: Tensor
    placed_centre: Tensor
    root: Tensor
    table: Tensor
    pairs: Tensor
    counts: Tensor

    @classmethod
    def of(cls, levels: list[Blocks], n_heads: int) -> Forest:
        """Put blocks ``(N·P, …)`` of several sizes into one forest, those of the first size first."""
        parts: list[tuple[Tensor, ...]] = []
        sizes = []
        for level in levels:
            centre, root, _ = level.cells
            pairs = torch.cat([level.keys, level.values], -1).flatten(1, 2)
            counts = level.clusters.filled.sum(-1)
            table = level.table.flatten(1, 2)
            one = centre, centre @ root, root, table, pairs, counts
            parts.append(tuple(u.unflatten(0, (n_heads, -1)) for u in one))
            sizes += [(pairs.shape[1], table.shape[1], counts.shape[1])] * (len(table) // n_heads)
        numbers = torch.tensor(sizes)
        firsts = numbers[:, 1:].cumsum(0) - numbers[:, 1:]
        columns = list(zip(*parts, strict=True))
        whole = [torch.cat(column, 1) for column in columns[:3]]
        flat = [torch.cat([u.flatten(1, 2) for u in column], 1) for column in columns[3:]]
        return cls(torch.cat([numbers[:, :1], firsts], 1), *(*whole, *flat))

    def attend(
        self, x: Tensor, own: Tensor, real: Tensor, spans: Tensor, lists: Tensor, limits: Tensor
    ) -> Tensor:
        """Return outputs ``(N, m, g, d_v)``; the arguments are those of the loop."""
        from hrf._attention.loops.descent import descend

        n, m, groups, dim = x.shape
        out = x.new_empty(n, m, groups, own.shape[-1] - dim)
        jobs = torch.cartesian_prod(torch.arange(n), torch.arange(m))
        per_thread = tuning.SUMMARY_TASKS_PER_THREAD if m > 1 else 1
        parts = min(len(jobs), per_thread * torch.get_num_threads())
        arrays = loops.arrays(x, own, real, spans, lists, *self, limits, out)
        loops.each(lambda part: descend(part, *arrays), [(u.numpy(),) for u in jobs.tensor_split(parts)])
        return out


def attend_compiled(tokens: Tokens, tolerance: float) -> Tensor:
    """Return outputs ``(N, L, g, d_v)``, zeros for padding, of more tokens than a chunk has."""
    n, length = tokens.x.shape[:2]
    levels = make_levels(tokens)
    place = torch.arange(length)
    chunk = place // CHUNK
    # Of the blocks of a size, the one before chunk c has the number c // 2 in units of that size.
    digits = torch.arange(len(levels))
    counts = torch.tensor([len(level.blocks.table) // n for level in levels])
    found = (chunk[::CHUNK, None] >> (digits + 1)) + counts.cumsum(0) - counts
    lists = found.where((chunk[::CHUNK, None] >> digits) & 1 == 1, -1).sort(-1, descending=True)[0]
    forest = Forest.of([level.blocks for level in levels], n)
    limits = _limits(tolerance, tokens.keys.cumsum(1))
    out = forest.attend(
        tokens.x, torch.cat([tokens.y, tokens.v], -1), tokens.keys,
        torch.stack([chunk * CHUNK, place, chunk], -1), lists, limits,
    )  # fmt: skip
    return out.masked_fill_(~tokens.queries[..., None, None], 0)


def read_compiled(memory: Memory, forest: Forest, x: Tensor, tolerance: float) -> Tensor:
    """Return outputs of the last queries ``(N, m, g, d)`` of a memory and its forest, ``(N, m, g, d_v)``."""
    last = torch.arange(memory.own.shape[1] - x.shape[1], memory.own.shape[1])
    spans = torch.stack([torch.zeros_like(last), last, torch.zeros_like(last)], -1)
    lists = torch.arange(len(forest.blocks))[None]
    limits = _limits(tolerance, memory.seen_by(x.shape[1]))
    return forest.attend(x, memory.own, memory.real_own, spans, lists, limits)


def _limits(tolerance: float, seen: Tensor) -> Tensor:
    """Return log₂(τ √WIDTH / seen), in float32."""
    allowed = math.log2(tolerance) if tolerance > 0 else -math.inf
    return allowed + math.log2(WIDTH) / 2 - seen.clamp(min=1).float().log2()

"""Causal attention of a whole sequence: blocks of one size at a time, each read by the queries that follow it.

A block of n keys at an even multiple of n is read by the n queries that follow it: they see all of it, and no smaller
block of it. So the finished blocks of a position are the binary digits of its chunks (`sizes.blocks_of`), and its own
chunk is exact.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from hrf import tuning
from hrf._attention.recompute import recompute
from hrf._attention.summarised.causal.blocks import Blocks, make_blocks
from hrf._attention.summarised.causal.descent import Found, bounds, lowest_masses, read_blocks
from hrf._attention.summarised.causal.sizes import CHUNK, MEMBERS, n_cells
from hrf.numerics import finite

__all__ = ["Level", "Tokens", "attend", "exact_chunk", "make_levels", "read_levels", "seen_keys"]


class Tokens(NamedTuple):
    """Tokens of N key heads, scaled: a weight is exp(xᵀy). Padding holds zeros.

    Attributes:
        x: queries ``(N, L, g, d)`` of g query heads that share a key head.
        y: keys ``(N, L, d)``.
        v: values ``(N, L, d_v)``.
        queries: booleans ``(N, L)``, False for padding.
        keys: likewise.
    """

    x: Tensor
    y: Tensor
    v: Tensor
    queries: Tensor
    keys: Tensor


class Level(NamedTuple):
    """Blocks of one size, and the queries that read them.

    Attributes:
        blocks: N·P of them.
        x: queries ``(N·P, m, d)``.
        rows: rows of the queries among all, ``(N·P·m,)``; −1 is padding.
    """

    blocks: Blocks
    x: Tensor
    rows: Tensor


def attend(tokens: Tokens, tolerance: float) -> Found:
    """Return what each query finds, rows in the order ``(N, L, g)``."""
    levels = make_levels(tokens)
    return read_levels(_own_chunks(tokens), levels, seen_keys(tokens), tolerance)


def make_levels(tokens: Tokens) -> list[Level]:
    """Make the blocks of all sizes that some query reads."""
    levels, size = [], CHUNK
    while size < tokens.x.shape[1]:
        levels.append(_level(tokens, size))
        size *= 2
    return levels


def seen_keys(tokens: Tokens) -> Tensor:
    """Return how many of the keys each query sees, ``(N·L·g,)``."""
    seen = tokens.keys.cumsum(1)[..., None].expand(tokens.x.shape[:3])
    return seen.to(tokens.x.dtype).flatten()


def read_levels(found: Found, levels: list[Level], seen: Tensor, tolerance: float) -> Found:
    """Add what queries find in blocks to what they found in their own chunks."""
    total = found.top + found.sums[:, -1].detach().log()
    placed = [level.blocks.cells.place(level.x) for level in levels]
    for level, places in zip(levels, placed, strict=True):
        real = level.rows >= 0
        rows = level.rows[real]
        mass = lowest_masses(level.blocks, places).flatten()[real]
        total[rows] = torch.logaddexp(total[rows], mass)
    bound = bounds(total, tolerance, seen)
    for level, places in zip(levels, placed, strict=True):
        wanted = (level.rows >= 0).nonzero()[:, 0]
        own = bound[level.rows.clamp(min=0)].view_as(places.cell)
        part = read_blocks(level.blocks, level.x, places, own, wanted)
        found = _added(found, level.rows[wanted], part)
    return found


def _added(found: Found, rows: Tensor, part: Found) -> Found:
    """Add what some rows found."""
    top = torch.maximum(found.top[rows], part.top)
    old, new = ((u - finite(top)).exp()[:, None] for u in (found.top[rows], part.top))
    sums = found.sums.index_copy(0, rows, found.sums[rows] * old + part.sums * new)
    errors = found.errors.index_copy(0, rows, found.errors[rows] * old.square() + part.errors * new.square())
    return Found(sums, found.top.index_copy(0, rows, top), found.exact.index_add(0, rows, part.exact), errors)


def _level(tokens: Tokens, size: int) -> Level:
    """Make the blocks of a size that some query reads."""
    n, length, groups, _ = tokens.x.shape
    pairs = -(-(length - size) // (2 * size))
    later = size if pairs > 1 else length - size

    def halves(u: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(N·P, size, …)``, the tokens of the blocks, and ``(N·P, later, …)``, the tokens that follow."""
        missing = pairs * 2 * size - length
        u = torch.cat([u, u.new_zeros(n, max(0, missing), *u.shape[2:])], 1)[:, : pairs * 2 * size]
        u = u.unflatten(1, (pairs, 2 * size)).flatten(0, 1)
        return u[:, :size], u[:, size : size + later]

    past, x = halves(tokens.x)
    (y, _), (v, _), (keys, _), (members, wanted) = (
        halves(u) for u in (tokens.y, tokens.v, tokens.keys, tokens.queries)
    )
    some = slice(max(0, size - MEMBERS), size)
    of_cells = (members & keys)[:, some].repeat_interleave(groups, 1)
    blocks = make_blocks(past[:, some].flatten(1, 2), of_cells, y, v, keys, n_cells(groups))
    x = x.flatten(1, 2)
    rows = torch.arange(n * length * groups, device=x.device).view(n, length, groups)
    rows = (halves(rows + 1)[1] - 1).where(wanted[..., None], -1)
    return Level(blocks, x, rows.flatten())


def _own_chunks(tokens: Tokens) -> Found:
    """Attend exactly from each query to the keys of its own chunk that are not later."""
    n, length, groups, _ = tokens.x.shape
    missing = -length % CHUNK
    x, y, v, keys = (
        torch.cat([u, u.new_zeros(n, missing, *u.shape[2:])], 1).unflatten(1, (-1, CHUNK)).flatten(0, 1)
        for u in (tokens.x, tokens.y, tokens.v, tokens.keys)
    )
    step = max(1, tuning.DESCENT_FLOATS // (CHUNK * CHUNK * groups))
    parts = [
        recompute(partial(exact_chunk, seen), *own, learned=())
        for seen, *own in zip(*(u.split(step) for u in (keys, x, y, v)), strict=True)
    ]
    sums, top, exact = (
        torch.cat(u).unflatten(0, (n, -1)).flatten(1, 2)[:, :length].flatten(0, 2)
        for u in zip(*parts, strict=True)
    )
    return Found(sums, top, exact, sums.new_zeros(len(sums), sums.shape[-1] + 1).detach())


def exact_chunk(real: Tensor, x: Tensor, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Attend causally from the last queries ``(c, m, g, d)`` of chunks to their keys ``(c, k, d)``, m ≤ k.

    Returns:
        Sums ``(c, m, g, d_v + 1)``, their scale ``(c, m, g)``, and the numbers of keys, likewise.
    """
    m, k = x.shape[1], y.shape[1]
    later = torch.ones(m, k, dtype=torch.bool, device=x.device).triu(k - m + 1)
    seen = (real[:, None] & ~later)[:, :, None]  # (c, m, 1, k)
    logits = (x.flatten(1, 2) @ y.mT).unflatten(1, x.shape[1:3]).masked_fill(~seen, -torch.inf)
    top = logits.detach().amax(-1)
    weights = (logits - finite(top)[..., None]).exp()
    sums = (weights.flatten(1, 2) @ v).unflatten(1, x.shape[1:3])
    sums = torch.cat([sums, weights.sum(-1, keepdim=True)], -1)
    return sums, top, seen.sum(-1).expand_as(top)

"""Causal summarised attention by recursion: query i sees keys 0 … i.

The triangle of pairs is a sum of rectangles. Keys of the query's own diagonal block, `BASE` long, and the first `SINK`
keys are computed exactly. All other keys come in blocks: keys [s, s + B) are read by queries [s + B, s + 2B), for
B = BASE · 2ⁱ and s a multiple of 2B, so that a query reads one block per binary digit of the number of blocks before
it. A block is a bidirectional problem (``blocks.py``). Partial results merge by their masses.

Strictly causal: cells, exact keys and limits of a block depend on tokens before s + B, everything else on the reader
itself.

The plan of a block is constant to the gradient, cells included. The compiled core makes plans of its own; the backward
pass is `read_block`, for the plans of either.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from hrf import _core as core
from hrf._attention.summarised.blocks import (
    EVERY,
    OPENING,
    TEST,
    Cells,
    Choices,
    KeyBlock,
    Place,
    block_levels,
    block_of,
    exact_keys,
    exact_tiles,
    pairs_of,
    places,
    plan_block,
    read_block,
    tiles,
)
from hrf._attention.summarised.plan import parts_of

__all__ = ["PAD", "CausalRows", "CompiledCausal", "Found", "causal_sums"]

PAD = 16  # rows of the core have a multiple of this many numbers


class CausalRows(NamedTuple):
    """Queries, keys and values of a batch, without holes: item b has its real tokens side by side.

    Attributes:
        x: queries ``(B, H, L, d)``.
        y: keys ``(B, H_kv, S, d)``.
        v: values ``(B, H_kv, S, d_v)``.
        first_query: where the queries of each item begin, ``(B,)``.
        queries: how many they are.
        first_key: where the keys of each item begin; the last ``queries`` of them belong to the queries.
        keys: how many they are.
        earlier: every `EVERY`-th query of each item from its first key on, up to its first query in x,
            ``(B, H, ·, d)``; or None. Blocks whose members are not known are computed exactly.
        earlier_masses: their final log₂ Σ exp, ``(B, H, ·)``.
    """

    x: Tensor
    y: Tensor
    v: Tensor
    first_query: Tensor
    queries: Tensor
    first_key: Tensor
    keys: Tensor
    earlier: Tensor | None = None
    earlier_masses: Tensor | None = None

    def unknown(self, b: int) -> int:
        """Return how many of the first keys of an item have queries that are not known."""
        return 0 if self.earlier is not None else int(self.keys[b] - self.queries[b])

    def item(self, b: int, root: float) -> tuple[Tensor, Tensor, Tensor, int]:
        """Return scaled queries, keys and values of the heads of one item, and how many keys precede its queries."""
        first, count, first_key, n = (int(u[b]) for u in self[3:7])
        groups = self.x.shape[1] // self.y.shape[1]
        y, v = (u[b, :, first_key : first_key + n].repeat_interleave(groups, 0) for u in (self.y, self.v))
        return self.x[b, :, first : first + count] * root, y * root, v, n - count


@torch.no_grad()
def _by_operations(rows: CausalRows, choices: Choices) -> tuple[Tensor, Tensor, list[list[KeyBlock]]]:
    """Return outputs and log masses of all queries by PyTorch's operations, and the plans of all items."""
    out = rows.x.new_zeros(*rows.x.shape[:3], rows.v.shape[-1])
    log_masses, plans = out.new_zeros(out.shape[:3]), []
    for b in range(len(rows.x)):
        x, y, v, prefix = rows.item(b, choices.root)
        sums, mass = x.new_zeros(*x.shape[:2], v.shape[-1]), x.new_full(x.shape[:2], -torch.inf)
        for own, keys, seen in exact_tiles(y.shape[1], prefix, rows.unknown(b), choices.base):
            logits = (x[:, own] @ y[:, keys].mT).masked_fill(~seen.to(x.device), -torch.inf)
            sums[:, own], mass[:, own] = logits.softmax(-1) @ v[:, keys], logits.logsumexp(-1)
        blocks, unknown = [], rows.unknown(b)
        first = -(-prefix // EVERY) * EVERY  # the first query in x that may be a member
        early = [u.new_zeros(len(u), first // EVERY, *u.shape[2:]) for u in (x, mass)]
        if rows.earlier is not None and rows.earlier_masses is not None:
            old_x, old_mass = rows.earlier[b] * choices.root, rows.earlier_masses[b] * math.log(2)
            early = [u[:, : first // EVERY] for u in (old_x, old_mass)]
        for place in places(y.shape[1], prefix, unknown, choices.base):
            known = [
                torch.cat([old, u[:, first - prefix :: EVERY]], 1)
                for old, u in zip(early, (x, mass), strict=True)
            ]
            own = slice(place.first - prefix, place.last - prefix)
            keys, values = (u[:, place.first_key : place.end] for u in (y, v))
            blocks.append(
                plan_block((known[0], known[1]), x[:, own], mass[:, own], keys, values, place, choices)
            )
            part, top = read_block(x[:, own], keys, values, blocks[-1])
            found = (top + part[..., -1:].log())[..., 0]
            both = torch.logaddexp(mass[:, own], found)
            old, new = ((u - both).exp()[..., None] for u in (mass[:, own], found))
            sums[:, own] = sums[:, own] * old + part[..., :-1] / part[..., -1:] * new
            mass[:, own] = both
        first = int(rows.first_query[b])
        out[b, :, first : first + x.shape[1]], log_masses[b, :, first : first + x.shape[1]] = sums, mass
        plans.append(blocks)
    return out, log_masses, plans


class CompiledCausal:
    """Outputs by the compiled core, and the plans they were computed with.

    Attributes:
        out: outputs, ``(B, H, L, d_v)``; zeros for padding.
        log_masses: log₂ Σ exp of each query, ``(B, H, L)``.
        pairs: pairs that were computed exactly in blocks, per head, ``(B, H)``.
    """

    @torch.no_grad()
    def __init__(self, rows: CausalRows, choices: Choices, *, keep: bool = False) -> None:
        batch, heads, length, _ = rows.x.shape
        key_heads, n_keys, width = rows.v.shape[1:]
        n, dtype, base, tolerance = batch * heads, rows.x.dtype, choices.base, choices.tolerance
        self.rows, self.choices = rows, choices
        x, y, v = (_padded(u.detach()) for u in rows[:3])
        n_blocks = max((int(rows.keys.max()) - 1) // base, 0)
        sizes = [base << i for i in range(n_blocks.bit_length())]
        levels = torch.tensor([(block_levels(size),) * 2 for size in sizes], dtype=torch.long).reshape(-1, 2)
        turns = [choices.turns(size, dtype) for size in sizes] if choices.rotary is not None else []
        cosines, sines = (torch.stack(u) for u in zip(*turns, strict=True)) if turns else (None, None)
        self.offsets = _offsets(n_blocks, base)
        self.out = x.new_zeros(batch, heads, length, v.shape[-1])
        self.log_masses = x.new_zeros(batch, heads, length)
        plan = self._room(n, x, n_blocks, keep)
        earlier: tuple[Tensor | int | None, ...] = (None, None, 0)
        if rows.earlier is not None and rows.earlier_masses is not None:
            earlier = _padded(rows.earlier), rows.earlier_masses.contiguous(), rows.earlier.shape[2]
        fields: tuple[Tensor | int | float | None, ...] = (
            *(x.shape[-1], v.shape[-1], n, batch, heads // key_heads, length, n_keys, base, len(sizes)),
            *(0 if cosines is None else cosines.shape[-1], n_blocks),
            *(x, y, v),
            *(u.contiguous() for u in (rows.first_query, rows.queries, rows.first_key, rows.keys)),
            *(cosines, sines, levels),
            *earlier,
            *(self.out, self.log_masses, self.offsets, *plan),
            *(float(choices.root), math.log2(tolerance) if tolerance else -1e4),
            *(float(tolerance / OPENING), float(tolerance / TEST)),
            *(keep, torch.get_num_threads(), dtype == torch.float64),
        )
        self._exact, self._opened = core.found(core.run("causal_forward", *fields))
        self.out = self.out[..., :width]

    def _room(self, n: int, x: Tensor, n_blocks: int, keep: bool) -> tuple[Tensor, ...]:
        """Return tensors that receive the plans of n rows, if they are kept, and the numbers of pairs."""
        stored, cells, clusters = self.offsets[-1].tolist() if keep else (0, 0, 0)
        integers, numbers = partial(torch.zeros, dtype=torch.long), partial(torch.zeros, dtype=x.dtype)
        dim, kept = x.shape[-1], n_blocks if keep else 0
        self.pairs = integers(*x.shape[:2])
        self.order, self.key_order = (torch.zeros(n, stored, dtype=torch.int32) for _ in range(2))
        self.bounds, self.key_bounds = integers(n, cells), integers(n, clusters)
        self.sizes, self.openings = integers(n, cells), integers(n, cells)
        self.means, self.widths = numbers(n, cells, dim), numbers(n, cells)
        self.metrics, self.query_widths = numbers(n, kept, dim, dim), numbers(n, stored)
        of_tokens = self.order, self.key_order, self.bounds, self.key_bounds, self.sizes, self.openings
        return *of_tokens, self.means, self.widths, self.metrics, self.query_widths, self.pairs

    def plans(self) -> list[list[KeyBlock]]:
        """Return the plans of all items."""
        exact, opened = (F.pad(u.flatten().cumsum(0), (1, 0)) for u in (self.sizes, self.openings))
        heads = self.rows.x.shape[1]
        found = []
        for b in range(len(self.rows.x)):
            n, prefix = int(self.rows.keys[b]), int(self.rows.keys[b] - self.rows.queries[b])
            of_item = places(n, prefix, self.rows.unknown(b), self.choices.base)
            own = slice(b * heads, (b + 1) * heads)
            found.append([self._block(place, own, exact, opened) for place in of_item])
        return found

    def _block(self, place: Place, own: slice, exact: Tensor, opened: Tensor) -> KeyBlock:
        """Return the plan of a block for some heads; ``exact`` and ``opened`` say where lists of cells begin."""
        j, dim = place.end // self.choices.base, self.rows.x.shape[-1]
        (row, cell, cluster), (_, last_cell, last_cluster) = (
            self.offsets[j - 1].tolist(),
            self.offsets[j].tolist(),
        )
        readers, n_keys, count = place.last - place.first, place.end - place.first_key, last_cell - cell - 1
        bounds, key_bounds = (
            u[own, first:last].contiguous()
            for u, first, last in ((self.bounds, cell, last_cell), (self.key_bounds, cluster, last_cluster))
        )
        rank = torch.arange(readers).expand(len(bounds), -1).contiguous()
        cells_of_rows = torch.searchsorted(bounds, rank, right=True) - 1
        order = self.order[own, row : row + readers].long()
        groups, of_tiles = tiles(torch.zeros_like(order).scatter(1, order, cells_of_rows), count)
        clusters = parts_of(self.key_order[own, row : row + n_keys], key_bounds)
        width = clusters.tokens.shape[-1]
        rows_of_heads = range(*own.indices(self.out.shape[0] * self.out.shape[1]))
        mask = torch.zeros(len(bounds), count, key_bounds.shape[1] - 1, width, dtype=torch.bool)
        opens, per_cell = [], self.bounds.shape[1]
        for i, head in enumerate(rows_of_heads):
            first = head * per_cell + cell
            for c in range(count):
                rows = self._exact[exact[first + c] : exact[first + c + 1]].long()
                at = torch.searchsorted(key_bounds[i], rows, right=True) - 1
                mask[i, c, at, rows - key_bounds[i, at]] = True
            pairs = self._opened[opened[first] : opened[first + count]].long()
            opens.append(F.pad(pairs, (1, 0), value=i))
        query_width = torch.zeros(len(bounds), readers, dtype=self.means.dtype)
        query_width.scatter_(1, order, self.query_widths[own, row : row + readers])
        nothing = self.widths[own, :0]
        cells = Cells(
            self.means[own, cell : cell + count, :dim], self.widths[own, cell : cell + count], nothing,
            self.metrics[own, j - 1, :dim, :dim], nothing, nothing,
        )  # fmt: skip
        block = block_of(place, groups, of_tiles, cells, query_width, clusters, mask)
        of_head, reader, of_cluster = torch.cat(opens).unbind(-1)
        found = _opened(block, order[of_head, reader], of_head, of_cluster)
        return block._replace(plan=block.plan._replace(opened=found))


def _offsets(n_blocks: int, base: int) -> Tensor:
    """Return where the rows, cells and clusters of each block begin, ``(n_blocks + 1, 3)``."""
    found = torch.zeros(n_blocks + 1, 3, dtype=torch.long)
    for j in range(1, n_blocks + 1):
        size = base * (j & -j)
        parts = (1 << block_levels(size)) + 1
        found[j] = found[j - 1] + torch.tensor([size, parts, parts])
    return found


def _opened(block: KeyBlock, reader: Tensor, head: Tensor, cluster: Tensor) -> Tensor:
    """Return `Plan.opened` for readers by their position in the block."""
    tokens, filled = block.plan.groups
    where = torch.zeros(len(tokens), block.place.last - block.place.first, dtype=torch.long)
    spots = torch.arange(tokens.numel()).view(tokens.shape)
    heads = torch.arange(len(tokens))[:, None, None].expand_as(tokens)
    where[heads[filled], tokens[filled]] = spots[filled]
    return torch.stack([where[head, reader], cluster], -1)


def _padded(u: Tensor) -> Tensor:
    """Pad the last dimension to a multiple of `PAD`."""
    return F.pad(u, (0, -u.shape[-1] % PAD)).contiguous()


class _WithGradients(torch.autograd.Function):
    """Outputs, with gradients for the plans held fixed.

    With the final output o and log mass z of a query, every part of the sums N and M adds ⟨∂o, dN − o dM⟩ exp(−z) to
    the gradient, so parts are differentiated one after the other, in memory that grows with one of them.
    """

    @staticmethod
    def forward(ctx: Any, rows: CausalRows, choices: Choices, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        if core.serves(*inputs):
            found = CompiledCausal(rows, choices, keep=True)
            out, log_masses, plans = found.out, found.log_masses * math.log(2), found.plans()
        else:
            out, log_masses, plans = _by_operations(rows, choices)
        ctx.save_for_backward(out, log_masses, *inputs)
        ctx.indices, ctx.choices, ctx.plans = rows[3:7], choices, plans
        log2 = log_masses / math.log(2)
        ctx.mark_non_differentiable(log2)
        return out, log2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        out, log_masses, *inputs = ctx.saved_tensors
        rows, found = CausalRows(*inputs, *ctx.indices), [torch.zeros_like(u) for u in inputs]
        for b, blocks in enumerate(ctx.plans):
            x, y, v, prefix = rows.item(b, ctx.choices.root)
            first, first_key = int(rows.first_query[b]), int(rows.first_key[b])
            own, keys = slice(first, first + x.shape[1]), slice(first_key, first_key + y.shape[1])
            final = (
                grad[b, :, own],
                (grad[b, :, own] * out[b, :, own]).sum(-1, keepdim=True),
                log_masses[b, :, own, None],
            )
            grads = _gradients(x, y, v, prefix, final, blocks, ctx.choices.base)
            root, groups = ctx.choices.root, x.shape[0] // rows.y.shape[1]
            found[0][b, :, own] = grads[0] * root
            found[1][b, :, keys] = grads[1].unflatten(0, (-1, groups)).sum(1) * root
            found[2][b, :, keys] = grads[2].unflatten(0, (-1, groups)).sum(1)
        return None, None, *found


def _gradients(
    x: Tensor, y: Tensor, v: Tensor, prefix: int, final: tuple[Tensor, ...], blocks: list[KeyBlock], base: int
) -> list[Tensor]:
    """Return the gradients of the scaled queries, keys and values of an item.

    ``final`` are ∂o ``(N, L, d_v)``, ⟨∂o, o⟩ and the log masses ``(N, L, 1)``.
    """
    found = [torch.zeros_like(u) for u in (x, y, v)]
    for own, keys, seen in exact_tiles(y.shape[1], prefix, prefix, base):
        grad, inner, log_mass = (u[:, own] for u in final)
        weights = ((x[:, own] @ y[:, keys].mT) - log_mass).masked_fill(~seen.to(x.device), -torch.inf).exp()
        of_logits = weights * (grad @ v[:, keys].mT - inner)
        found[0][:, own] += of_logits @ y[:, keys]
        found[1].index_add_(1, keys.to(y.device), of_logits.mT @ x[:, own])
        found[2].index_add_(1, keys.to(y.device), weights.mT @ grad)
    for block in blocks:
        readers = slice(block.place.first - prefix, block.place.last - prefix)
        of_block = slice(block.place.first_key, block.place.end)
        grad, inner, log_mass = (u[:, readers] for u in final)
        slices = readers, of_block, of_block
        parts = [u[:, s].detach().requires_grad_() for u, s in zip((x, y, v), slices, strict=True)]
        with torch.enable_grad():
            sums, top = read_block(parts[0], parts[1], parts[2], block)
            change = ((sums[..., :-1] * grad).sum(-1, keepdim=True) - sums[..., -1:] * inner) * (
                top - log_mass
            ).exp()
            grads = torch.autograd.grad(change.sum(), parts)
        for total, s, part in zip(found, slices, grads, strict=True):
            total[:, s] += part
    return found


class Found(NamedTuple):
    """What a call finds.

    Attributes:
        output: ``(B, H, L, d_v)``; zeros for padding.
        share: share of exact pairs of each head, ``(B, H)``, if it was wanted.
        log_masses: log₂ Σ exp of each query, ``(B, H, L)``.
    """

    output: Tensor
    share: Tensor | None
    log_masses: Tensor


def causal_sums(rows: CausalRows, choices: Choices, *, share: bool = False) -> Found:
    """Attend from all queries; gradients are those of outputs."""
    if torch.is_grad_enabled() and any(u.requires_grad for u in rows[:3]):
        detached = rows._replace(x=rows.x.detach(), y=rows.y.detach(), v=rows.v.detach())
        own = causal_sums(detached, choices, share=True).share if share else None
        output, log_masses = _WithGradients.apply(rows, choices, *rows[:3])
        return Found(output, own, log_masses)
    if core.serves(*rows[:3]):
        found = CompiledCausal(rows, choices)
        return Found(
            found.out, _exact_share(rows, found.pairs, choices.base) if share else None, found.log_masses
        )
    out, log_masses, plans = _by_operations(rows, choices)
    log_masses = log_masses / math.log(2)
    if not share:
        return Found(out, None, log_masses)
    none = torch.zeros(rows.x.shape[1], dtype=torch.long, device=out.device)
    pairs = torch.stack([sum((pairs_of(block) for block in blocks), none) for blocks in plans])
    return Found(out, _exact_share(rows, pairs, choices.base), log_masses)


def _exact_share(rows: CausalRows, pairs: Tensor, base: int) -> Tensor:
    """Return the share of visible pairs that are computed exactly, ``(B, H)``; ``pairs (B, H)`` are those in blocks."""
    shares = []
    for b, own in enumerate(pairs):
        n, prefix = int(rows.keys[b]), int(rows.keys[b] - rows.queries[b])
        position = torch.arange(prefix, n)
        early = torch.tensor([exact_keys(i, rows.unknown(b), base) for i in range(n // base + 1)])
        exact = int((position % base + 1 + early[position // base]).sum())
        shares.append((own.double() + exact) / max(int((position + 1).sum()), 1))
    return torch.stack(shares)

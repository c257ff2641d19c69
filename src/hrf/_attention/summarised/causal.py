"""Causal summarised attention by recursion: query i sees keys 0 … i.

The triangle of pairs is a sum of rectangles. Keys of the query's own diagonal block, `BASE` long, and the first `SINK`
keys are computed exactly. All other keys come in blocks: keys [s, s + B) are read by queries [s + B, s + 2B), for
B = BASE · 2ⁱ and s a multiple of 2B, so that a query reads one block per binary digit of the number of blocks before it.
A block is a bidirectional problem (``plan.py``, ``read.py``) with *cells* in place of groups: cells are made of the
block's own queries ("members"), which are earlier than all readers, and a reader goes to the cell with the nearest mean.
Partial results merge by their masses.

Strictly causal: cells, exact keys and limits of a block depend on tokens before s + B, everything else on the reader
itself. A query of rotary positions turns by a known angle on the way from a member to its readers; members are turned by
the mean distance B first, and cells then fit readers better.

The plan of a block is constant to the gradient, cells included. The compiled core makes plans of its own; the backward
pass is `read_block`, for the plans of either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from hrf import _core as core
from hrf._attention.summarised.plan import (
    Heads,
    KeyClusters,
    Parts,
    Plan,
    QueryGroups,
    balanced_parts,
    clusters_of,
    covariance,
    log_errors,
    log_weights,
    root_of_metric,
)
from hrf._attention.summarised.read import log_deviation, sums_and_scales, summary_logits

__all__ = ["BASE", "Block", "CausalRows", "Choices", "Compiled", "causal_sums", "places", "read_block"]

BASE = 1024  # tokens of a diagonal block
SINK = 16  # first keys, which many heads give most of their mass
EVERY = 4  # members are every fourth query, or fewer
MEMBERS, MEMBERS_PER_CELL = 256, 8  # at least, where there are so many
SAMPLED_KEYS = 1024  # that the metric of cells is found from
TILE = 64  # readers of a cell at a time
OPENING = 32  # a tolerance of 1 allows a cluster to be wrong by 1/32 of a query's mass
TEST = 10  # a tolerance of 1 allows the member that tests a cell an error of 1/10 of its output
PAD = 16  # rows of the core have a multiple of this many numbers


def block_levels(size: int) -> int:
    """Return log₂ of the numbers of cells and of clusters of a block, about √size each."""
    return max(3, round(math.log2(size) / 2))


class Choices(NamedTuple):
    """What a call fixes beside its tensors.

    Attributes:
        root: √scale, a factor of queries and keys.
        tolerance: τ.
        rotary: angles in radians per position, of the planes (k, k + half) of queries and keys, ``(half,)``; or None.
        base: tokens of a diagonal block, a power of two.
    """

    root: float
    tolerance: float
    rotary: Tensor | None = None
    base: int = BASE

    def turns(self, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        """Return cosine and sine of the turn by ``size`` positions."""
        if self.rotary is None:
            return None
        angles = size * self.rotary.double().cpu()
        return angles.cos().to(dtype), angles.sin().to(dtype)


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


class Place(NamedTuple):
    """Keys of a block and its readers, as positions among the keys of an item.

    Attributes:
        start: where the block begins.
        end: where it ends.
        first_key: where its keys begin: after the sink.
        first: its first reader.
        last: the position after its last reader.
    """

    start: int
    end: int
    first_key: int
    first: int
    last: int

    @property
    def size(self) -> int:
        """Number of tokens."""
        return self.end - self.start


def places(n: int, prefix: int, unknown: int, base: int) -> Iterator[Place]:
    """Yield the blocks that queries of an item read: it has n keys, the first ``prefix`` of them without a query.

    ``unknown`` is how many of the first keys have queries that are not known: their blocks have no members.
    """
    for j in range(1, -(-n // base)):
        size = base * (j & -j)
        end, start = j * base, j * base - size
        last = min(n, end + size)
        first = last if start < unknown else max(end, prefix)
        if first < last:
            yield Place(start, end, start or SINK, first, last)


def exact_keys(block: int, unknown: int, base: int) -> int:
    """Return how many of the first keys a diagonal block computes exactly: the sink, or blocks without members."""
    found, rest = 0, block
    while rest and found < unknown:
        blocks = 1 << (rest.bit_length() - 1)
        found, rest = found + blocks * base, rest - blocks
    return max(found, SINK) if block else 0


def exact_tiles(
    n: int, prefix: int, unknown: int, base: int, size: int = 256
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield queries of an item, the keys that they compute exactly, and which of these each of them sees."""
    for first in range(prefix // base * base, n, base):
        early = exact_keys(first // base, unknown, base)
        for start in range(max(first, prefix), min(first + base, n), size):
            end = min(start + size, first + base, n)
            keys = torch.cat([torch.arange(early), torch.arange(first, end)])
            seen = keys <= torch.arange(start, end)[:, None]
            yield slice(start - prefix, end - prefix), keys, seen


class Block(NamedTuple):
    """How the readers of a block read it, for N heads.

    Attributes:
        place: keys and readers.
        plan: tiles of readers as groups, clusters and exact keys; positions count from the first reader and key.
        mean: rᵢ of each tile's cell, ``(N, tiles, d)``.
        width: γᵢ, ``(N, tiles)``.
        query_width: γ(x), ``(N, tiles, queries)``.
        metric: Σ_δ, ``(N, d, d)``.
    """

    place: Place
    plan: Plan
    mean: Tensor
    width: Tensor
    query_width: Tensor
    metric: Tensor


def _statistics(x: Tensor, y: Tensor, v: Tensor, block: Block) -> tuple[QueryGroups, KeyClusters]:
    """Return tiles as groups, and clusters, for the readers ``x (N, R, d)`` and the keys of a block."""
    filled = block.plan.groups.filled[..., None]
    residual = (block.plan.groups.take(x) - block.mean[..., None, :]) * filled
    groups = QueryGroups(block.mean, residual, block.width, block.query_width, block.metric)
    return groups, clusters_of(Heads(x, y, v, x[..., 0] == 0, y[..., 0] == 0), block.plan.clusters, block.metric)


def read_block(x: Tensor, y: Tensor, v: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """Return Σ w (v, 1) exp(−m) of the readers ``x (N, R, d)``, ``(N, R, d_v + 1)``, and m, ``(N, R, 1)``."""
    found, top = sums_and_scales(*_statistics(x, y, v, block), block.plan)
    put = block.plan.groups.put
    return put(found, x.shape[1]), put(top, x.shape[1])


class _Cells(NamedTuple):
    """Cells of a block: means, γᵢ, Σ_δ, a root of the keys' metric, and the mean |z|² of a new query, z = δ root."""

    mean: Tensor  # (N, G, d)
    width: Tensor  # (N, G)
    outside: Tensor  # (N, G): mean log mass of members over all they see
    metric: Tensor  # (N, d, d)
    root: Tensor  # (N, d, d)
    pooled: Tensor  # (N, 1)

    def nearest(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cells of queries ``(N, R, d)``, ``(N, R)``, and their γ(x)."""
        z, centres = x @ self.root, self.mean @ self.root
        cell = (z @ centres.mT - centres.square().sum(-1)[:, None] / 2).argmax(-1)
        own = centres.gather(1, cell[..., None].expand(-1, -1, z.shape[-1]))
        return cell, (z - own).square().sum(-1) / self.pooled


def _turned(u: Tensor, turns: tuple[Tensor, Tensor] | None) -> Tensor:
    if turns is None:
        return u
    half = len(turns[0])
    a, b, rest = u[..., :half], u[..., half : 2 * half], u[..., 2 * half :]
    cosine, sine = (t.to(u.device) for t in turns)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine, rest], -1)


def _cells(members: Tensor, log_mass: Tensor, keys: Tensor, n_cells: int) -> _Cells:
    """Make cells of members ``(N, m, d)`` in the metric of some keys."""
    m, tiny = members.shape[1], torch.finfo(members.dtype).tiny
    everything = torch.ones(keys.shape[:2], dtype=torch.bool, device=keys.device)
    root = root_of_metric(covariance(keys, everything))
    parts = balanced_parts(members @ root, everything.new_ones(members.shape[:2]), n_cells)
    counts = parts.filled.sum(-1, keepdim=True).clamp(min=1)  # (N, G, 1)
    rows = parts.take(members)
    mean = rows.sum(-2) / counts
    residual = ((rows - mean[..., None, :]) * parts.filled[..., None]).flatten(1, 2)
    # Of a cell with k members, a new query is farther from the mean than a member: by (1 + 1/k) / (1 − 1/k).
    share = n_cells / m
    grow = (1 + share) / max(1 - share, 0.25)
    lengths = (residual @ root).square().sum(-1)
    pooled = (lengths.sum(-1, keepdim=True) * grow / m).clamp(min=tiny)
    width = lengths.unflatten(1, parts.tokens.shape[1:]).sum(-1) / counts[..., 0] * grow / pooled
    outside = parts.take(log_mass[..., None]).sum((-2, -1)) / counts[..., 0]
    return _Cells(mean, width.clamp(min=1e-6), outside, residual.mT @ residual * (grow / m), root, pooled)


@torch.no_grad()
def plan_block(
    known: tuple[Tensor, Tensor], x: Tensor, before: Tensor, y: Tensor, v: Tensor, place: Place, choices: Choices
) -> Block:
    """Plan a block.

    Args:
        known: every `EVERY`-th query of the item, scaled, ``(N, ·, d)``, and their log masses, final for members.
        x: readers ``(N, R, d)``.
        before: log mass that readers have found so far, ``(N, R)``.
        y: keys of the block.
        v: values of the block.
        place: where they are.
        choices: of the call.
    """
    size, tolerance = place.size, choices.tolerance
    count = 1 << block_levels(size)
    step = max(EVERY, size // max(MEMBERS, MEMBERS_PER_CELL * count))
    members, log_mass = (u[:, place.start // EVERY : place.end // EVERY : step // EVERY] for u in known)
    members = _turned(members, choices.turns(size, x.dtype))
    some = min(y.shape[1], SAMPLED_KEYS)
    cells = _cells(members, log_mass, y[:, torch.arange(some, device=y.device) * y.shape[1] // some], count)
    every = torch.ones(y.shape[:2], dtype=torch.bool, device=y.device)
    parts = balanced_parts(y @ root_of_metric(cells.metric), every, count)
    clusters = clusters_of(Heads(members, y, v, every, every), parts, cells.metric)
    weights = log_weights(cells.mean, clusters, parts.filled)  # (N, G, C, width)
    seen = place.start + 1.5 * size
    limit = math.log(tolerance) - 0.75 * math.log(seen) - 0.25 * math.log(512) if tolerance else -math.inf
    total = weights.flatten(2).logsumexp(-1)
    raised = (total - torch.maximum(total, cells.outside))[..., None, None]
    exact = (log_errors(weights, cells.width, clusters) + raised >= limit) & parts.filled[:, None]
    extents = _extents(clusters, parts.filled)
    exact |= _failed(members, log_mass, cells, clusters, extents, parts, exact, tolerance)[..., None, None]
    exact &= parts.filled[:, None]
    cell, query_width = cells.nearest(x)
    groups, of_tiles = tiles(cell, count)
    block = _block(place, groups, of_tiles, cells, query_width, parts, exact)
    return _with_opened(block, x, y, v, before, extents, tolerance)


def tiles(cell: Tensor, n_cells: int) -> tuple[Parts, Tensor]:
    """Cut readers, sorted by their cell ``(N, R)``, into tiles of one cell each; also return the cell of each tile."""
    counts = F.one_hot(cell, n_cells).sum(1)  # (N, G)
    order, first = cell.argsort(dim=-1, stable=True), counts.cumsum(-1) - counts
    per_cell = -(-counts // TILE)
    most = int(per_cell.sum(-1).max())
    tile = torch.arange(most, device=cell.device).expand(len(cell), -1).contiguous()
    ends = per_cell.cumsum(-1)
    of_tiles = torch.searchsorted(ends, tile, right=True).clamp(max=n_cells - 1)
    rank = tile - (ends - per_cell).gather(1, of_tiles)
    place = rank[..., None] * TILE + torch.arange(TILE, device=cell.device)
    filled = (place < counts.gather(1, of_tiles)[..., None]) & (tile < ends[:, -1:])[..., None]
    rows = (first.gather(1, of_tiles)[..., None] + place).where(filled, 0)
    return Parts(order.gather(1, rows.flatten(1)).view(rows.shape), filled), of_tiles


def _block(
    place: Place, groups: Parts, of_tiles: Tensor, cells: _Cells, query_width: Tensor, clusters: Parts, exact: Tensor
) -> Block:
    """Put a block together; ``exact (N, G, C, width)`` says which keys cells compute exactly."""
    index = of_tiles[..., None]
    chosen = exact.flatten(2).gather(1, index.expand(-1, -1, exact.flatten(2).shape[-1]))
    row, keys = chosen.flatten(0, 1).nonzero(as_tuple=True)
    starts = F.pad(torch.bincount(row, minlength=of_tiles.numel()).cumsum(0), (1, 0))
    nothing = torch.empty(0, 2, dtype=torch.long, device=keys.device)
    plan = Plan(groups, clusters, starts, keys, nothing)
    mean = cells.mean.gather(1, index.expand(-1, -1, cells.mean.shape[-1]))
    return Block(
        place, plan, mean, cells.width.gather(1, of_tiles), groups.take(query_width[..., None])[..., 0], cells.metric
    )


def _extents(clusters: KeyClusters, filled: Tensor) -> Tensor:
    """Return the longest direction of each cluster, as long as the deviation of its keys along it: ``(N, C, d)``."""
    some = filled[..., None]
    centred = (clusters.keys - clusters.mean[:, :, None]) * some
    second = centred.mT @ centred / some.sum(-2, keepdim=True).clamp(min=1)
    farthest = centred.square().sum(-1).argmax(-1)[..., None, None].expand(-1, -1, 1, centred.shape[-1])
    direction, tiny = centred.gather(-2, farthest).mT, torch.finfo(centred.dtype).tiny
    for _ in range(3):
        direction = second @ (direction / direction.norm(dim=-2, keepdim=True).clamp(min=tiny))
    variance = direction.norm(dim=-2, keepdim=True)
    return (direction / variance.clamp(min=tiny) * variance.sqrt())[..., 0]


def _spread_beside(clusters: KeyClusters, filled: Tensor, extents: Tensor, metric: Tensor) -> Tensor:
    """Return the mean d² of each cluster without the part along its extent: ``(N, C)``."""
    mean = (clusters.spread * filled).sum(-1) / filled.sum(-1).clamp(min=1)
    return (mean - ((extents @ metric) * extents).sum(-1)).clamp(min=0)


def _failed(
    members: Tensor,
    log_mass: Tensor,
    cells: _Cells,
    clusters: KeyClusters,
    extents: Tensor,
    filled: Parts,
    exact: Tensor,
    tolerance: float,
) -> Tensor:
    """Return the cells whose farthest member would get a wrong output from summaries: booleans ``(N, G)``.

    With the sums N_e, M_e of the keys that summaries replace, and N_s, M_s of these summaries, the member's output o
    would change by ((N_s − N_e) − (M_s − M_e) o) / mass.
    """
    cell, width = cells.nearest(members)
    n_cells = cells.mean.shape[1]
    widths = torch.full_like(width[:, :1], -1).repeat(1, n_cells).scatter_reduce(1, cell, width, "amax")
    farthest = (F.one_hot(cell, n_cells) * (width[..., None] + 1)).argmax(1)  # (N, G)
    test = members.gather(1, farthest[..., None].expand(-1, -1, members.shape[-1]))
    plan = Plan(
        Parts(farthest[..., None], (widths >= 0)[..., None]),
        filled,
        F.pad(exact.flatten(2).sum(-1).flatten().cumsum(0), (1, 0)),
        exact.flatten(2).flatten(0, 1).nonzero()[:, 1],
        torch.empty(0, 2, dtype=torch.long, device=test.device),
    )
    residual = (test - cells.mean)[:, :, None]
    groups = QueryGroups(cells.mean, residual, cells.width, widths[..., None], cells.metric)
    logits, values = summary_logits(groups, clusters, plan, slice(None))
    logits = logits[:, :, 0]  # (N, G, C)
    pairs = log_weights(test, clusters, filled.filled)  # (N, G, C, width)
    own = pairs.flatten(2).logsumexp(-1)
    mass = torch.maximum(own, log_mass.gather(1, farthest))
    spans = residual[:, :, 0] @ extents.mT
    beside = _spread_beside(clusters, filled.filled, extents, cells.metric)
    variance = widths[..., None] * beside[:, None] + spans.square()
    opened = logits - mass[..., None] + log_deviation(variance) >= math.log(tolerance / OPENING) if tolerance else logits > 0
    by_summaries = (logits - mass[..., None]).masked_fill(opened, -torch.inf).exp()
    gone = exact | opened[..., None]
    replaced = (pairs - mass[..., None, None]).masked_fill(gone, -torch.inf).exp().flatten(2)
    v = clusters.values.flatten(1, 2)
    change = (by_summaries[..., None, :] @ values)[..., 0, :] - replaced @ v
    output = (pairs.flatten(2) - own[..., None]).exp() @ v
    change = change - (by_summaries.sum(-1) - replaced.sum(-1))[..., None] * output
    good = change.norm(dim=-1) <= tolerance / TEST * output.norm(dim=-1)
    return ~good & (widths >= 0)


def _with_opened(
    block: Block, x: Tensor, y: Tensor, v: Tensor, before: Tensor, extents: Tensor, tolerance: float
) -> Block:
    """Let readers open the clusters whose summaries would be too wrong; ``before (N, R)`` is their log mass so far."""
    plan = block.plan
    groups, clusters = _statistics(x, y, v, block)
    sums, top = sums_and_scales(groups, clusters, plan)
    total = torch.logaddexp(top + sums[..., -1:].log(), plan.groups.take(before[..., None]))
    logits = summary_logits(groups, clusters, plan, slice(None))[0]  # (N, tiles, queries, C)
    beside = _spread_beside(clusters, plan.clusters.filled, extents, block.metric)[:, None, None]
    spans = groups.residual @ extents[:, None].mT
    errors = logits - total + log_deviation(block.query_width[..., None] * beside + spans.square())
    limit = math.log(tolerance / OPENING) if 0 < tolerance < math.inf else math.inf
    chosen = (errors >= limit) & (logits > -torch.inf) & plan.groups.filled[..., None]
    head, tile, query, cluster = chosen.nonzero(as_tuple=True)
    row = (head * block.mean.shape[1] + tile) * plan.groups.tokens.shape[2] + query
    return block._replace(plan=plan._replace(opened=torch.stack([row, cluster], -1)))


@torch.no_grad()
def _by_operations(rows: CausalRows, choices: Choices) -> tuple[Tensor, Tensor, list[list[Block]]]:
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
            known = tuple(torch.cat([old, u[:, first - prefix :: EVERY]], 1) for old, u in zip(early, (x, mass), strict=True))
            own = slice(place.first - prefix, place.last - prefix)
            keys, values = (u[:, place.first_key : place.end] for u in (y, v))
            blocks.append(plan_block(known, x[:, own], mass[:, own], keys, values, place, choices))
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


class Compiled:
    """Outputs by the compiled core, and the plans they were computed with.

    Attributes:
        out: outputs, ``(B, H, L, d_v)``; zeros for padding.
        log_masses: log₂ Σ exp of each query, ``(B, H, L)``.
        pairs: pairs that were computed exactly in blocks, per head, ``(B, H)``.
    """

    @torch.no_grad()
    def __init__(self, rows: CausalRows, choices: Choices, *, keep: bool = False) -> None:
        batch, heads, length, dim = rows.x.shape
        key_heads, n_keys, width = rows.v.shape[1:]
        n, dtype, base, tolerance = batch * heads, rows.x.dtype, choices.base, choices.tolerance
        self.rows, self.choices = rows, choices
        x, y, v = (_padded(u.detach()) for u in rows[:3])
        n_blocks = max((int(rows.keys.max()) - 1) // base, 0)
        sizes = [base << i for i in range(n_blocks.bit_length())]
        levels = torch.tensor([(block_levels(size),) * 2 for size in sizes], dtype=torch.long).reshape(-1, 2)
        turns = [choices.turns(size, dtype) for size in sizes] if choices.rotary is not None else []
        cosines, sines = (torch.stack(u) for u in zip(*turns, strict=True)) if turns else (None, None)
        self.offsets = torch.zeros(n_blocks + 1, 3, dtype=torch.long)
        for j in range(1, n_blocks + 1):
            size = base * (j & -j)
            parts = (1 << block_levels(size)) + 1
            self.offsets[j] = self.offsets[j - 1] + torch.tensor([size, parts, parts])
        stored, cells, clusters = self.offsets[-1].tolist() if keep else (0, 0, 0)
        integers, numbers = partial(torch.zeros, dtype=torch.long), partial(torch.zeros, dtype=dtype)
        self.out = x.new_zeros(batch, heads, length, v.shape[-1])
        self.log_masses = x.new_zeros(batch, heads, length)
        self.pairs = integers(batch, heads)
        self.order, self.key_order = (torch.zeros(n, stored, dtype=torch.int32) for _ in range(2))
        self.bounds, self.key_bounds = integers(n, cells), integers(n, clusters)
        self.sizes, self.openings = integers(n, cells), integers(n, cells)
        self.means, self.widths = numbers(n, cells, x.shape[-1]), numbers(n, cells)
        self.metrics, self.query_widths = numbers(n, n_blocks if keep else 0, x.shape[-1], x.shape[-1]), numbers(n, stored)
        earlier: tuple[Tensor | int | None, ...] = (None, None, 0)
        if rows.earlier is not None and rows.earlier_masses is not None:
            earlier = _padded(rows.earlier), rows.earlier_masses.contiguous(), rows.earlier.shape[2]
        fields = (
            *(x.shape[-1], v.shape[-1], n, batch, heads // key_heads, length, n_keys, base, len(sizes)),
            *(0 if cosines is None else cosines.shape[-1], n_blocks),
            *(x, y, v, *(u.contiguous() for u in rows[3:7]), cosines, sines, levels, *earlier, self.out, self.log_masses),
            *(self.offsets, self.order, self.key_order, self.bounds, self.key_bounds, self.sizes, self.openings),
            *(self.means, self.widths, self.metrics, self.query_widths, self.pairs, float(choices.root)),
            *(math.log2(tolerance) if tolerance else -1e4, float(tolerance / OPENING), float(tolerance / TEST)),
            *(keep, torch.get_num_threads(), dtype == torch.float64),
        )
        self._exact, self._opened = core.found(core.run("causal_forward", *fields))
        self.out = self.out[..., :width]

    def plans(self) -> list[list[Block]]:
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

    def _block(self, place: Place, own: slice, exact: Tensor, opened: Tensor) -> Block:
        """Return the plan of a block for some heads; ``exact`` and ``opened`` say where the lists of each cell begin."""
        j, dim = place.end // self.choices.base, self.rows.x.shape[-1]
        (row, cell, cluster), (_, last_cell, last_cluster) = self.offsets[j - 1].tolist(), self.offsets[j].tolist()
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
            rows, at = self._opened[opened[first] : opened[first + count]].long().unbind(-1)
            opens.append(torch.stack([torch.full_like(rows, i), rows, at], -1))
        query_width = torch.zeros(len(bounds), readers, dtype=self.means.dtype)
        query_width.scatter_(1, order, self.query_widths[own, row : row + readers])
        nothing = self.widths[own, :0]
        cells = _Cells(
            self.means[own, cell : cell + count, :dim], self.widths[own, cell : cell + count], nothing,
            self.metrics[own, j - 1, :dim, :dim], nothing, nothing,
        )  # fmt: skip
        block = _block(place, groups, of_tiles, cells, query_width, clusters, mask)
        head, rank, cluster_of = torch.cat(opens).unbind(-1)
        return block._replace(plan=block.plan._replace(opened=_opened(block, order[head, rank], head, cluster_of)))


def _opened(block: Block, reader: Tensor, head: Tensor, cluster: Tensor) -> Tensor:
    """Return `Plan.opened` for readers by their position in the block."""
    tokens, filled = block.plan.groups
    where = torch.zeros(len(tokens), block.place.last - block.place.first, dtype=torch.long)
    spots = torch.arange(tokens.numel()).view(tokens.shape)
    heads = torch.arange(len(tokens))[:, None, None].expand_as(tokens)
    where[heads[filled], tokens[filled]] = spots[filled]
    return torch.stack([where[head, reader], cluster], -1)


def parts_of(order: Tensor, bounds: Tensor) -> Parts:
    """Return the parts ``order[bounds[p] : bounds[p + 1]]`` of each head."""
    sizes = bounds.diff()
    place = torch.arange(int(sizes.max()))
    filled = place < sizes[..., None]
    rows = (bounds[:, :-1, None] + place).where(filled, 0)
    return Parts(order.long().gather(1, rows.flatten(1)).view(rows.shape), filled)


def _padded(u: Tensor) -> Tensor:
    """Pad the last dimension to a multiple of `PAD`."""
    return F.pad(u, (0, -u.shape[-1] % PAD)).contiguous()


class _WithGradients(torch.autograd.Function):
    """Outputs, with gradients for the plans held fixed.

    With the final output o and log mass z of a query, every part of the sums N and M adds ⟨∂o, dN − o dM⟩ exp(−z) to the
    gradient, so parts are differentiated one after the other, in memory that grows with one of them.
    """

    @staticmethod
    def forward(ctx: Any, rows: CausalRows, choices: Choices, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        if core.serves(*inputs):
            found = Compiled(rows, choices, keep=True)
            out, log_masses, plans = found.out, found.log_masses * math.log(2), found.plans()
        else:
            out, log_masses, plans = _by_operations(rows, choices)
        ctx.save_for_backward(out, log_masses, *inputs)
        ctx.indices, ctx.choices, ctx.plans = rows[3:7], choices, plans
        ctx.mark_non_differentiable(log_masses)
        return out, log_masses / math.log(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        out, log_masses, *inputs = ctx.saved_tensors
        rows, found = CausalRows(*inputs, *ctx.indices), [torch.zeros_like(u) for u in inputs]
        for b, blocks in enumerate(ctx.plans):
            x, y, v, prefix = rows.item(b, ctx.choices.root)
            first, first_key = int(rows.first_query[b]), int(rows.first_key[b])
            own, keys = slice(first, first + x.shape[1]), slice(first_key, first_key + y.shape[1])
            final = grad[b, :, own], (grad[b, :, own] * out[b, :, own]).sum(-1, keepdim=True), log_masses[b, :, own, None]
            grads = _gradients(x, y, v, prefix, final, blocks, ctx.choices.base)
            root, groups = ctx.choices.root, x.shape[0] // rows.y.shape[1]
            found[0][b, :, own] = grads[0] * root
            found[1][b, :, keys] = grads[1].unflatten(0, (-1, groups)).sum(1) * root
            found[2][b, :, keys] = grads[2].unflatten(0, (-1, groups)).sum(1)
        return None, None, *found


def _gradients(
    x: Tensor, y: Tensor, v: Tensor, prefix: int, final: tuple[Tensor, ...], blocks: list[Block], base: int
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
        own = slice(block.place.first - prefix, block.place.last - prefix)
        keys = slice(block.place.first_key, block.place.end)
        grad, inner, log_mass = (u[:, own] for u in final)
        parts = [u[:, s].detach().requires_grad_() for u, s in ((x, own), (y, keys), (v, keys))]
        with torch.enable_grad():
            sums, top = read_block(*parts, block)
            change = ((sums[..., :-1] * grad).sum(-1, keepdim=True) - sums[..., -1:] * inner) * (top - log_mass).exp()
            grads = torch.autograd.grad(change.sum(), parts)
        for total, s, part in zip(found, (own, keys, keys), grads, strict=True):
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
        found = Compiled(rows, choices)
        return Found(found.out, _exact_share(rows, found.pairs, choices.base) if share else None, found.log_masses)
    out, log_masses, plans = _by_operations(rows, choices)
    log_masses = log_masses / math.log(2)
    if not share:
        return Found(out, None, log_masses)
    none = torch.zeros(rows.x.shape[1], dtype=torch.long, device=out.device)
    pairs = torch.stack([sum((_pairs(block) for block in blocks), none) for blocks in plans])
    return Found(out, _exact_share(rows, pairs, choices.base), log_masses)


def _pairs(block: Block) -> Tensor:
    """Return how many pairs of a block are computed exactly, per head."""
    plan = block.plan
    sizes = plan.groups.filled.sum(-1)  # (N, tiles)
    pairs = (plan.starts.diff().reshape(sizes.shape) * sizes).sum(-1)
    head = plan.opened[:, 0] // plan.groups.tokens[0].numel()
    return pairs.index_add(0, head, plan.unmet(slice(None)).sum(-1))


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

"""Blocks of causal summarised attention: where they are, how readers read them, and plans by PyTorch's operations.

A block of B keys is read by the B queries after it. *Cells* take the place of groups: they are made of the block's own
queries ("members"), which are earlier than all readers, and a reader goes to the cell with the nearest mean. A query of
rotary positions turns by a known angle on the way from a member to its readers; members are turned by the mean distance
B first, and cells then fit readers better.

Exact keys are chosen by the rule of ``plan.py``, with the mass that members have found outside of the block. One member
tests each cell: where its output would be wrong, the cell computes all keys of the block exactly. Readers open clusters
by the rule of ``read.py``, where the variance along the longest direction of a cluster counts by the reader's own
residual.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

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
from hrf._attention.summarised.read import log_deviation, summary_logits, sums_and_scales

__all__ = [
    "BASE",
    "EVERY",
    "OPENING",
    "SINK",
    "TEST",
    "Cells",
    "Choices",
    "KeyBlock",
    "Place",
    "block_levels",
    "block_of",
    "exact_keys",
    "exact_tiles",
    "pairs_of",
    "places",
    "plan_block",
    "read_block",
    "tiles",
]

BASE = 1024  # tokens of a diagonal block
SINK = 16  # first keys, which many heads give most of their mass
EVERY = 4  # members are every fourth query, or fewer
MEMBERS, MEMBERS_PER_CELL = 256, 8  # at least, where there are so many
SAMPLED_KEYS = 1024  # that the metric of cells is found from
TILE = 64  # readers of a cell at a time
OPENING = 32  # a tolerance of 1 allows a cluster to be wrong by 1/32 of a query's mass
TEST = 10  # a tolerance of 1 allows the member that tests a cell an error of 1/10 of its output


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


class KeyBlock(NamedTuple):
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


def _statistics(x: Tensor, y: Tensor, v: Tensor, block: KeyBlock) -> tuple[QueryGroups, KeyClusters]:
    """Return tiles as groups, and clusters, for the readers ``x (N, R, d)`` and the keys of a block."""
    filled = block.plan.groups.filled[..., None]
    residual = (block.plan.groups.take(x) - block.mean[..., None, :]) * filled
    groups = QueryGroups(block.mean, residual, block.width, block.query_width, block.metric)
    return groups, clusters_of(
        Heads(x, y, v, x[..., 0] == 0, y[..., 0] == 0), block.plan.clusters, block.metric
    )


def read_block(x: Tensor, y: Tensor, v: Tensor, block: KeyBlock) -> tuple[Tensor, Tensor]:
    """Return Σ w (v, 1) exp(−m) of the readers ``x (N, R, d)``, ``(N, R, d_v + 1)``, and m, ``(N, R, 1)``."""
    found, top = sums_and_scales(*_statistics(x, y, v, block), block.plan)
    put = block.plan.groups.put
    return put(found, x.shape[1]), put(top, x.shape[1])


class Cells(NamedTuple):
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


def _cells(members: Tensor, log_mass: Tensor, keys: Tensor, n_cells: int) -> Cells:
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
    return Cells(mean, width.clamp(min=1e-6), outside, residual.mT @ residual * (grow / m), root, pooled)


@torch.no_grad()
def plan_block(
    known: tuple[Tensor, Tensor],
    x: Tensor,
    before: Tensor,
    y: Tensor,
    v: Tensor,
    place: Place,
    choices: Choices,
) -> KeyBlock:
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
    block = block_of(place, groups, of_tiles, cells, query_width, parts, exact)
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


def block_of(
    place: Place,
    groups: Parts,
    of_tiles: Tensor,
    cells: Cells,
    query_width: Tensor,
    clusters: Parts,
    exact: Tensor,
) -> KeyBlock:
    """Put a block together; ``exact (N, G, C, width)`` says which keys cells compute exactly."""
    index = of_tiles[..., None]
    chosen = exact.flatten(2).gather(1, index.expand(-1, -1, exact.flatten(2).shape[-1]))
    row, keys = chosen.flatten(0, 1).nonzero(as_tuple=True)
    starts = F.pad(torch.bincount(row, minlength=of_tiles.numel()).cumsum(0), (1, 0))
    nothing = torch.empty(0, 2, dtype=torch.long, device=keys.device)
    plan = Plan(groups, clusters, starts, keys, nothing)
    mean = cells.mean.gather(1, index.expand(-1, -1, cells.mean.shape[-1]))
    return KeyBlock(
        place,
        plan,
        mean,
        cells.width.gather(1, of_tiles),
        groups.take(query_width[..., None])[..., 0],
        cells.metric,
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
    cells: Cells,
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
    opened = (
        logits - mass[..., None] + log_deviation(variance) >= math.log(tolerance / OPENING)
        if tolerance
        else logits > 0
    )
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
    block: KeyBlock, x: Tensor, y: Tensor, v: Tensor, before: Tensor, extents: Tensor, tolerance: float
) -> KeyBlock:
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


def pairs_of(block: KeyBlock) -> Tensor:
    """Return how many pairs of a block are computed exactly, per head."""
    plan = block.plan
    sizes = plan.groups.filled.sum(-1)  # (N, tiles)
    pairs = (plan.starts.diff().reshape(sizes.shape) * sizes).sum(-1)
    head = plan.opened[:, 0] // plan.groups.tokens[0].numel()
    return pairs.index_add(0, head, plan.unmet(slice(None)).sum(-1))

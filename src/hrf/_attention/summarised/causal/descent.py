"""Queries descend the trees of finished blocks: a node is read by its summary, or opened where that would err.

A query with the bound β opens a node whose mass, times its relative error √(Q expm1(γS)), is at least exp(β); the
children of an opened node are read in turn, and the keys of an opened cluster are met exactly. Each decision needs the
query and the block only, so no output depends on a later token.

A visit is a pair of a query and `WIDTH` rows of a table (all roots, at first). Visits of the same rows go together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from hrf import tuning
from hrf._attention.recompute import recompute
from hrf._attention.summarised.causal.blocks import Blocks
from hrf._attention.summarised.causal.cells import Placed
from hrf._attention.summarised.causal.nodes import Nodes
from hrf._attention.summarised.causal.sizes import WIDTH, node_counts
from hrf._attention.summarised.exact_pairs import blocks_by_count
from hrf._attention.summarised.read import LARGEST
from hrf.numerics import finite

__all__ = ["Found", "bounds", "lowest_masses", "read_blocks"]


class Found(NamedTuple):
    """Sums of rows over some keys, at a scale.

    Attributes:
        sums: Σ weight · (v, 1), ``(R, d_v + 1)``, to be multiplied by exp(top).
        top: ``(R,)``, −∞ without key.
        exact: number of keys that were met exactly, ``(R,)``.
        errors: Σ weight² Q expm1(γS) (V, 1, mean of ‖v‖²) over summaries that were read, ``(R, d_v + 2)``, to be
            multiplied by exp(2·top).
    """

    sums: Tensor
    top: Tensor
    exact: Tensor
    errors: Tensor


class _Visits(NamedTuple):
    """Visits: query ``row`` at the rows ``base``, ``base + 1``, … of a table; ``(visits,)`` each."""

    row: Tensor
    base: Tensor


class _Layout(NamedTuple):
    """Where rows of the flat table are: block m, cell i, node j of a level at ``(m·G + i)·nodes + first + j``."""

    counts: list[int]
    n_cells: int
    dim: int

    @property
    def nodes(self) -> int:
        return sum(self.counts)

    def below(self, level: int, opened: Tensor) -> Tensor:
        """Return the first child of each opened row of a level; of a cluster, its first key."""
        first = sum(self.counts[:level])
        tree, node = opened // self.nodes, opened % self.nodes - first
        if level + 1 < len(self.counts):
            return tree * self.nodes + first + self.counts[level] + node * WIDTH
        return (tree // self.n_cells * self.counts[-1] + node) * WIDTH


def _layout(blocks: Blocks) -> _Layout:
    return _Layout(
        node_counts(blocks.clusters.tokens[0].numel()), blocks.table.shape[1], blocks.keys.shape[-1]
    )


def _roots(blocks: Blocks, placed: Placed) -> Tensor:
    """Return the first root of each query, ``(M·m,)``."""
    m, n_cells, nodes, _ = blocks.table.shape
    trees = torch.arange(m, device=placed.cell.device)[:, None] * n_cells + placed.cell
    return (trees * nodes).flatten()


def _together(visits: _Visits, n_rows: int, width: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield places of visits, ``(bases, most)``, which of them are any, and rows of the table, ``(bases, n_rows)``."""
    base, order = visits.base.sort(stable=True)
    bases, counts = base.unique_consecutive(return_counts=True)
    starts = counts.cumsum(0) - counts
    for chosen in blocks_by_count(counts, n_rows, width):
        place = torch.arange(int(counts[chosen[0]]), device=base.device)
        real = place < counts[chosen, None]
        pairs = order[(starts[chosen, None] + place).where(real, 0)]
        yield pairs, real, bases[chosen, None] + torch.arange(n_rows, device=base.device)


@torch.no_grad()
def lowest_masses(blocks: Blocks, placed: Placed) -> Tensor:
    """Return lower bounds of the logarithms of the queries' masses: Σ M exp(δᵀμ) over roots, ``(M, m)``."""
    layout, table = _layout(blocks), blocks.table.flatten(0, 2)
    delta = placed.delta.flatten(0, 1)
    visits = _Visits(torch.arange(len(delta), device=delta.device), _roots(blocks, placed))
    found = delta.new_empty(len(delta))
    for pairs, real, rows in _together(visits, layout.counts[0], table.shape[-1]):
        nodes = Nodes.of(table[rows], layout.dim)
        logits = delta[pairs] @ nodes.mu.mT + nodes.log_mass[:, None]
        found[pairs[real]] = logits[real].logsumexp(-1)
    return found.view_as(placed.cell)


def read_blocks(blocks: Blocks, x: Tensor, placed: Placed, bound: Tensor, wanted: Tensor) -> Found:
    """Read blocks, each by its own queries ``(M, m, d)`` with the bounds β ``(M, m)``.

    Only the rows ``wanted`` of the queries, flattened, are read, and returned in their order.
    """
    layout, roots = _layout(blocks), _roots(blocks, placed)
    table, keys, values = blocks.table.flatten(0, 2), blocks.keys.flatten(0, 2), blocks.values.flatten(0, 2)
    filled = blocks.clusters.filled.flatten()
    vectors = x.flatten(0, 1), placed.delta.flatten(0, 1), placed.width.flatten()
    per_row = layout.counts[-1] * (values.shape[-1] + 1 + WIDTH)
    parts = []
    for rows in wanted.split(max(1, tuning.DESCENT_FLOATS // per_row)):
        function = partial(_descend, layout, roots[rows], bound.flatten()[rows], filled)
        own = (u[rows] for u in vectors)
        parts.append(Found(*recompute(function, *own, table, keys, values, learned=())))
    return Found(*(torch.cat(u) for u in zip(*parts, strict=True)))


def _descend(
    layout: _Layout,
    roots: Tensor,
    bound: Tensor,
    filled: Tensor,
    x: Tensor,
    delta: Tensor,
    width: Tensor,
    table: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Found:
    visits = _Visits(torch.arange(len(x), device=x.device), roots)
    found = [_nothing(visits.row[:0], x, values)]
    for level in range(len(layout.counts)):
        n_rows = WIDTH if level else layout.counts[0]
        opened = [visits._replace(row=visits.row[:0], base=visits.base[:0])]
        for pairs, real, rows in _together(visits, n_rows, table.shape[-1]):
            row = visits.row[pairs]
            nodes = Nodes.of(table[rows], layout.dim)
            part, is_open = _read_nodes(nodes, delta[row], width[row], bound[row], real)
            found.append((row[real], Found(*(u[real] for u in part))))
            place, visitor, node = is_open.nonzero(as_tuple=True)
            opened.append(_Visits(row[place, visitor], layout.below(level, rows[place, node])))
        visits = _Visits(*(torch.cat(u) for u in zip(*opened, strict=True)))
    for pairs, real, rows in _together(visits, WIDTH, keys.shape[-1] + values.shape[-1]):
        row = visits.row[pairs]
        part = _meet(x[row], keys[rows], values[rows], filled[rows])
        found.append((row[real], Found(*(u[real] for u in part))))
    of_rows, parts = zip(*found, strict=True)
    return _gathered(torch.cat(of_rows), Found(*(torch.cat(u) for u in zip(*parts, strict=True))), len(x))


def _nothing(row: Tensor, x: Tensor, values: Tensor) -> tuple[Tensor, Found]:
    width = values.shape[-1]
    return row, Found(x.new_zeros(0, width + 1), x.new_zeros(0), row, x.new_zeros(0, width + 2))


def _read_nodes(
    nodes: Nodes, delta: Tensor, width: Tensor, bound: Tensor, real: Tensor
) -> tuple[Found, Tensor]:
    """Read rows of nodes ``(b, k, ·)`` by queries ``(b, q, d)``; also return which nodes are opened, ``(b, q, k)``."""
    variance = width[..., None] * nodes.variance[:, None]
    logits = delta @ nodes.mu.mT + nodes.log_mass[:, None] + (variance / 2).clamp(max=LARGEST)
    with torch.no_grad():
        # log expm1(t) = t + log(1 − exp(−t)) cannot overflow.
        deviation = (variance + (-torch.expm1(-variance)).log() + nodes.shares[:, None].log()) / 2
        present = real[..., None] & ~nodes.log_mass.isneginf()[:, None]
        is_open = (logits + deviation >= bound[..., None]) & present
    logits = logits.masked_fill(is_open | ~present, -torch.inf)
    top = logits.detach().amax(-1)
    weights = (logits - finite(top)[..., None]).exp()
    sums = torch.cat([weights @ nodes.value, weights.sum(-1, keepdim=True)], -1)
    with torch.no_grad():
        squares = (2 * (logits - finite(top)[..., None] + deviation.clamp(max=LARGEST))).exp()
        squares = squares.masked_fill(weights == 0, 0)
        moments = torch.cat(
            [nodes.value, torch.ones_like(nodes.square)[..., None], nodes.square[..., None]], -1
        )
        errors = squares @ moments
    return Found(sums, top, torch.zeros_like(real, dtype=torch.long), errors), is_open


def _meet(x: Tensor, keys: Tensor, values: Tensor, filled: Tensor) -> Found:
    """Meet keys ``(b, k, d)`` exactly by queries ``(b, q, d)``."""
    logits = (x @ keys.mT).masked_fill(~filled[:, None], -torch.inf)
    top = logits.detach().amax(-1)
    weights = (logits - finite(top)[..., None]).exp()
    sums = torch.cat([weights @ values, weights.sum(-1, keepdim=True)], -1)
    exact = filled.sum(-1, keepdim=True).expand_as(top)
    return Found(sums, top, exact, sums.new_zeros(*top.shape, values.shape[-1] + 2))


def _gathered(row: Tensor, parts: Found, n_rows: int) -> Found:
    """Add up what the visits of each row found."""
    top = parts.top.new_full((n_rows,), -torch.inf).scatter_reduce(0, row, parts.top, "amax")
    factor = (parts.top - finite(top)[row]).exp()[:, None]
    sums, errors = (
        u.new_zeros(n_rows, u.shape[-1]).index_add(0, row, u * f)
        for u, f in ((parts.sums, factor), (parts.errors, factor.square()))
    )
    return Found(sums, top, parts.exact.new_zeros(n_rows).index_add(0, row, parts.exact), errors)


def bounds(total: Tensor, tolerance: float, seen: Tensor) -> Tensor:
    """Return β = log(total · τ/seen · √WIDTH): a visit of `WIDTH` rows must be worth its time.

    Args:
        total: lower bound of the logarithm of the mass of a query.
        tolerance: τ; 0 opens everything.
        seen: number of keys that the query sees.
    """
    allowed = math.log(tolerance) if tolerance > 0 else -math.inf
    return total + allowed - seen.clamp(min=1).log() + math.log(WIDTH) / 2

"""Summarised attention in compiled loops, in float32: a plan of their own, and the output of `read` for it."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hrf import tuning
from hrf._attention import loops
from hrf._attention.summarised.heads import Heads
from hrf._attention.summarised.plan import Plan, log_limits, opening_limits
from hrf._attention.summarised.tree import Parts

__all__ = ["Compiled", "serves"]

Array = NDArray[np.float32]


def serves(heads: Heads) -> bool:
    """Whether the loops can compute these heads."""
    return loops.serves(*heads[:3]) and heads.x.dtype == torch.float32


class Compiled:
    """Outputs of N heads, and the plan they were computed with.

    Args:
        heads: queries, keys and values in float32.
        root: √scale, a factor of queries and keys.
        n_groups: of queries, a power of two.
        n_clusters: of keys, a power of two.
        tolerance: τ per head, ``(N,)``.
        keep: whether `plan` will be called.

    Attributes:
        out: outputs, ``(N, L, d_v)``; zeros for padding.
        share: share of exact pairs of each head, ``(N,)``.
    """

    @torch.no_grad()
    def __init__(
        self,
        heads: Heads,
        root: float,
        n_groups: int,
        n_clusters: int,
        tolerance: Tensor,
        *,
        keep: bool = False,
    ) -> None:
        from hrf._attention.loops.memory import borrowed
        from hrf._attention.loops.products import ROWS, padded

        self._heads, self._root = heads, root
        (n, length, _), (n_keys, width) = heads.x.shape, heads.v.shape[1:]
        dim = padded(heads.x.shape[-1])
        self._order = torch.empty(n, length, dtype=torch.long)
        self._bounds = torch.empty(n, n_groups + 1, dtype=torch.long)
        self._means, self._widths = heads.x.new_empty(n, n_groups, dim), heads.x.new_empty(n, n_groups)
        self._query_widths, self._metrics = heads.x.new_empty(n, length), heads.x.new_empty(n, dim, dim)
        self._key_order = torch.empty(n, n_keys, dtype=torch.long)
        self._key_bounds = torch.empty(n, n_clusters + 1, dtype=torch.long)
        self._centres = heads.x.new_empty(n, n_clusters, dim)
        self._spreads, self._mean_spreads = (
            heads.x.new_empty(n, n_keys, 2),
            heads.x.new_empty(n, n_clusters),
        )
        self._sizes, self._met = (torch.zeros(n, n_groups, dtype=torch.long) for _ in range(2))
        counts, key_counts = heads.queries.sum(-1), heads.keys.sum(-1)
        # Outputs of all queries are written; those of padding stay.
        allocate = heads.x.new_empty if bool((counts == length).all()) else heads.x.new_zeros
        self.out = allocate(n, length, width)
        limits, some = log_limits(tolerance, key_counts) / math.log(2), _at_a_time(heads)
        exact, opened = [], []
        with borrowed((some, length, dim), (some, n_keys + ROWS, dim + padded(width))) as (
            of_queries,
            of_keys,
        ):
            for first in range(0, n, some):
                own = slice(first, min(first + some, n))
                self._find_parts(own, of_queries, of_keys, counts.tolist(), key_counts.tolist())
                found = self._attend(own, of_queries, of_keys, limits, opening_limits(tolerance), keep)
                exact.append(found[0])
                opened.append(found[1])
        self._exact, self._opened = torch.cat(exact), torch.cat(opened)
        pairs = (self._sizes * self._bounds.diff() + self._met).sum(-1)
        self.share = pairs / (counts * key_counts).clamp(min=1)

    def _find_parts(
        self, heads: slice, query_rows: Array, key_rows: Array, counts: list[int], key_counts: list[int]
    ) -> None:
        """Put queries into groups and keys into clusters; write them by group, and keys and values by cluster."""
        from hrf._attention.loops.groups import cluster_keys, group_queries
        from hrf._attention.loops.memory import borrowed
        from hrf._attention.loops.products import ROWS

        x, y, v, queries, keys = (t.detach().numpy() for t in self._heads)
        widths = self._widths, self._query_widths
        of_groups = loops.arrays(self._order, self._bounds, self._means, *widths, self._metrics)
        spreads = self._spreads, self._mean_spreads
        of_clusters = loops.arrays(self._key_order, self._key_bounds, self._centres, *spreads)
        group_levels, levels = (t.shape[1].bit_length() - 1 for t in (self._means, self._centres))
        dim, longest = query_rows.shape[-1], max(x.shape[1], y.shape[1]) + ROWS

        def prepare(h: int) -> None:
            n, n_keys, place = counts[h], key_counts[h], h - heads.start
            with borrowed((n, dim), (n_keys, dim), (longest, dim), (longest, dim)) as (own_x, own_y, *spare):
                tokens = _take(x[h], queries[h], self._root, own_x)
                found = [array[h] for array in of_groups]
                key_tokens = _take(y[h], keys[h], self._root, own_y)
                group_queries(*(own_x, own_y, tokens, group_levels, *spare, query_rows[place], *found))
                values, metric = _widened(v[h], key_rows.shape[-1] - dim), found[-1]
                found = [array[h] for array in of_clusters]
                cluster_keys(*(own_y, values, key_tokens, levels, *spare, metric, key_rows[place], *found))

        loops.each(prepare, [(h,) for h in range(heads.start, heads.stop)])

    def _attend(
        self,
        heads: slice,
        query_rows: Array,
        key_rows: Array,
        limits: Tensor,
        opening: Tensor,
        keep: bool,
    ) -> tuple[Tensor, Tensor]:
        """Write the outputs and the numbers of exact pairs; return exact keys and opened clusters, if wanted."""
        from hrf._attention.loops.summaries import GROUPS
        from hrf._attention.loops.summarised import attend

        n, n_groups = heads.stop - heads.start, self._sizes.shape[1]
        jobs = torch.cartesian_prod(torch.arange(n), torch.arange(0, n_groups, GROUPS))
        tasks = jobs.tensor_split(min(len(jobs), tuning.SUMMARY_TASKS_PER_THREAD * torch.get_num_threads()))
        widths = self._widths, self._query_widths
        of_queries = self._order, self._bounds, self._means, *widths, self._metrics
        of_keys = self._key_bounds, self._centres, self._spreads, self._mean_spreads
        written = self.out, self._sizes, self._met
        arrays = (
            query_rows[:n],
            *loops.arrays(*(t[heads] for t in of_queries)),
            key_rows[:n],
            *loops.arrays(*(t[heads] for t in of_keys)),
            *loops.arrays(*(t[heads].to(self.out.dtype) for t in (limits, opening))),
            *loops.arrays(*(t[heads] for t in written)),
        )
        nothing = torch.empty(0, dtype=torch.int32), torch.empty(0, 3, dtype=torch.int32)
        found = [nothing] * len(tasks)

        def work(i: int) -> None:
            exact, opened = attend(*(tasks[i].numpy(), *arrays, keep))
            found[i] = torch.from_numpy(exact), torch.from_numpy(opened)

        loops.each(work, [(i,) for i in range(len(tasks))])
        exact, opened = (torch.cat(parts).long() for parts in zip(*found, strict=True))
        opened[:, 0] += heads.start
        return exact, opened

    def plan(self) -> Plan:
        """Return the plan."""
        groups, clusters = _parts(self._order, self._bounds), _parts(self._key_order, self._key_bounds)
        sizes = self._sizes.flatten()
        starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        head = torch.arange(len(self._sizes)).repeat_interleave(self._sizes.sum(-1))
        # Rows of all heads one after the other, so that one search finds their clusters.
        rows = self._key_order.shape[1] + 1
        firsts = (self._key_bounds[:, :-1] + rows * torch.arange(len(self._sizes))[:, None]).flatten()
        found = torch.searchsorted(firsts, self._exact + rows * head, right=True) - 1
        cluster, first = found % self._centres.shape[1], self._key_bounds[:, :-1].flatten()[found]
        exact = cluster * clusters.tokens.shape[-1] + self._exact - first
        return Plan(groups, clusters, starts, exact, self._opened_places(groups.tokens.shape))

    def _opened_places(self, shape: torch.Size) -> Tensor:
        """Return `Plan.opened`, from heads, rows and clusters."""
        head, row, cluster = self._opened.mT.contiguous()
        bounds = self._bounds[head]
        group = torch.searchsorted(bounds, row[:, None], right=True)[:, 0] - 1
        place = (head * shape[1] + group) * shape[2] + row - bounds.gather(1, group[:, None])[:, 0]
        return torch.stack([place, cluster], -1)


def _at_a_time(heads: Heads) -> int:
    """Return how many heads to compute at a time: as many as fit `tuning.SUMMARY_TOKENS`, and keep all threads busy."""
    threads, longest = torch.get_num_threads(), max(heads.x.shape[1], heads.y.shape[1])
    return min(len(heads.x), threads * max(1, tuning.SUMMARY_TOKENS // (longest * threads)))


def _take(u: Array, real: NDArray[np.bool_], factor: float, out: Array) -> NDArray[np.int64]:
    """Write rows of u that are no padding, times a factor, to the first columns of ``out``; return which they are.

    Columns beyond those of u become zero.
    """
    out[:, u.shape[1] :] = 0
    out = out[:, : u.shape[1]]
    if len(out) == len(u):
        np.multiply(u, np.float32(factor), out=out)
        return np.arange(len(u))
    tokens = real.nonzero()[0]
    np.multiply(u[tokens], np.float32(factor), out=out)
    return tokens


def _widened(v: Array, width: int) -> Array:
    """Return rows with columns of zeros up to a width, one after the other."""
    return np.ascontiguousarray(np.pad(v, ((0, 0), (0, width - v.shape[1]))) if v.shape[1] < width else v)


def _parts(order: Tensor, bounds: Tensor) -> Parts:
    """Return the parts ``order[bounds[p] : bounds[p + 1]]`` of each head."""
    sizes = bounds.diff()
    place = torch.arange(int(sizes.max()))
    filled = place < sizes[..., None]
    rows = (bounds[:, :-1, None] + place).where(filled, 0)
    return Parts(order.gather(1, rows.flatten(1)).view(rows.shape), filled)

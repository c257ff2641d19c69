"""Summarised attention in compiled loops, in float32: a plan of their own, and the output of `read` for it."""

from __future__ import annotations

import math
from typing import NamedTuple

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


class _HeadBuffers(NamedTuple):
    """Vectors of a few heads at a time.

    Attributes:
        x: queries without padding, ``(heads, L, d)``.
        y: keys without padding, ``(heads, S, d)``.
        spare: room for either, with some more rows.
        more: likewise.
        queries: queries by group, ``(heads, L, d)``.
        keys: keys and values by cluster, ``(heads, S + ROWS, d + d_v)``.
    """

    x: Tensor
    y: Tensor
    spare: Tensor
    more: Tensor
    queries: Tensor
    keys: Tensor

    @classmethod
    def of(cls, heads: Heads) -> _HeadBuffers:
        """Allocate buffers for as many heads as fit `tuning.SUMMARY_TOKENS`, and keep all threads busy."""
        from hrf._attention.loops.products import ROWS, padded

        (n, length, dim), (n_keys, width) = heads.x.shape, heads.v.shape[1:]
        threads, longest = torch.get_num_threads(), max(length, n_keys)
        rounds = max(1, tuning.SUMMARY_TOKENS // (longest * threads))
        some, dim, width = min(n, rounds * threads), padded(dim), padded(width)
        # Columns beyond those of the vectors have to be zero.
        whole = (dim, width) == (heads.x.shape[-1], heads.v.shape[-1])
        allocate = heads.x.new_empty if whole else heads.x.new_zeros
        rows = (length, n_keys, longest + ROWS, longest + ROWS, length)
        buffers = [allocate(some, m, dim) for m in rows]
        return cls._make([*buffers, allocate(some, n_keys + ROWS, dim + width)])


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
        self._heads, self._root, self._buffers = heads, root, _HeadBuffers.of(heads)
        (n, length, _), (n_keys, width) = heads.x.shape, heads.v.shape[1:]
        dim = self._buffers.x.shape[-1]
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
        limits, some = log_limits(tolerance, key_counts) / math.log(2), len(self._buffers.x)
        exact, opened = [], []
        for first in range(0, n, some):
            own = slice(first, min(first + some, n))
            self._find_parts(own, counts.tolist(), key_counts.tolist())
            found = self._attend(own, limits, opening_limits(tolerance), keep)
            exact.append(found[0])
            opened.append(found[1])
        self._exact, self._opened = torch.cat(exact), torch.cat(opened)
        pairs = (self._sizes * self._bounds.diff() + self._met).sum(-1)
        self.share = pairs / (counts * key_counts).clamp(min=1)

    def _find_parts(self, heads: slice, counts: list[int], key_counts: list[int]) -> None:
        """Put queries into groups and keys into clusters."""
        from hrf._attention.loops.groups import cluster_keys, group_queries

        tensors = self._heads[:5], self._buffers
        (x, y, v, queries, keys), buffers = ([t.detach().numpy() for t in group] for group in tensors)
        widths = self._widths, self._query_widths
        of_groups = loops.arrays(self._order, self._bounds, self._means, *widths, self._metrics)
        spreads = self._spreads, self._mean_spreads
        of_clusters = loops.arrays(self._key_order, self._key_bounds, self._centres, *spreads)
        group_levels, levels = (t.shape[1].bit_length() - 1 for t in (self._means, self._centres))

        def prepare(h: int) -> None:
            own_x, own_y, spare, more, *rows = (buffer[h - heads.start] for buffer in buffers)
            own_x, own_y = own_x[: counts[h]], own_y[: key_counts[h]]
            tokens = _take(x[h], queries[h], self._root, own_x)
            found = [array[h] for array in of_groups]
            key_tokens = _take(y[h], keys[h], self._root, own_y)
            group_queries(*(own_x, own_y, tokens, group_levels, spare, more, rows[0], *found))
            values, metric = np.ascontiguousarray(v[h]), found[-1]
            found = [array[h] for array in of_clusters]
            cluster_keys(*(own_y, values, key_tokens, levels, spare, more, metric, rows[1], *found))

        loops.each(prepare, [(h,) for h in range(heads.start, heads.stop)])

    def _attend(self, heads: slice, limits: Tensor, opening: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
        """Write the outputs and the numbers of exact pairs; return exact keys and opened clusters, if wanted."""
        from hrf._attention.loops.summaries import GROUPS
        from hrf._attention.loops.summarised import attend

        n, n_groups = heads.stop - heads.start, self._sizes.shape[1]
        jobs = torch.cartesian_prod(torch.arange(n), torch.arange(0, n_groups, GROUPS))
        tasks = jobs.tensor_split(min(len(jobs), tuning.SUMMARY_TASKS_PER_THREAD * torch.get_num_threads()))
        widths = self._widths, self._query_widths
        of_queries = self._order, self._bounds, self._means, *widths, self._metrics
        of_keys = self._key_bounds, self._centres, self._spreads, self._mean_spreads
        queries, keys = (t[:n] for t in self._buffers[4:])
        arrays = loops.arrays(
            queries,
            *(t[heads] for t in of_queries),
            keys,
            *(t[heads] for t in of_keys),
            limits[heads].to(keys.dtype),
            opening[heads].to(keys.dtype),
            self.out[heads],
            self._sizes[heads],
            self._met[heads],
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


def _take(u: Array, real: NDArray[np.bool_], factor: float, out: Array) -> NDArray[np.int64]:
    """Write rows of u that are no padding, times a factor, to the first columns of ``out``; return which they are."""
    out = out[:, : u.shape[1]]
    if len(out) == len(u):
        np.multiply(u, np.float32(factor), out=out)
        return np.arange(len(u))
    tokens = real.nonzero()[0]
    np.multiply(u[tokens], np.float32(factor), out=out)
    return tokens


def _parts(order: Tensor, bounds: Tensor) -> Parts:
    """Return the parts ``order[bounds[p] : bounds[p + 1]]`` of each head."""
    sizes = bounds.diff()
    place = torch.arange(int(sizes.max()))
    filled = place < sizes[..., None]
    rows = (bounds[:, :-1, None] + place).where(filled, 0)
    return Parts(order.gather(1, rows.flatten(1)).view(rows.shape), filled)

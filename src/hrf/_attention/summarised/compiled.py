"""Summarised attention in compiled loops, in float32: a plan of their own, and the output of `read` for it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from hrf import tuning
from hrf._attention import loops
from hrf._attention.summarised.heads import Heads
from hrf._attention.summarised.plan import Plan
from hrf._attention.summarised.tree import Parts

__all__ = ["Compiled", "serves"]


def serves(heads: Heads) -> bool:
    """Whether the loops can compute these heads."""
    return loops.serves(*heads[:3]) and heads.x.dtype == torch.float32


class Compiled:
    """Outputs of N heads, and the plan they were computed with.

    Args:
        heads: queries, keys and values in float32.
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
        self, heads: Heads, n_groups: int, n_clusters: int, tolerance: Tensor, *, keep: bool = False
    ) -> None:
        from hrf._attention.loops.products import ROWS, padded

        x, y, v = (pad(t, (0, padded(t.shape[-1]) - t.shape[-1])) for t in heads[:3])
        (n, length, dim), (n_keys, width) = x.shape, v.shape[1:]
        self._real = [[row.nonzero().flatten() for row in mask] for mask in (heads.queries, heads.keys)]
        self._queries, self._order = x.new_empty(x.shape), torch.empty(n, length, dtype=torch.long)
        self._bounds = torch.empty(n, n_groups + 1, dtype=torch.long)
        self._means, self._widths = x.new_empty(n, n_groups, dim), x.new_empty(n, n_groups)
        self._metrics = x.new_empty(n, dim, dim)
        self._keys = x.new_empty(n, n_keys + ROWS, dim + width)
        self._key_order = torch.empty(n, n_keys, dtype=torch.long)
        self._key_bounds = torch.empty(n, n_clusters + 1, dtype=torch.long)
        self._centres, self._spreads = x.new_empty(n, n_clusters, dim), x.new_empty(n, n_keys)
        self._sizes = torch.zeros(n, n_groups, dtype=torch.long)
        self._find_parts(x, y, v)
        out = x.new_zeros(n, length, width)
        self._exact = self._attend(out, tolerance / heads.keys.sum(-1).clamp(min=1), keep)
        self.out = out[..., : heads.v.shape[-1]]
        pairs = (self._sizes * self._bounds.diff()).sum(-1)
        self.share = pairs / (heads.queries.sum(-1) * heads.keys.sum(-1)).clamp(min=1)

    def _find_parts(self, x: Tensor, y: Tensor, v: Tensor) -> None:
        """Put queries into groups and keys into clusters."""
        from hrf._attention.loops.groups import cluster_keys, group_queries

        of_groups = self._queries, self._order, self._bounds, self._means, self._widths, self._metrics
        of_clusters = self._keys, self._key_order, self._key_bounds, self._centres, self._spreads
        group_levels, levels = (t.shape[1].bit_length() - 1 for t in (self._means, self._centres))

        def prepare(h: int) -> None:
            queries, keys = (real[h] for real in self._real)
            given = loops.arrays(x[h], y[h], queries, keys)
            group_queries(*(*given, group_levels, *loops.arrays(*(t[h] for t in of_groups))))
            given = loops.arrays(y[h], v[h], keys)
            found = loops.arrays(self._metrics[h], *(t[h] for t in of_clusters))
            cluster_keys(*(*given, levels, *found))

        loops.each(prepare, [(h,) for h in range(len(x))])

    def _attend(self, out: Tensor, bounds: Tensor, keep: bool) -> Tensor:
        """Write the outputs and the numbers of exact keys; return the exact keys, if wanted."""
        from hrf._attention.loops.summaries import GROUPS
        from hrf._attention.loops.summarised import attend

        n, n_groups = self._sizes.shape
        jobs = torch.cartesian_prod(torch.arange(n), torch.arange(0, n_groups, GROUPS))
        tasks = jobs.tensor_split(min(len(jobs), tuning.SUMMARY_TASKS_PER_THREAD * torch.get_num_threads()))
        of_queries = self._queries, self._order, self._bounds, self._means, self._widths, self._metrics
        of_keys = self._keys, self._key_bounds, self._centres, self._spreads
        arrays = loops.arrays(*of_queries, *of_keys, bounds.log2().to(out.dtype), out, self._sizes)
        found: list[Tensor] = [torch.empty(0)] * len(tasks)

        def work(i: int) -> None:
            found[i] = torch.from_numpy(attend(*(tasks[i].numpy(), *arrays, keep)))

        loops.each(work, [(i,) for i in range(len(tasks))])
        return torch.cat(found).long()

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
        return Plan(groups, clusters, starts, cluster * clusters.tokens.shape[-1] + self._exact - first)


def _parts(order: Tensor, bounds: Tensor) -> Parts:
    """Return the parts ``order[bounds[p] : bounds[p + 1]]`` of each head."""
    sizes = bounds.diff()
    place = torch.arange(int(sizes.max()))
    filled = place < sizes[..., None]
    rows = (bounds[:, :-1, None] + place).where(filled, 0)
    return Parts(order.gather(1, rows.flatten(1)).view(rows.shape), filled)

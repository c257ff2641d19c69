"""Summarised attention in compiled loops: plan and output in one go, without autograd."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from hrf import tuning
from hrf._attention import loops
from hrf._attention.summarised.heads import Heads

__all__ = ["Found", "attend"]


class Found(NamedTuple):
    """Outputs of all heads, and what they were computed from.

    Attributes:
        out: ``(N, L, d_v)``; zeros for padding.
        sizes: number of exact keys per group, ``(N, G)``.
        missed: sum of (share of the mass)² expm1(γd²) over all other keys, ``(N, G)``.
    """

    out: Tensor
    sizes: Tensor
    missed: Tensor


@torch.no_grad()
def attend(heads: Heads, n_groups: int, n_clusters: int, tolerance: Tensor) -> Found:
    """Compute the outputs for N heads in float32; numbers of groups and clusters are powers of two."""
    from hrf._attention.loops.parts import cluster_keys, group_queries
    from hrf._attention.loops.products import ROWS, padded
    from hrf._attention.loops.summarised import attend as read
    from hrf._attention.loops.summaries import GROUPS

    x, y, v = (pad(t, (0, padded(t.shape[-1]) - t.shape[-1])) for t in heads[:3])
    (n, length, dim), (n_keys, width) = x.shape, v.shape[1:]
    real, real_keys = ([row.nonzero().flatten() for row in mask] for mask in (heads.queries, heads.keys))
    queries, order = x.new_empty(n, length, dim), torch.empty(n, length, dtype=torch.long)
    bounds, means = torch.empty(n, n_groups + 1, dtype=torch.long), x.new_empty(n, n_groups, dim)
    widths, metrics = x.new_empty(n, n_groups), x.new_empty(n, dim, dim)
    keys, key_order = x.new_empty(n, n_keys + ROWS, dim + width), torch.empty(n, n_keys, dtype=torch.long)
    key_bounds, centres = torch.empty(n, n_clusters + 1, dtype=torch.long), x.new_empty(n, n_clusters, dim)
    spreads = x.new_empty(n, n_keys)

    def prepare(h: int) -> None:
        arrays = loops.arrays(
            x[h], y[h], real[h], real_keys[h], queries[h], order[h], bounds[h], means[h], widths[h], metrics[h]
        )
        group_queries(*arrays[:4], n_groups.bit_length() - 1, *arrays[4:])
        arrays = loops.arrays(
            y[h], v[h], real_keys[h], metrics[h], keys[h], key_order[h], key_bounds[h], centres[h], spreads[h]
        )
        cluster_keys(*arrays[:3], n_clusters.bit_length() - 1, *arrays[3:])

    loops.each(prepare, [(h,) for h in range(n)])
    out, sizes = x.new_zeros(n, length, v.shape[-1]), torch.zeros(n, n_groups, dtype=torch.long)
    missed = x.new_zeros(n, n_groups)
    limits = (tolerance / heads.keys.sum(-1).clamp(min=1)).log2().to(x.dtype)
    jobs = torch.cartesian_prod(torch.arange(n), torch.arange(0, n_groups, GROUPS))
    tasks = jobs.tensor_split(min(len(jobs), tuning.TASKS_PER_THREAD * torch.get_num_threads()))
    arrays = loops.arrays(
        queries, order, bounds, means, widths, metrics, keys, key_bounds, centres, spreads, limits, out, sizes, missed
    )
    loops.each(read, [(*loops.arrays(task), *arrays) for task in tasks])
    return Found(out[..., : heads.v.shape[-1]], sizes, missed)

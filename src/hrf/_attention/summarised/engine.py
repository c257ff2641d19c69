"""Summarised attention of a call: from inputs to heads of similar length, and back, in compiled loops where they serve.

Compiled loops make a plan of their own, in float32, and the output of ``read.py`` for it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from hrf import tuning
from hrf._attention import loops
from hrf._attention.call import recompute
from hrf._attention.inputs import Inputs
from hrf._attention.summarised.method import SummarisedAttention, SummaryCall
from hrf._attention.summarised.plan import Heads, Parts, Plan, log_limits, opening_limits
from hrf._attention.summarised.prediction import predicted_error
from hrf._attention.summarised.read import make_plan, read
from hrf.numerics import check_finite

__all__ = ["Compiled", "serves", "summarised_attention"]


Array = NDArray[np.float32]
Found = tuple[NDArray[np.int32], NDArray[np.int32]]  # exact keys, and opened clusters


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
        from hrf._attention.loops.products import padded

        self._heads, self._root, self._keep = [t.detach().numpy() for t in heads], root, keep
        (n, length, _), (n_keys, width) = heads.x.shape, heads.v.shape[1:]
        dim, new = padded(heads.x.shape[-1]), heads.x.new_empty
        counts, key_counts = heads.queries.sum(-1), heads.keys.sum(-1)
        self._counts: tuple[list[int], list[int]] = counts.tolist(), key_counts.tolist()
        self._order = torch.empty(n, length, dtype=torch.long)
        self._bounds = torch.empty(n, n_groups + 1, dtype=torch.long)
        of_queries = new(n, n_groups, dim), new(n, n_groups), new(n, length), new(n, dim, dim)
        self._of_groups = loops.arrays(self._order, self._bounds, *of_queries)
        self._key_order = torch.empty(n, n_keys, dtype=torch.long)
        self._key_bounds = torch.empty(n, n_clusters + 1, dtype=torch.long)
        of_keys = new(n, n_clusters, dim), new(n, n_keys, 2), new(n, n_clusters)
        self._of_clusters = loops.arrays(self._key_order, self._key_bounds, *of_keys)
        self._sizes, self._met = (torch.zeros(n, n_groups, dtype=torch.long) for _ in range(2))
        # Outputs of all queries are written; those of padding stay.
        self.out = (new if bool((counts == length).all()) else heads.x.new_zeros)(n, length, width)
        limits = log_limits(tolerance, key_counts) / math.log(2), opening_limits(tolerance)
        self._limits = loops.arrays(*(limit.to(self.out.dtype) for limit in limits))
        self._written = loops.arrays(self.out, self._sizes, self._met)
        self._exact, self._opened = self._run()
        pairs = (self._sizes * self._bounds.diff() + self._met).sum(-1)
        self.share = pairs / (counts * key_counts).clamp(min=1)

    def _run(self) -> tuple[Tensor, Tensor]:
        """Compute all heads; return exact keys and opened clusters, if they are kept.

        A thread computes a head from beginning to end, in memory that stays in its cache. The last heads, fewer than
        there are threads, are shared out in blocks of groups.
        """
        n, threads = len(self._sizes), torch.get_num_threads()
        alone = n - n % threads
        found: dict[int, Found] = {}
        own = self._blocks(1)

        def whole(head: int) -> None:
            with self._rows(1) as rows:
                self._prepare(head, *(array[0] for array in rows))
                found[head] = self._attend(own, slice(head, head + 1), *rows)

        def block(i: int) -> None:
            found[alone + i] = self._attend(tasks[i], slice(alone, n), *rows)

        loops.each(whole, [(head,) for head in range(alone)])
        if alone < n:
            blocks = self._blocks(n - alone)
            tasks = np.array_split(blocks, min(len(blocks), tuning.SUMMARY_TASKS_PER_THREAD * threads))
            with self._rows(n - alone) as rows:
                loops.each(
                    self._prepare, [(alone + i, *(array[i] for array in rows)) for i in range(n - alone)]
                )
                loops.each(block, [(i,) for i in range(len(tasks))])
        exact, opened = (np.concatenate([found[i][part] for i in sorted(found)]) for part in (0, 1))
        return torch.from_numpy(exact).long(), torch.from_numpy(opened).long()

    def _rows(self, n: int) -> AbstractContextManager[list[Array]]:
        """Lend room for n heads: queries by group, keys and values by cluster, and images of keys where they help."""
        from hrf._attention.loops.memory import borrowed
        from hrf._attention.loops.products import ROWS, padded

        (_, length, dim), (n_keys, width) = self._heads[0].shape, self._heads[2].shape[1:]
        dim, width, rows = padded(dim), padded(width), n_keys + ROWS
        small = n_keys < dim * (self._key_bounds.shape[1] - 1)
        return borrowed((n, length, dim), (n, rows, dim + width), (n, rows if small else 0, dim))

    def _blocks(self, n: int) -> NDArray[np.int64]:
        """Return head and first group of all blocks of groups of n heads, ``(·, 2)``."""
        from hrf._attention.loops.summaries import GROUPS

        firsts = np.arange(0, self._sizes.shape[1], GROUPS)
        return np.stack([np.repeat(np.arange(n), len(firsts)), np.tile(firsts, n)], 1)

    def _prepare(self, h: int, query_rows: Array, key_rows: Array, images: Array) -> None:
        """Put a head's queries into groups and its keys into clusters; write rows by group and by cluster."""
        from hrf._attention.loops.groups import cluster_keys, group_queries
        from hrf._attention.loops.memory import borrowed
        from hrf._attention.loops.products import ROWS

        x, y, v, queries, keys = (array[h] for array in self._heads)
        groups, clusters = ([array[h] for array in of] for of in (self._of_groups, self._of_clusters))
        (n, n_keys), dim = (counts[h] for counts in self._counts), query_rows.shape[-1]
        spare = max(len(x), len(y)) + ROWS, dim
        with borrowed((n, dim), (n_keys, dim), spare, spare) as (own_x, own_y, *spares):
            tokens = _take(x, queries, self._root, own_x)
            key_tokens = _take(y, keys, self._root, own_y)
            values, levels = _widened(v, key_rows.shape[-1] - dim), len(groups[2]).bit_length() - 1
            group_queries(*(own_x, own_y, tokens, levels, *spares, query_rows, *groups))
            metric, levels = groups[-1], len(clusters[2]).bit_length() - 1
            cluster_keys(*(own_y, values, key_tokens, levels, *spares, metric, key_rows, images, *clusters))

    def _attend(
        self, blocks: NDArray[np.int64], heads: slice, query_rows: Array, key_rows: Array, images: Array
    ) -> Found:
        """Write outputs and numbers of exact pairs of blocks of groups; return exact keys and opened clusters."""
        from hrf._attention.loops.summarised import attend

        groups, clusters = ([array[heads] for array in of] for of in (self._of_groups, self._of_clusters[1:]))
        limits, written = ([array[heads] for array in of] for of in (self._limits, self._written))
        exact, opened = attend(
            *(blocks, query_rows, *groups, key_rows, images, *clusters, *limits, *written, self._keep)
        )
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
        cluster, first = found % (self._key_bounds.shape[1] - 1), self._key_bounds[:, :-1].flatten()[found]
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


ROUNDS = 6  # of the search for a tolerance with a target error
LARGEST = (
    1e12  # of the norms of a head and of their product: squares of sums of products of these fit float32
)


class _Account(NamedTuple):
    """Tolerance, exact share and predicted error of the heads of some batch items, ``(b, H)`` each."""

    tolerance: Tensor
    exact_share: Tensor
    predicted_error: Tensor


def summarised_attention(inputs: Inputs, method: SummarisedAttention) -> Tensor:
    """Return ``(B, H, L, d_v)``. Items of equal numbers of groups and clusters go together, the others apart."""
    repeated = (inputs.key, inputs.value)
    key, value = (u.repeat_interleave(inputs.groups, 1) if inputs.groups > 1 else u for u in repeated)
    batch, device = len(inputs.query), inputs.query.device
    queries = _present(inputs.present, batch, inputs.query.shape[2], device)
    keys = _present(None if inputs.ignore is None else ~inputs.ignore, batch, key.shape[2], device)
    items: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, counts in enumerate(zip(queries.sum(-1).tolist(), keys.sum(-1).tolist(), strict=True)):
        items[method.sizes(*counts)].append(i)
    outputs, accounts = [], []
    for sizes, own in items.items():
        part = [u if len(own) == batch else u[own] for u in (inputs.query, key, value, queries, keys)]
        heads = _heads(inputs.dtype, *part)
        if sizes == (0, 0) or _is_huge(heads, inputs.root):
            output, account = _exact(heads.scaled(inputs.root))
        else:
            output, account = _summarised(heads, inputs.root, *sizes, method)
        outputs.append(output.unflatten(0, (len(own), -1)))
        accounts.append(_Account(*(u.unflatten(0, (len(own), -1)) for u in account)))
    order = torch.tensor([i for own in items.values() for i in own], device=device).argsort()
    if method.report is not None and batch:
        sizes_of = torch.tensor([sizes for sizes, own in items.items() for _ in own], device=device)[order]
        parts = (torch.cat(u)[order] for u in zip(*accounts, strict=True))
        method.report.add(SummaryCall(*sizes_of.unbind(-1), *parts))
    if not batch:
        return inputs.query.new_zeros(*inputs.query.shape[:3], value.shape[-1], dtype=inputs.dtype)
    return torch.cat(outputs)[order] if len(outputs) > 1 else outputs[0]


def _present(mask: Tensor | None, batch: int, length: int, device: torch.device) -> Tensor:
    return torch.ones(batch, length, dtype=torch.bool, device=device) if mask is None else mask


def _heads(
    dtype: torch.dtype, query: Tensor, key: Tensor, value: Tensor, queries: Tensor, keys: Tensor
) -> Heads:
    """Put heads and batch items in one axis; padding becomes zeros, so that its content cannot matter."""
    n = query.shape[1]
    x, y, v = (
        _without_padding(u.to(dtype), real).flatten(0, 1)
        for u, real in ((query, queries), (key, keys), (value, keys))
    )
    return Heads(x, y, v, queries.repeat_interleave(n, 0), keys.repeat_interleave(n, 0))


def _without_padding(u: Tensor, real: Tensor) -> Tensor:
    return u if real.all() else u.masked_fill(~real[:, None, :, None], 0)


def _is_huge(heads: Heads, root: float) -> bool:
    """Whether statistics of the queries and keys of some head would overflow; refuse values that are not finite."""
    norms = []
    for name, u in (("query", heads.x), ("key", heads.y)):
        norms.append(torch.linalg.vector_norm(u.detach(), dim=(1, 2)) * root)
        check_finite(norms[-1], u, name)
    product = norms[0] * norms[1]
    check_finite(product, product, "the product of the norms of query and key")
    return bool((torch.stack([*norms, product]) > LARGEST).any())


def _exact(heads: Heads) -> tuple[Tensor, _Account]:
    """Attend exactly: the items are too short for summaries."""
    seen = heads.keys[:, None].expand(-1, heads.x.shape[1], -1)
    # A row without key would be NaN, and its zeros come from the mask below.
    some = seen | ~seen.any(-1, keepdim=True)
    output = F.scaled_dot_product_attention(
        *heads[:3], attn_mask=None if bool(seen.all()) else some, scale=1.0
    )
    output = output * (heads.queries & heads.keys.any(-1, keepdim=True))[..., None]
    nothing = torch.zeros(len(output), dtype=output.dtype, device=output.device)
    return output, _Account(nothing, nothing + 1, nothing)


def _summarised(
    heads: Heads, root: float, n_groups: int, n_clusters: int, method: SummarisedAttention
) -> tuple[Tensor, _Account]:
    traced = torch.is_grad_enabled() and any(t.requires_grad for t in heads[:3])
    planned = traced or method.report is not None or not serves(heads)
    if method.target_error is None:
        tolerance = heads.x.new_full((len(heads.x),), float(method.tolerance))
    else:
        tolerance = _tolerance(heads, root, n_groups, n_clusters, method.target_error)
    # Scaling makes copies, which compiled loops do not need.
    scaled = heads.scaled(root) if planned else heads
    output, share, plan = _attend(heads, scaled, root, n_groups, n_clusters, tolerance, planned)
    error = tolerance
    if plan is not None:
        if traced:
            output = _with_gradients(scaled, plan, output)
        if method.report is not None:
            error = predicted_error(scaled, plan, output.detach())
    return output, _Account(tolerance, share, error)


def _attend(
    heads: Heads,
    scaled: Heads,
    root: float,
    n_groups: int,
    n_clusters: int,
    tolerance: Tensor,
    planned: bool = True,
) -> tuple[Tensor, Tensor, Plan | None]:
    """Return outputs, shares of exact pairs and, where ``planned``, the plan; nothing of it has gradients."""
    if serves(heads):
        found = Compiled(heads, root, n_groups, n_clusters, tolerance, keep=planned)
        return found.out, found.share, found.plan() if planned else None
    with torch.no_grad():
        plan = make_plan(scaled, n_groups, n_clusters, tolerance)
        return read(scaled, plan), _share(plan), plan


@torch.no_grad()
def _tolerance(heads: Heads, root: float, n_groups: int, n_clusters: int, target: float) -> Tensor:
    """Search the largest τ of each head whose predicted error is at most a target, ``(N,)``; 0 is exact attention."""
    scaled = heads.scaled(root)
    tolerance = scaled.x.new_ones(len(scaled.x))
    good, bad = torch.zeros_like(tolerance), torch.full_like(tolerance, torch.inf)  # best and worst so far
    for _ in range(ROUNDS):
        output, _, plan = _attend(heads, scaled, root, n_groups, n_clusters, tolerance)
        assert plan is not None
        error = predicted_error(scaled, plan, output)
        fits = error <= target
        good, bad = tolerance.where(fits, good), bad.where(fits, tolerance)
        # Errors grow more slowly than the tolerance.
        step = (target / error.clamp(min=target / 64)).clamp(1 / 16, 16)
        outside = tolerance * step.where(fits, step / 2)
        tolerance = (good * bad).sqrt().where((good > 0) & (bad < torch.inf), outside)
    return good


def _with_gradients(heads: Heads, plan: Plan, output: Tensor) -> Tensor:
    """Return ``output``, with the gradients of `read`, which the backward pass computes."""

    def function(x: Tensor, y: Tensor, v: Tensor) -> tuple[Tensor]:
        traced = torch.is_grad_enabled()
        return (read(heads._replace(x=x, y=y, v=v), plan) if traced else output,)

    return recompute(function, *heads[:3], learned=())[0]


def _share(plan: Plan) -> Tensor:
    """Return the share of exact pairs of each head, ``(N,)``."""
    sizes = plan.groups.filled.sum(-1)  # (N, G)
    pairs = (plan.starts.diff().reshape(sizes.shape) * sizes).sum(-1)
    head = plan.opened[:, 0] // plan.groups.tokens[0].numel()
    pairs = pairs.index_add(0, head, plan.unmet(slice(None)).sum(-1))
    return pairs / (sizes.sum(-1) * plan.clusters.filled.sum((1, 2)))

"""Pairs of clusters that are exact: exp(xᵀy) for the queries of one and the keys of the other.

A block of queries meets the list of the keys of its exact clusters: all of the list or, in causal attention, its
beginning. The backward pass recomputes the products, so that none of them is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from hrf import tuning
from hrf._attention import loops
from hrf._attention.clustered.tokens import LOG2E, PairEngine
from hrf._attention.label_blocks import LabelBlocks
from hrf.numerics import Features, finite, full_precision

__all__ = ["Exact", "Lists", "met"]


class Exact(PairEngine):
    """Softmax numerators."""

    @override
    def sums(self) -> Features:
        assert self.active is not None
        queries, keys = self.queries.blocks, self.keys.blocks
        lists = Lists.of(queries, keys, self.active)
        x = self.queries.tokens * (self.queries.root * self.keys.root * LOG2E)
        flat = (t.flatten(0, -2) for t in (x, self.keys.tokens, self.columns(self.values)))
        return Features(*(t.unflatten(0, (len(self.active), -1)) for t in met(queries, lists, *flat)))


class Lists(NamedTuple):
    """Lists of keys, and how many keys of a list each block of queries meets.

    Attributes:
        tokens: the keys of all lists, one list after the other.
        first: where the list of each block begins, ``(N,)``.
        lengths: how many keys from there the queries of a block meet, ``(N, 1)``, or each of them, ``(N, size)``.
    """

    tokens: Tensor
    first: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, queries: LabelBlocks, keys: LabelBlocks, exact: Tensor, last: Tensor | None = None) -> Lists:
        """List the keys that each block of queries meets.

        Args:
            queries: by cluster.
            keys: by cluster.
            exact: pairs of clusters, ``(R, n_q, n_k)``.
            last: the last key that each query may meet, ``(R·L,)``; ``None`` for all.
        """
        tokens, lengths = keys.lists(exact & (queries.counts.mT > 0))
        segment = queries.segment
        first = (lengths.cumsum(0) - lengths).index_select(0, segment)
        if last is None:
            return cls(tokens, first, lengths.index_select(0, segment).unsqueeze(-1))
        # In the order of the sequence, so that the keys up to some token are the beginning of a list.
        n_tokens = keys.place.numel()
        ranks = (torch.repeat_interleave(lengths) * n_tokens + tokens).sort().values
        bounds = segment.unsqueeze(-1) * n_tokens + last[queries.members]
        seen = torch.searchsorted(ranks, bounds, right=True) - first.unsqueeze(-1)
        return cls(ranks % n_tokens, first, seen)

    def products(self, queries: LabelBlocks, x: Tensor, y: Tensor, values: Tensor) -> Iterator[_Products]:
        """Yield batches of the blocks that meet any key."""
        both = torch.cat([y, values], -1)  # one gather is faster than two
        # Blocks that meet about as many keys go together.
        most, order = self.lengths.amax(-1).sort()
        lengths, least = most.tolist(), self.lengths.amin(-1)[order].tolist()
        for some in _batches(lengths, lengths.count(0), queries.members.shape[-1]):
            blocks = order[some]
            slots = torch.arange(lengths[some.stop - 1], device=order.device)
            places = self.first.index_select(0, blocks).unsqueeze(-1) + slots
            keys = _rows(self.tokens, places.clamp_(max=len(self.tokens) - 1))
            key, value = _rows(both, keys).split([y.shape[-1], values.shape[-1]], -1)
            members = queries.members.index_select(0, blocks)
            query = _rows(x, members)
            logs = query @ key.mT
            sure = min(least[some])
            absent = slots[sure:] >= self.lengths.index_select(0, blocks).unsqueeze(-1)
            logs[..., sure:].masked_fill_(absent, -torch.inf)
            yield _Products(blocks, members, keys, query, key, value, logs)


class _Products(NamedTuple):
    """A batch of blocks of queries with the keys that they meet.

    Attributes:
        blocks: indices of the blocks, ``(n,)``.
        members: indices of the queries, ``(n, size)``.
        keys: indices of the keys, ``(n, k)``.
        query: x, ``(n, size, d)``.
        key: y, ``(n, k, d)``.
        value: v, ``(n, k, c)``.
        logs: xᵀy, ``(n, size, k)``, −∞ where query and key do not meet.
    """

    blocks: Tensor
    members: Tensor
    keys: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    logs: Tensor


def met(queries: LabelBlocks, lists: Lists, x: Tensor, y: Tensor, values: Tensor) -> Features:
    """Sum 2^(xᵀy) v(y) over the keys that each query meets, ``(R·L, c)``; the scale is −∞ where there are none."""
    compute = _Met.apply if torch.is_grad_enabled() else _at_places
    sums, scales = compute(queries, lists, x, y, values)
    return Features(queries.give(sums), queries.give(scales))


def _at_places(
    queries: LabelBlocks, lists: Lists, x: Tensor, y: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """Return sums and their scales at all places, ``(N, size, c)`` and ``(N, size, 1)``."""
    sums = values.new_zeros(*queries.members.shape, values.shape[-1])
    scales = values.new_full((*queries.members.shape, 1), -torch.inf)
    if loops.serves(x, y, values):
        from hrf._attention.loops import pairs

        step = max(1, len(sums) // (tuning.EXACT_TASKS_PER_THREAD * torch.get_num_threads()))
        blocks = (queries.members, queries.filled, lists.first, lists.lengths, sums, scales)
        every = loops.arrays(lists.tokens, x, y, values)
        shares = zip(*[t.split(step) for t in blocks], strict=True)
        loops.each(pairs.met, [(*loops.arrays(*share), *every) for share in shares])
        return sums, scales
    for some in lists.products(queries, x, y, values):
        scale = some.logs.amax(-1, keepdim=True)
        scales.index_copy_(0, some.blocks, scale)
        sums.index_copy_(0, some.blocks, some.logs.sub_(finite(scale)).exp2_() @ some.value)
    return sums, scales


class _Met(torch.autograd.Function):
    """`_at_places` with gradients."""

    @staticmethod
    def forward(ctx: Any, queries: LabelBlocks, lists: Lists, x: Tensor, y: Tensor, values: Tensor) -> Any:
        sums, scales = _at_places(queries, lists, x, y, values)
        ctx.queries, ctx.lists = queries, lists
        ctx.save_for_backward(x, y, values, scales)
        ctx.mark_non_differentiable(scales)
        return sums, scales

    @staticmethod
    @once_differentiable
    @full_precision
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:
        x, y, values, scales = ctx.saved_tensors
        grad_x, grad_y, grad_values = (torch.zeros_like(t) for t in (x, y, values))
        for some in ctx.lists.products(ctx.queries, x, y, values):
            scale, g = (t.index_select(0, some.blocks) for t in (scales, grad))
            weights = some.logs.sub_(finite(scale)).exp2_()
            _add(grad_values, some.keys, weights.mT @ g)
            grad_logs = weights.mul_(g @ some.value.mT).mul_(math.log(2))
            _add(grad_x, some.members, grad_logs @ some.key)
            _add(grad_y, some.keys, grad_logs.mT @ some.query)
        return None, None, grad_x, grad_y, grad_values


def _rows(tokens: Tensor, index: Tensor) -> Tensor:
    """Gather rows of ``tokens (T, ...)`` by index ``(n, k)``: ``(n, k, ...)``."""
    return tokens.index_select(0, index.flatten()).unflatten(0, index.shape)


def _add(tokens: Tensor, index: Tensor, rows: Tensor) -> None:
    """Add rows ``(n, k, d)`` to the rows of ``tokens (T, d)`` by index, in place."""
    tokens.index_add_(0, index.flatten(), rows.flatten(0, 1))


def _batches(lengths: list[int], start: int, size: int) -> Iterator[slice]:
    """Cut blocks, ascending by number of keys, into batches with products of at most `tuning.CLUSTER_FLOATS`."""
    while start < len(lengths):
        end = start + 1
        while end < len(lengths) and lengths[end] * size * (end + 1 - start) <= tuning.CLUSTER_FLOATS:
            end += 1
        yield slice(start, end)
        start = end

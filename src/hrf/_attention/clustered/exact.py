"""Pairs of clusters that are exact: exp(xᵀy) for the queries of one and the keys of the other.

A block of queries meets the list of the keys of its exact clusters, all of them or, in causal attention, the
beginning of it. The backward pass computes the products again, so that none of them is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hrf._attention import loops as numba_loops
from hrf._attention.clustered import common
from hrf._attention.clustered.common import LOG2E, Engine
from hrf._attention.label_blocks import Blocks
from hrf.features.base import Features, finite, full_precision

__all__ = ["Exact", "Lists", "met"]

_SHARES = 8  # a thread: blocks are not all the same work


class Exact(Engine):
    """Softmax numerators."""

    def sums(self) -> Features:
        """Those of all queries."""
        assert self.active is not None
        queries, keys = self.queries.blocks, self.keys.blocks
        lists = Lists.of(queries, keys, self.active)
        x = self.queries.tokens * (self.queries.root * self.keys.root * LOG2E)
        flat = (t.flatten(0, -2) for t in (x, self.keys.tokens, self._columns(self.values)))
        return Features(*(t.unflatten(0, (len(self.active), -1)) for t in met(queries, lists, *flat)))


class Lists(NamedTuple):
    """Lists of keys, and how much of a list each block of queries meets.

    Attributes:
        tokens: the keys of all lists, one list after the other.
        first: where the list of each block begins, ``(N,)``.
        lengths: how many keys from there the queries of a block meet, ``(N, 1)``, or each of them, ``(N, size)``.
    """

    tokens: Tensor
    first: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, queries: Blocks, keys: Blocks, exact: Tensor, last: Tensor | None = None) -> Lists:
        """The keys that go with each block of queries.

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

    def products(self, queries: Blocks, x: Tensor, y: Tensor, values: Tensor) -> Iterator[_Products]:
        """Some blocks after others, of those that meet any key."""
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
    """Some blocks of queries with the keys that they meet.

    Attributes:
        blocks: which, ``(n,)``.
        members: which queries, ``(n, size)``.
        keys: which keys, ``(n, k)``.
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


def met(queries: Blocks, lists: Lists, x: Tensor, y: Tensor, values: Tensor) -> Features:
    """Σ 2^(xᵀy) v(y) over the keys that each query meets, ``(R·L, c)``; a scale of −∞ where there are none."""
    return Features(*(queries.give(t) for t in _Met.apply(queries, lists, x, y, values)))


class _Met(torch.autograd.Function):
    """The sums and their scales at all places: ``(N, size, c)`` and ``(N, size, 1)``."""

    @staticmethod
    def forward(ctx: Any, queries: Blocks, lists: Lists, x: Tensor, y: Tensor, values: Tensor) -> Any:
        sums = values.new_zeros(*queries.members.shape, values.shape[-1])
        scales = values.new_full((*queries.members.shape, 1), -torch.inf)
        if numba_loops.serves(x, y, values):
            _in_loops(queries, lists, x, y, values, sums, scales)
        else:
            for some in lists.products(queries, x, y, values):
                scale = some.logs.amax(-1, keepdim=True)
                scales.index_copy_(0, some.blocks, scale)
                sums.index_copy_(0, some.blocks, some.logs.sub_(finite(scale)).exp2_() @ some.value)
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


def _in_loops(
    queries: Blocks, lists: Lists, x: Tensor, y: Tensor, values: Tensor, sums: Tensor, scales: Tensor
) -> None:
    """Fill in sums and scales in compiled loops."""
    from hrf._attention.loops.pairs import met

    step = max(1, len(sums) // (_SHARES * torch.get_num_threads()))
    blocks = (queries.members, queries.filled, lists.first, lists.lengths, sums, scales)
    every = numba_loops.arrays(lists.tokens, x, y, values)
    shares = zip(*(t.split(step) for t in blocks), strict=True)
    numba_loops.each(met, ((*numba_loops.arrays(*share), *every) for share in shares))


def _rows(tokens: Tensor, index: Tensor) -> Tensor:
    """Rows of ``tokens (T, ...)`` by index ``(n, k)``: ``(n, k, ...)``."""
    return tokens.index_select(0, index.flatten()).unflatten(0, index.shape)


def _add(tokens: Tensor, index: Tensor, rows: Tensor) -> None:
    """Add rows ``(n, k, d)`` to those of ``tokens (T, d)``."""
    tokens.index_add_(0, index.flatten(), rows.flatten(0, 1))


def _batches(lengths: list[int], start: int, size: int) -> Iterator[slice]:
    """Blocks by number of keys, ascending, in products of at most `FLOATS`."""
    while start < len(lengths):
        end = start + 1
        while end < len(lengths) and lengths[end] * size * (end + 1 - start) <= common.FLOATS:
            end += 1
        yield slice(start, end)
        start = end

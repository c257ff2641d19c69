"""Pairs of clusters that are exact: exp(xᵀy) for the queries of one and the keys of the other."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from hrf.attention.clusters import common
from hrf.attention.clusters.common import Engine
from hrf.features.base import Features

__all__ = ["Exact"]


class Exact(Engine):
    """exp(xᵀy) itself: blocks of queries, each with the list of the keys that it meets."""

    def rows(self, start: int, end: int) -> Features:
        """Softmax numerators, by blocks of queries that meet about as many keys."""
        assert self.active is not None
        blocks = self.queries.blocks.rows(start, end)
        n_blocks, size = blocks.members.shape
        lists, lengths = self.keys.blocks.rows(start, end).lists(self.active[start:end])
        first = (lengths.cumsum(0) - lengths).index_select(0, blocks.segment)
        # Blocks that meet about as many keys go together.
        lengths, order = lengths.index_select(0, blocks.segment).sort()
        first = first[order]
        n_idle = int((lengths == 0).sum())
        sums = [self.values.new_zeros(n_idle, size, self.values.shape[-1])]
        scales = [self.values.new_full((n_idle, size, 1), -torch.inf)]
        for some, least, most in _batches(lengths.tolist(), n_idle, size):
            slots = torch.arange(most, device=order.device)
            members = lists[(first[some].unsqueeze(-1) + slots).clamp_(max=len(lists) - 1)]
            k, v = (
                t.index_select(0, members.flatten()).view(*members.shape, -1) for t in (self.y, self.values)
            )
            logs = blocks.take(self.x, order[some]) @ k.mT
            absent = slots[least:] >= lengths[some].unsqueeze(-1)
            logs[..., least:].masked_fill_(absent.unsqueeze(-2), -torch.inf)
            scales.append(logs.detach().amax(-1, keepdim=True))
            sums.append(logs.sub_(scales[-1]).exp2_() @ v)
        rank = torch.empty_like(order).scatter_(0, order, torch.arange(n_blocks, device=order.device))
        place = rank[blocks.place // size] * size + blocks.place % size
        return Features(
            *(torch.cat(t).flatten(0, 1).index_select(0, place.flatten()) for t in (sums, scales))
        )


def _batches(lengths: list[int], start: int, size: int) -> Iterator[tuple[slice, int, int]]:
    """Blocks by number of keys, ascending, in products of at most `FLOATS`; with the least and the most keys."""
    while start < len(lengths):
        end = start + 1
        while end < len(lengths) and lengths[end] * size * (end + 1 - start) <= common.FLOATS:
            end += 1
        yield slice(start, end), lengths[start], lengths[end - 1]
        start = end

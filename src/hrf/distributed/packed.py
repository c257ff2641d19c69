"""Packed sequences over ranks: only those that cross from rank to rank need a state of other ranks.

At most one sequence crosses a border between two ranks, so that of n sequences at most ``size − 1`` cross, and a rank
has tokens of at most two of them, its first tokens and its last. Their states meet as one batch, in which ranks without
tokens of a sequence have an empty one; the sequences between are attended to where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from hrf._attention.carry import Carry
from hrf._attention.function import attention
from hrf._attention.inputs import check_packed, check_starts
from hrf.checks import check_tensors
from hrf.distributed.agreement import Description, digest, together
from hrf.distributed.ranks import Ranks
from hrf.distributed.shards import Shard, finished
from hrf.distributed.states import after, meet

__all__ = ["attend_packed"]


class Layout(NamedTuple):
    """The tokens of one rank, by sequence.

    Attributes:
        crossing: tokens of each sequence that crosses a border, the same sequences on every rank; a slice may be empty.
        between: tokens of the other sequences.
        starts: where the other sequences begin among these tokens, and their number.
    """

    crossing: list[slice]
    between: slice
    starts: list[int]

    @classmethod
    def of(cls, starts: Sequence[int], lengths: Sequence[int], rank: int) -> Layout:
        """Lay out sequences that begin at ``starts``, the last of which is the end, over ranks of these lengths."""
        borders = [0, *accumulate(lengths)]
        first, last = borders[rank], borders[rank + 1]
        own = [min(max(start, first), last) - first for start in starts]
        crossing, whole = [], []
        for i, (start, end) in enumerate(pairwise(starts)):
            if any(start < border < end for border in borders):
                crossing.append(slice(own[i], own[i + 1]))
            elif own[i] < own[i + 1]:
                whole.append((own[i], own[i + 1]))
        if not whole:
            return cls(crossing, slice(0, 0), [0])
        between = slice(whole[0][0], whole[-1][1])
        return cls(crossing, between, [0, *(end - between.start for _, end in whole)])


def attend_packed(ranks: Ranks, make_shard: Callable[[], Shard], cu_seqlens: Tensor) -> Tensor:
    """Attend within each sequence; ``cu_seqlens`` says where sequences begin among the tokens of all ranks."""

    def checked() -> Shard:
        check_tensors(cu_seqlens=cu_seqlens)
        shard = make_shard()
        check_packed(shard.inputs, cu_seqlens)
        return shard

    def described(shard: Shard) -> Description:
        own = shard.described()
        starts = f"{len(cu_seqlens)} numbers with hash {digest(str(cu_seqlens.tolist()).encode()):x}"
        return own._replace(claims={**own.claims, "cu_seqlens": starts})

    shard, told = together(ranks, checked, described)
    check_starts(cu_seqlens, sum(other.length for other in told))
    layout = Layout.of(cu_seqlens.tolist(), [other.length for other in told], ranks.rank)
    if not layout.crossing:
        return finished(ranks, shard.rule, lambda: _between(shard, layout))
    pieces = [shard.piece(some) for some in layout.crossing]
    carries, _ = together(ranks, lambda: [piece.written() for piece in pieces], lambda _: Description())
    carry = Carry.of_sums(map(torch.cat, zip(*(own.sums() for own in carries), strict=True)))
    wants = any(other.wants_gradients for other in told)
    met = meet(ranks, carry, is_causal=shard.is_causal, wants_gradients=wants)
    return finished(ranks, shard.rule, lambda: _joined(shard, layout, met))


def _joined(shard: Shard, layout: Layout, met: Carry) -> Tensor:
    """Return the outputs of all tokens of a rank, in order."""
    first: list[Tensor] = []
    last: list[Tensor] = []
    for i, some in enumerate(layout.crossing):
        if some.start < some.stop:
            own = Carry.of_sums(t[i : i + 1] for t in met.sums())
            (first if some.stop <= layout.between.start else last).append(shard.piece(some).attended(own))
    out = torch.cat([*first, _between(shard, layout), *last], -2)
    return after(out, met.state) if met.state.requires_grad else out


def _between(shard: Shard, layout: Layout) -> Tensor:
    """Attend within the sequences that are wholly on this rank."""
    piece = shard.piece(layout.between)
    query, key, value, ignore, root, *_ = piece.inputs
    return piece.inputs.restored(
        attention(
            query,
            key,
            value,
            shard.feature_map,
            is_causal=shard.is_causal,
            key_padding_mask=ignore,
            scale=root**2,
            denominator=shard.rule,
            cu_seqlens=torch.tensor(layout.starts, device=query.device),
        )
    )

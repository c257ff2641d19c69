"""Sums by sign code as matrix products of blocks of tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from hrf import tuning
from hrf._attention.angular.codes import Codes
from hrf._attention.dense.chunks import Scratch
from hrf._attention.label_blocks import LabelBlocks, with_ones

__all__ = ["CodeSums"]


class CodeSums:
    """Turn keys into states by value of each bit, and let queries read them.

    Args:
        n: number of sign bits.
        length: tokens per row at a time.
        widths: widths of the features of both bases.
        like: a tensor with the dtype and device of all.
        columns: columns of the values, or one more for ones.
        in_place: reuse scratch buffers, so that they stay in the cache; not if autograd needs their content.
    """

    def __init__(
        self, n: int, length: int, widths: Sequence[int], like: Tensor, columns: int, *, in_place: bool
    ) -> None:
        self.codes = Codes.of(n, length / tuning.CODE_BLOCK, like)
        self.widths, self.columns, self.in_place = widths, columns, in_place
        self.places: defaultdict[str, Scratch] = defaultdict(Scratch)

    def write(self, features: Tensor, codes: Tensor, values: Tensor) -> Tensor:
        """Sum φ(y) v(y)ᵀ over the keys with each value of each bit, ``(R, G, 2g, D·c)``.

        Args:
            features: φ, ``(R·S + 1, D)``, the last row of which is zero.
            codes: ``(R, G, S)``; 2^g leaves a key out.
            values: ``(R, S, c)``.
        """
        blocks, v, c = self._blocks(codes), values.flatten(0, 1), self.columns
        sums = values.new_zeros(blocks.counts.numel(), features.shape[-1] * c)
        for some in blocks.pieces(tuning.CODE_PLACES // blocks.members.shape[-1]):
            members, filled = blocks.members[some], blocks.filled[some]
            phi = self._take(features, members.where(filled, len(v)), "left")
            place = self._place("product", len(phi), phi.shape[-1], c, like=phi)
            product = torch.bmm(phi.mT, self._values(v, members), out=place)
            sums = sums.index_add_(0, blocks.segment[some], product.flatten(1))
        by_code = sums.view(-1, self.codes.shape[1], sums.shape[-1])
        return torch.bmm(self.codes.same.repeat(len(codes), 1, 1), by_code).unflatten(0, codes.shape[:2])

    def read(self, features: Tensor, codes: Tensor, states: Tensor) -> Tensor:
        """Sum φ(x)ᵀ S over the states S of the bits of each query: ``(R, L, c)``."""
        blocks, c = self._blocks(codes), self.columns
        size, shape = blocks.members.shape[-1], (*blocks.counts.shape, states.shape[-1])
        states = self.codes.spread(states, self.widths, self._place("spread", *shape, like=states)).flatten(
            0, 2
        )
        places = self._place("result", len(blocks.members), size, c, like=features)
        parts = []
        for some in blocks.pieces(tuning.CODE_PLACES // size):
            phi = self._take(features, blocks.members[some], "left")
            own = self._take(states, blocks.segment[some], "right").view(len(phi), -1, c)
            parts.append(torch.bmm(phi, own, out=None if places is None else places[some]))
        result = (torch.cat(parts) if places is None else places).flatten(0, 1)
        total = embedding_bag(blocks.place.mT.flatten(0, 1), result, mode="sum")
        return total.view(len(codes), -1, c)

    def _blocks(self, codes: Tensor) -> LabelBlocks:
        n_codes = self.codes.shape[1]
        return LabelBlocks.of(
            codes, n_codes, min(max(codes.shape[-1] // (2 * n_codes), 8), tuning.CODE_BLOCK)
        )

    def _take(self, table: Tensor, index: Tensor, name: str) -> Tensor:
        """Gather rows of a table, ``(*index.shape, ·)``, into a scratch buffer."""
        out = self._place(name, index.numel(), table.shape[-1], like=table)
        return torch.index_select(table, 0, index.flatten(), out=out).view(*index.shape, -1)

    def _values(self, values: Tensor, members: Tensor) -> Tensor:
        """Gather the values of some tokens, with the column of ones if there is to be one."""
        if values.shape[-1] == self.columns:
            return self._take(values, members, "right")
        out = self._place("right", members.numel(), self.columns, like=values)
        if out is None:
            return with_ones(self._take(values, members, "right"))
        torch.index_select(values, 0, members.flatten(), out=out[:, :-1])
        out[:, -1] = 1
        return out.view(*members.shape, -1)

    def _place(self, name: str, *shape: int, like: Tensor) -> Tensor | None:
        return self.places[name].of(*shape, like=like) if self.in_place else None

"""Positive features that float32 holds as they are: attention without a scale a row.

Where all |ωᵀx| and |ωᵀy| are below `_EXPONENT` and all ‖y‖²/2 below `_SQUARE`, the features are exp(±ωᵀx) for queries,
whose factor exp(−‖x‖²/2) cancels, and exp(±ωᵀy) for keys, whose factor goes to the values. The sums then lie between
exp(−_SHIFT − _SQUARE) and exp(2·_EXPONENT − _SHIFT), times the number of terms. All that depends on a row alone is done
for the whole sequence, and a block is left with matrix products and one exponential.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hrf.attention.blocks import Blocks, Outputs
from hrf.features.base import can_look, half_square
from hrf.features.exponential import Exponential

__all__ = ["Small"]

_EXPONENT, _SQUARE, _SHIFT = 45.0, 20.0, 35.0
_FLOATS = 1 << 20  # features in a block
_ROWS = 1024  # in a block, at most


class Small(NamedTuple):
    """Queries, keys and values, with batch elements and heads in one axis N.

    Attributes:
        query: ``(N, L, d)``.
        key: ``(N, S, d)``.
        value: values and a column of ones, times the keys' factors: ``(N, S, d_v + 1)``.
        omega: √scale ω, transposed: ``(N, d, m)``.
        query_log_scale: logarithm of what the sums of a row lack: ``(N, L, 1)``.
        scale: likewise, of the state: ``(N, 1, 1)``.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    omega: Tensor
    query_log_scale: Tensor
    scale: Tensor

    @classmethod
    def of(cls, blocks: Blocks, query: Tensor, key: Tensor, value: Tensor) -> Small | None:
        """What the engine needs, if it serves the map and these inputs, ``(B, H, ·, ·)``."""
        feature_map = blocks.feature_map
        if not (isinstance(feature_map, Exponential) and feature_map.isotropic and blocks.by_hand):
            return None
        q, k = query.to(blocks.dtype), key.to(blocks.dtype)
        if blocks.ignore is not None:
            k = k.masked_fill(blocks.ignore[:, None, :, None], 0)
        squares = [half_square(u) * blocks.root**2 for u in (q, k)]
        omega = feature_map.projection.omega.to(blocks.dtype)
        if not (can_look(q) and _fit(omega, *squares)):
            return None
        omega = (omega.mT * blocks.root).expand(*q.shape[:2], -1, -1)
        weights = (-squares[1] - _SHIFT).flatten(0, 1)
        scale = _SHIFT - math.log(feature_map.feature_dim) / 2
        return cls(
            q.flatten(0, 1),
            k.flatten(0, 1),
            blocks.values(value, slice(None), weights),
            omega.reshape(-1, *omega.shape[2:]),
            (scale - math.log(feature_map.feature_dim) / 2 - squares[0]).flatten(0, 1),
            weights.new_full((len(weights), 1, 1), scale),
        )

    def features(self, u: Tensor, of: slice, place: Tensor) -> tuple[Tensor, Tensor]:
        """Those of either sign of some vectors ``(n, rows, d)`` of the elements ``of``: ``(n, rows, m)``."""
        plus, minus = place[:, : len(u), : u.shape[1]]
        torch.bmm(u, self.omega[of], out=plus)
        return plus.exp_(), torch.reciprocal(plus, out=minus)

    def state(self) -> Tensor:
        """Σ ψ(y) vᵀ over all keys, by sign: ``(2, N, m, d_v + 1)``."""
        n, _, columns = self.value.shape
        # Transposed: the product is a third faster then.
        states = self.value.new_zeros(2, n, columns, self.omega.shape[-1])
        place = self._place(self.key)
        for of, rows in self._blocks(self.key):
            v = self.value[of, rows].mT
            for state, psi in zip(states, self.features(self.key[of, rows], of, place), strict=True):
                state[of].baddbmm_(v, psi)
        return states.mT.contiguous()

    def outputs(self, states: Tensor) -> Outputs:
        """Quotients of all rows."""
        outputs = Outputs.empty(states[0], self.query.shape[1])
        place = self._place(self.query)
        memory = place.new_empty(*place.shape[1:3], states.shape[-1])
        for of, rows in self._blocks(self.query):
            plus, minus = self.features(self.query[of, rows], of, place)
            sums = torch.bmm(plus, states[0, of], out=memory[: len(plus), : plus.shape[1]])
            outputs.divide(of, rows, sums.baddbmm_(minus, states[1, of]))
        return outputs.settled(self.query_log_scale)

    def causal(self, chunk: int) -> tuple[Outputs, Tensor]:
        """Quotients of rows that see the keys up to theirs, and the state after all keys, in one piece."""
        n, length, columns = self.value.shape
        groups, m = self.query.shape[1] // length, self.omega.shape[-1]  # rows a key; projections
        states = self.value.new_zeros(2, n, columns, m)
        outputs = Outputs.empty(states.mT[0], self.query.shape[1])
        places = [self.value.new_empty(2, n, rows, m) for rows in (chunk * groups, chunk)]
        later = torch.ones(chunk, chunk, dtype=torch.bool).triu_(1).repeat_interleave(groups, 0)
        for start in range(0, length, chunk):
            keys, rows = slice(start, start + chunk), slice(start * groups, (start + chunk) * groups)
            phi = self.features(self.query[:, rows], slice(None), places[0])
            psi = self.features(self.key[:, keys], slice(None), places[1])
            v = self.value[:, keys]
            scores = (phi[0] @ psi[0].mT).baddbmm_(phi[1], psi[1].mT)
            sums = scores.masked_fill_(later[: scores.shape[1], : scores.shape[2]], 0) @ v
            for p, k, state in zip(phi, psi, states, strict=True):
                sums.baddbmm_(p, state.mT)
                state.baddbmm_(v.mT, k)
            outputs.divide(slice(None), rows, sums)
        return outputs.settled(self.query_log_scale), torch.cat([*states], 2).mT.contiguous()

    def tops(self) -> Tensor:
        """Log scales for the backward pass, where the largest factor of the keys so far is 1: ``(N, S, 1)``."""
        weights = self.value[..., -1:]
        return weights.clamp(min=torch.finfo(weights.dtype).tiny).log_().cummax(1).values.add_(self.scale)

    def _blocks(self, u: Tensor) -> Iterator[tuple[slice, slice]]:
        """Elements and rows of ``u (N, L, d)`` whose features are made together."""
        n, rows = self._size(u)
        for i in range(0, len(u), n):
            for start in range(0, u.shape[1], rows):
                yield slice(i, i + n), slice(start, start + rows)

    def _place(self, u: Tensor) -> Tensor:
        """Memory for the features of a block: ``(2, n, rows, m)``."""
        return u.new_empty(2, *self._size(u), self.omega.shape[-1])

    def _size(self, u: Tensor) -> tuple[int, int]:
        """Elements and rows of a block."""
        width = 2 * self.omega.shape[-1]
        rows = max(1, min(_ROWS, _FLOATS // width, u.shape[1]))
        return min(max(1, _FLOATS // (width * rows)), len(u)), rows


def _fit(omega: Tensor, query_squares: Tensor, key_squares: Tensor) -> bool:
    """Whether all exponents are in range; where there are none, there is nothing to gain."""
    if not query_squares.numel() or not key_squares.numel():
        return False
    longest = float(torch.linalg.vector_norm(omega, dim=-1).amax())
    query, key = float(query_squares.amax()), float(key_squares.amax())
    return key < _SQUARE and longest * math.sqrt(2 * max(query, key)) < _EXPONENT

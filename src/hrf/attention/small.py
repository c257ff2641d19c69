"""Positive features that float32 holds as they are: attention without a scale a row.

Where all |ωᵀy| are below `_EXPONENT` and all ‖y‖²/2 below `_SQUARE`, the features of keys are exp(±ωᵀy), whose factor
exp(−‖y‖²/2) goes to the values. Those of queries are exp(±ωᵀx), whose factor cancels. A denominator then is at least
2 exp(−_SHIFT − _SQUARE), by cosh ≥ 1, and the engine gives up where one is above `_MOST`. So a block is left with matrix
products, one exponential and one reciprocal.
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
_MOST = 1e28  # leaves room for values up to 1e10
_FLOATS = 1 << 19  # features in a block: they stay in the cache
_ROWS = 512  # in a block, at most


class Small(NamedTuple):
    """Queries, keys and values, with batch elements and heads in one axis N.

    Attributes:
        query: ``(N, L, d)``.
        key: ``(N, S, d)``, zero where ignored.
        value: ``(N, S, d_v)``.
        ignore: keys to leave out, ``(N, S, 1)``, or ``None``.
        omega: √scale ω, transposed: ``(N, d, m)``.
        longest: ‖ω‖ of the longest one.
        root: √scale.
        squares: ‖y‖²/2 of the keys, known after they were used: ``(N, S, 1)``.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    ignore: Tensor | None
    omega: Tensor
    longest: float
    root: float
    squares: Tensor

    @classmethod
    def of(cls, blocks: Blocks, query: Tensor, key: Tensor, value: Tensor) -> Small | None:
        """What the engine needs, if it serves the map and may look at these inputs, ``(B, H, ·, ·)``."""
        feature_map = blocks.feature_map
        if not (isinstance(feature_map, Exponential) and feature_map.isotropic and blocks.by_hand):
            return None
        if not (can_look(query) and query.numel() and key.numel()):
            return None
        q, k, v = (u.to(blocks.dtype) for u in (query, key, value))
        ignore = None
        if blocks.ignore is not None:
            ignore = blocks.ignore[:, None, :, None].expand(-1, k.shape[1], -1, -1)
            k = k.masked_fill(ignore, 0)
            ignore = ignore.flatten(0, 1)
        omega = feature_map.projection.omega.to(k.dtype)
        longest = float(torch.linalg.vector_norm(omega, dim=-1).amax())
        omega = (omega.mT * blocks.root).expand(*k.shape[:2], -1, -1)
        q, k, v, omega = (u.flatten(0, 1) for u in (q, k, v, omega))
        return cls(q, k, v, ignore, omega, longest, blocks.root, torch.empty_like(k[..., :1]))

    def bidirectional(self) -> tuple[Outputs, Tensor] | None:
        """Quotients of all rows, and the state of all keys; ``None`` if some vector is out of range."""
        states = self._state()
        outputs = None if states is None else self._outputs(states)
        return None if states is None or outputs is None else (outputs, self._joined(states))

    def causal(self, chunk: int) -> tuple[Outputs, Tensor] | None:
        """Quotients of rows that see the keys up to theirs, and the state after all keys.

        ``None`` if some vector is out of range.
        """
        n, length, _ = self.key.shape
        groups, every = self.query.shape[1] // length, slice(None)  # rows a key; all elements
        states = self._empty_state()
        outputs = Outputs.empty(states.mT[0], self.query.shape[1])
        places = [states.new_empty(2, n, rows, states.shape[-1]) for rows in (chunk * groups, chunk)]
        values = states.new_empty(n, chunk, states.shape[-2])
        later = torch.ones(chunk, chunk, dtype=torch.bool).triu_(1).repeat_interleave(groups, 0)
        for start in range(0, length, chunk):
            keys, rows = slice(start, start + chunk), slice(start * groups, (start + chunk) * groups)
            v = self._values(every, keys, values)
            if v is None:
                return None
            phi = self._features(self.query[:, rows], every, places[0])
            psi = self._features(self.key[:, keys], every, places[1])
            scores = (phi[0] @ psi[0].mT).baddbmm_(phi[1], psi[1].mT)
            sums = scores.masked_fill_(later[: scores.shape[1], : scores.shape[2]], 0) @ v
            for p, k, state in zip(phi, psi, states, strict=True):
                sums.baddbmm_(p, state.mT)
                state.baddbmm_(v.mT, k)
            if not _fit(sums):
                return None
            outputs.divide(every, rows, sums)
        return outputs.settled(), self._joined(states.mT)

    def tops(self) -> Tensor:
        """Log scales at which the largest factor of the keys so far is 1: ``(N, S, 1)``."""
        logs = self._log_scale - _SHIFT - self.squares
        if self.ignore is not None:
            logs.masked_fill_(self.ignore, self._log_scale - _SHIFT - _SQUARE)
        return logs.cummax(1).values

    def scaled(self, state: Tensor, top: Tensor) -> Tensor:
        """The state at a log scale of ``tops``; it is overwritten."""
        return state.mul_((self._log_scale - top).exp())

    def query_log_scale(self) -> Tensor:
        """Logarithm of what the sums of a row lack: ``(N, L, 1)``."""
        return 2 * self._log_scale - _SHIFT - self._square(self.query)

    @property
    def _log_scale(self) -> float:
        """Logarithm of what the state lacks."""
        return _SHIFT - math.log(2 * self.omega.shape[-1]) / 2

    def _state(self) -> Tensor | None:
        """Σ ψ(y) vᵀ over all keys, by sign: ``(2, N, m, d_v + 1)``; ``None`` if some key is out of range."""
        states = self._empty_state()
        place, values = self._places(self.key)
        for of, rows in self._blocks(self.key):
            v = self._values(of, rows, values)
            if v is None:
                return None
            for state, psi in zip(states, self._features(self.key[of, rows], of, place), strict=True):
                state[of].baddbmm_(v.mT, psi)
        return states.mT.contiguous()

    def _outputs(self, states: Tensor) -> Outputs | None:
        """Quotients of all rows; ``None`` if some query is out of range."""
        outputs = Outputs.empty(states[0], self.query.shape[1])
        place, memory = self._places(self.query)
        for of, rows in self._blocks(self.query):
            plus, minus = self._features(self.query[of, rows], of, place)
            sums = torch.bmm(plus, states[0, of], out=memory[: len(plus), : plus.shape[1]])
            if not _fit(sums.baddbmm_(minus, states[1, of])):
                return None
            outputs.divide(of, rows, sums)
        return outputs.settled()

    def _square(self, u: Tensor) -> Tensor:
        return half_square(u) * self.root**2

    def _empty_state(self) -> Tensor:
        """Zeros, by sign, transposed: the product is a third faster then: ``(2, N, d_v + 1, m)``."""
        n, _, m = self.omega.shape
        return self.value.new_zeros(2, n, self.value.shape[-1] + 1, m)

    @staticmethod
    def _joined(states: Tensor) -> Tensor:
        """Of both signs, as features are in one piece: ``(N, 2m, d_v + 1)``."""
        return torch.cat([*states], 1)

    def _features(self, u: Tensor, of: slice, place: Tensor) -> tuple[Tensor, Tensor]:
        """Those of either sign of some vectors ``(n, rows, d)`` of the elements ``of``: ``(n, rows, m)``."""
        plus, minus = place[:, : len(u), : u.shape[1]]
        torch.bmm(u, self.omega[of], out=plus)
        return plus.exp_(), torch.reciprocal(plus, out=minus)

    def _values(self, of: slice, rows: slice, place: Tensor) -> Tensor | None:
        """Values and a column of ones, times the keys' factors; ``None`` if some key is out of range."""
        key, value = self.key[of, rows], self.value[of, rows]
        square = self._square(key)
        largest = float(square.amax())
        if not (largest < _SQUARE and math.sqrt(2 * largest) * self.longest < _EXPONENT):
            return None
        self.squares[of, rows] = square
        factor = square.add_(_SHIFT).neg_().exp_()
        out = place[: len(value), : value.shape[1]]
        torch.mul(value, factor, out=out[..., :-1])
        out[..., -1:] = factor
        return out if self.ignore is None else out.masked_fill_(self.ignore[of, rows], 0)

    def _blocks(self, u: Tensor) -> Iterator[tuple[slice, slice]]:
        """Elements and rows of ``u (N, L, d)`` whose features are made together."""
        n, rows = self._size(u)
        for i in range(0, len(u), n):
            for start in range(0, u.shape[1], rows):
                yield slice(i, i + n), slice(start, start + rows)

    def _places(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Memory for the features of a block and for its values or sums: ``(2, n, rows, m)``, ``(n, rows, d_v + 1)``."""
        size = self._size(u)
        return u.new_empty(2, *size, self.omega.shape[-1]), u.new_empty(*size, self.value.shape[-1] + 1)

    def _size(self, u: Tensor) -> tuple[int, int]:
        """Elements and rows of a block."""
        width = 2 * self.omega.shape[-1]
        rows = max(1, min(_ROWS, _FLOATS // width, u.shape[1]))
        return min(max(1, _FLOATS // (width * rows)), len(u)), rows


def _fit(sums: Tensor) -> bool:
    """Whether no denominator is too large, or not a number."""
    return float(sums[..., -1].amax()) < _MOST

"""Positive features that float32 holds as they are: attention without a scale a row.

Where all |ωᵀy| are below `_EXPONENT` and all ‖y‖²/2 below `_SQUARE`, the features of keys are exp(±ωᵀy), whose factor
exp(−‖y‖²/2) goes to the values. Those of queries are exp(±ωᵀx), whose factor cancels. A denominator then is at least
2 exp(−_SHIFT − _SQUARE), by cosh ≥ 1, and the engine gives up where one is above `_MOST`. A block is left with matrix
products, one exponential and one reciprocal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from hrf._attention.dense.blocks import Blocks, Outputs
from hrf.features.base import can_look, half_square
from hrf.features.exponential import Exponential

__all__ = ["Small"]

_EXPONENT, _SQUARE, _SHIFT = 45.0, 20.0, 35.0
_MOST = 1e28  # leaves room for values up to 1e10
_LANES = 16  # numbers that a processor multiplies at once
_FLOATS = 1 << 19  # features in a block: they stay in the cache
_ROWS = 512  # in a block, at most


class Small(NamedTuple):
    """Queries, keys and values, with batch elements and heads in one axis N.

    Attributes:
        query: ``(N, L, d)``.
        key: ``(N, S, d)``, zero where ignored.
        value: ``(N, S, d_v)``, likewise.
        factor: what multiplies values, times exp(−_SHIFT): ``(N, S, 1)``.
        omega: √scale ω, transposed: ``(N, d, m)``.
        root: √scale.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    factor: Tensor
    omega: Tensor
    root: float

    @classmethod
    def of(cls, blocks: Blocks, query: Tensor, key: Tensor, value: Tensor) -> Small | None:
        """What the engine needs, if it serves the map and these keys; ``(B, H, ·, ·)``."""
        feature_map = blocks.feature_map
        if not (isinstance(feature_map, Exponential) and feature_map.isotropic and blocks.by_hand):
            return None
        if not (can_look(query) and query.numel() and key.numel()):
            return None
        q, k, v = (u.detach().to(blocks.dtype) for u in (query, key, value))
        if blocks.ignore is not None:
            k, v = (u.masked_fill(blocks.ignore[:, None, :, None], 0) for u in (k, v))
        omega, square = feature_map.projection.omega.to(k.dtype), half_square(k).mul_(blocks.root**2)
        longest, largest = float(torch.linalg.vector_norm(omega, dim=-1).amax()), float(square.amax())
        if not (largest < _SQUARE and longest * math.sqrt(2 * largest) < _EXPONENT):
            return None
        factor = square.add_(_SHIFT).neg_().exp_()
        if blocks.ignore is not None:
            factor.masked_fill_(blocks.ignore[:, None, :, None], 0)
        omega = (omega.mT * blocks.root).contiguous().expand(*k.shape[:2], -1, -1)
        q, k, v, factor, omega = (u.flatten(0, 1) for u in (q, k, v, factor, omega))
        return cls(q, k, v, factor, omega, blocks.root)

    def bidirectional(self) -> tuple[Outputs, Tensor] | None:
        """Quotients of all rows, and the state of all keys by sign; ``None`` if some query is out of range."""
        states = self._state()
        outputs = self._outputs(states)
        return None if outputs is None else (outputs, states)

    def causal(self, chunk: int) -> tuple[Outputs, Tensor] | None:
        """Quotients of rows that see the keys up to theirs, and the state after all keys by sign.

        ``None`` if some query is out of range.
        """
        n, length, _ = self.key.shape
        groups = self.query.shape[1] // length  # rows a key
        states = self._empty_state()
        outputs = Outputs.empty(states.mT[0], self.query.shape[1])
        rooms = self._room(n, chunk * groups), self._room(n, chunk)
        seen = self.value.new_ones(chunk, chunk).tril_().repeat_interleave(groups, 0)
        queries = (t.split(chunk * groups, 1) for t in (self.query, outputs.values, outputs.used))
        keys = (t.split(chunk, 1) for t in (self.key, self.value, self.factor))
        for x, out, used, y, value, factor in zip(*queries, *keys, strict=True):
            mine, theirs = rooms[0](n, x.shape[1]), rooms[1](n, y.shape[1])
            phi, psi = mine.features(x, self.omega), theirs.features(y, self.omega)
            v = theirs.weighted(value, factor)
            scores = (phi[0] @ psi[0].mT).baddbmm_(phi[1], psi[1].mT)
            # Faster than to fill; not a number where a later pair overflows, and then the engine gives up.
            sums = scores.mul_(seen[: scores.shape[1], : scores.shape[2]]) @ v
            for p, k, state in zip(phi, psi, states, strict=True):
                sums.baddbmm_(p, state.mT)
                state.baddbmm_(v.mT, k)
            _divide(sums[..., :-1], sums[..., -1:], out, used)
        settled = _settled(outputs)
        return None if settled is None else (settled, states.mT)

    def tops(self) -> Tensor:
        """Log scales at which the largest factor of the keys so far is 1: ``(N, S, 1)``."""
        least = math.exp(-_SHIFT - _SQUARE)
        return self.factor.clamp(min=least).log_().cummax(1).values.add_(self._log_scale)

    def joined(self, states: Tensor, top: Tensor) -> Tensor:
        """The state of both signs as features are in one piece, at a log scale of ``tops``: ``(N, 2m, d_v + 1)``."""
        return torch.cat([*states], 1).mul_((self._log_scale - top).exp())

    def query_log_scale(self) -> Tensor:
        """Logarithm of what the sums of a row lack: ``(N, L, 1)``."""
        return 2 * self._log_scale - _SHIFT - self.root**2 * half_square(self.query)

    @property
    def _log_scale(self) -> float:
        """Logarithm of what the state lacks."""
        return _SHIFT - math.log(2 * self.omega.shape[-1]) / 2

    def _state(self) -> Tensor:
        """Σ ψ(y) vᵀ over all keys, by sign: ``(2, N, m, d_v + 1)``."""
        states, room = self._empty_state(), self._rooms(self.key)
        for omega, (plus, minus), *tokens in self._elements(states, self.key, self.value, self.factor):
            for y, value, factor in zip(*tokens, strict=True):
                here = room(*y.shape[:2])
                psi, v = here.features(y, omega), here.weighted(value, factor).mT
                plus.baddbmm_(v, psi[0])
                minus.baddbmm_(v, psi[1])
        return states.mT

    def _outputs(self, states: Tensor) -> Outputs | None:
        """Quotients of all rows; ``None`` if some query is out of range."""
        outputs, room = Outputs.empty(states[0], self.query.shape[1]), self._rooms(self.query)
        # Columns to no purpose: the product is a tenth faster with a multiple of those that are done at once.
        states = pad(states, (0, -states.shape[-1] % _LANES))
        for omega, (plus, minus), *tokens in self._elements(states, self.query, outputs.values, outputs.used):
            for x, out, used in zip(*tokens, strict=True):
                here = room(*x.shape[:2])
                phi = here.features(x, omega)
                torch.bmm(phi[0], plus, out=here.wide).baddbmm_(phi[1], minus)
                _divide(here.most, here.last, out, used)
        return _settled(outputs)

    def _empty_state(self) -> Tensor:
        """Zeros, by sign, transposed: the product is a third faster then: ``(2, N, d_v + 1, m)``."""
        n, _, m = self.omega.shape
        return self.value.new_zeros(2, n, self.value.shape[-1] + 1, m)

    def _elements(self, states: Tensor, *tokens: Tensor) -> Iterator[tuple[Any, ...]]:
        """For some elements after others: their ω, their states, and their tokens in blocks of rows."""
        n, rows = self._size(tokens[0])
        for omega, state, *some in zip(
            self.omega.split(n), states.split(n, 1), *(t.split(n) for t in tokens), strict=True
        ):
            yield omega, state.unbind(), *(t.split(rows, 1) for t in some)

    def _rooms(self, u: Tensor) -> Callable[[int, int], _Room]:
        """Memory for one block after another, by its number of elements and rows."""
        return self._room(*self._size(u))

    def _room(self, n: int, rows: int) -> Callable[[int, int], _Room]:
        """Memory for blocks of at most n elements and some rows."""
        columns = self.value.shape[-1] + 1
        features = self.value.new_empty(2, n, rows, self.omega.shape[-1])
        wide = self.value.new_empty(n, rows, columns + -columns % _LANES)

        @cache
        def part(n: int, rows: int) -> _Room:
            (plus, minus), own = features[:, :n, :rows], wide[:n, :rows]
            both = own[..., :columns]
            return _Room(plus, minus, own, both, both[..., :-1], both[..., -1:])

        return part

    def _size(self, u: Tensor) -> tuple[int, int]:
        """Elements and rows of a block."""
        width = 2 * self.omega.shape[-1]
        rows = max(1, min(_ROWS, _FLOATS // width, u.shape[1]))
        return min(max(1, _FLOATS // (width * rows)), len(u)), rows


class _Room(NamedTuple):
    """Memory for a block of n elements and some rows, which stays in the cache.

    Attributes:
        plus: features of one sign, ``(n, rows, m)``.
        minus: of the other.
        wide: values or sums, with columns to no purpose, ``(n, rows, ·)``.
        both: those with a purpose, ``(n, rows, d_v + 1)``.
        most: all of them but the last.
        last: that of the denominators.
    """

    plus: Tensor
    minus: Tensor
    wide: Tensor
    both: Tensor
    most: Tensor
    last: Tensor

    def features(self, u: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
        """Those of either sign of vectors ``(n, rows, d)``."""
        torch.bmm(u, omega, out=self.plus).exp_()
        return self.plus, torch.reciprocal(self.plus, out=self.minus)

    def weighted(self, value: Tensor, factor: Tensor) -> Tensor:
        """Values and a column of ones, times the keys' factors: ``(n, rows, d_v + 1)``."""
        torch.mul(value, factor, out=self.most)
        self.last.copy_(factor)
        return self.both


def _divide(sums: Tensor, denominators: Tensor, out: Tensor, used: Tensor) -> None:
    """Quotients; the denominators are kept."""
    used.copy_(denominators)
    torch.div(sums, used, out=out)


def _settled(outputs: Outputs) -> Outputs | None:
    """Zeros where there are no keys; ``None`` if some denominator is too large, or not a number."""
    if not float(outputs.used.amax()) < _MOST:
        return None
    low = outputs.used <= 0
    if low.any():
        outputs.values.masked_fill_(low, 0)
        outputs.used.masked_fill_(low, torch.inf)
    return outputs._replace(low=low)

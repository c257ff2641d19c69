"""Positive features that float32 holds as they are: attention without a scale per row.

Where all |ωᵀy| are below `_EXPONENT` and all ‖y‖²/2 below `_SQUARE`, the features of keys are exp(±ωᵀy), whose factor
exp(−‖y‖²/2) goes to the values. The features of queries are exp(±ωᵀx), whose factor cancels. A denominator then is at
least 2 exp(−_SHIFT − _SQUARE), by cosh ≥ 1, and the engine gives up where one is above `_MOST`. A block is left with
matrix products, one exponential and one reciprocal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from hrf import tuning
from hrf._attention.call import Call
from hrf._attention.quotients import Outputs
from hrf.features.exponential import Exponential
from hrf.numerics import can_look, half_square

__all__ = ["UnscaledPositive"]

_EXPONENT, _SQUARE, _SHIFT = 45.0, 20.0, 35.0
_MOST = 1e28  # leaves room for values up to 1e10
_LANES = 16  # numbers that a processor multiplies at once


class UnscaledPositive(NamedTuple):
    """Queries, keys and values, with batch elements and heads in one axis N.

    Attributes:
        query: ``(N, L, d)``.
        key: ``(N, S, d)``, zero where ignored.
        value: ``(N, S, d_v)``, likewise.
        factor: exp(−‖y‖²/2 − _SHIFT), which multiplies values: ``(N, S, 1)``.
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
    def of(cls, call: Call, query: Tensor, key: Tensor, value: Tensor) -> UnscaledPositive | None:
        """Prepare ``(B, H, ·, ·)`` for the engine; ``None`` if it does not serve the map or these keys."""
        feature_map = call.feature_map
        if call.learned or not (
            isinstance(feature_map, Exponential) and feature_map.isotropic and feature_map.only_pairs
        ):
            return None
        if not (can_look(query) and query.numel() and key.numel()):
            return None
        q, k, v = (u.detach().to(call.dtype) for u in (query, key, value))
        if call.ignore is not None:
            k, v = (u.masked_fill(call.ignore[:, None, :, None], 0) for u in (k, v))
        omega, square = feature_map.projection.omega.to(k.dtype), half_square(k).mul_(call.root**2)
        longest, largest = float(torch.linalg.vector_norm(omega, dim=-1).amax()), float(square.amax())
        if not (largest < _SQUARE and longest * math.sqrt(2 * largest) < _EXPONENT):
            return None
        factor = square.add_(_SHIFT).neg_().exp_()
        if call.ignore is not None:
            factor.masked_fill_(call.ignore[:, None, :, None], 0)
        omega = (omega.mT * call.root).contiguous().expand(*k.shape[:2], -1, -1)
        q, k, v, factor, omega = (u.flatten(0, 1) for u in (q, k, v, factor, omega))
        return cls(q, k, v, factor, omega, call.root)

    def bidirectional(self) -> tuple[Outputs, Tensor] | None:
        """Return the outputs of all rows and the state of all keys by sign; ``None`` if a query is out of range."""
        states = self._state()
        outputs = self._outputs(states)
        return None if outputs is None else (outputs, states)

    def causal(self, chunk: int) -> tuple[Outputs, Tensor] | None:
        """Return the outputs of rows that see the keys up to theirs, and the state after all keys by sign.

        ``None`` if a query is out of range.
        """
        n, length, _ = self.key.shape
        groups = self.query.shape[1] // length  # rows per key
        states = self._empty_state()
        outputs = Outputs.empty(states.mT[0], self.query.shape[1])
        buffers = self._buffers(n, chunk * groups), self._buffers(n, chunk)
        seen = self.value.new_ones(chunk, chunk).tril_().repeat_interleave(groups, 0)
        queries = (t.split(chunk * groups, 1) for t in (self.query, outputs.values, outputs.used))
        keys = (t.split(chunk, 1) for t in (self.key, self.value, self.factor))
        for x, out, used, y, value, factor in zip(*queries, *keys, strict=True):
            mine, theirs = buffers[0](n, x.shape[1]), buffers[1](n, y.shape[1])
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
        """Return log scales at which the largest factor of the keys so far is 1: ``(N, S, 1)``."""
        least = math.exp(-_SHIFT - _SQUARE)
        return self.factor.clamp(min=least).log_().cummax(1).values.add_(self._log_scale)

    def joined(self, states: Tensor, top: Tensor) -> Tensor:
        """Join the states of both signs at a log scale of ``tops``: ``(N, 2m, d_v + 1)``, in order of features."""
        return torch.cat([*states], 1).mul_((self._log_scale - top).exp())

    def query_log_scale(self) -> Tensor:
        """Return the log of the factor that the sums of a row lack: ``(N, L, 1)``."""
        return 2 * self._log_scale - _SHIFT - self.root**2 * half_square(self.query)

    @property
    def _log_scale(self) -> float:
        """Log of the factor that the state lacks."""
        return _SHIFT - math.log(2 * self.omega.shape[-1]) / 2

    def _state(self) -> Tensor:
        """Sum ψ(y) vᵀ over all keys, by sign: ``(2, N, m, d_v + 1)``."""
        states, buffers = self._empty_state(), self._buffers_for(self.key)
        for omega, (plus, minus), *tokens in self._elements(states, self.key, self.value, self.factor):
            for y, value, factor in zip(*tokens, strict=True):
                here = buffers(*y.shape[:2])
                psi, v = here.features(y, omega), here.weighted(value, factor).mT
                plus.baddbmm_(v, psi[0])
                minus.baddbmm_(v, psi[1])
        return states.mT

    def _outputs(self, states: Tensor) -> Outputs | None:
        """Divide the sums of all rows; ``None`` if a query is out of range."""
        outputs, buffers = Outputs.empty(states[0], self.query.shape[1]), self._buffers_for(self.query)
        # Padded: the product is a tenth faster where its columns fill the processor's vectors.
        states = pad(states, (0, -states.shape[-1] % _LANES))
        for omega, (plus, minus), *tokens in self._elements(states, self.query, outputs.values, outputs.used):
            for x, out, used in zip(*tokens, strict=True):
                here = buffers(*x.shape[:2])
                phi = here.features(x, omega)
                torch.bmm(phi[0], plus, out=here.wide).baddbmm_(phi[1], minus)
                _divide(here.most, here.last, out, used)
        return _settled(outputs)

    def _empty_state(self) -> Tensor:
        """Allocate zeros by sign, transposed, since the product is a third faster then: ``(2, N, d_v + 1, m)``."""
        n, _, m = self.omega.shape
        return self.value.new_zeros(2, n, self.value.shape[-1] + 1, m)

    def _elements(self, states: Tensor, *tokens: Tensor) -> Iterator[tuple[Any, ...]]:
        """Yield ω, states and tokens in blocks of rows, batch by batch of elements."""
        n, rows = self._size(tokens[0])
        for omega, state, *some in zip(
            self.omega.split(n), states.split(n, 1), *(t.split(n) for t in tokens), strict=True
        ):
            yield omega, state.unbind(), *(t.split(rows, 1) for t in some)

    def _buffers_for(self, u: Tensor) -> Callable[[int, int], _Buffers]:
        """Return scratch buffers for blocks of ``u``, by number of elements and rows."""
        return self._buffers(*self._size(u))

    def _buffers(self, n: int, rows: int) -> Callable[[int, int], _Buffers]:
        """Return scratch buffers for blocks of at most n elements and ``rows`` rows."""
        columns = self.value.shape[-1] + 1
        features = self.value.new_empty(2, n, rows, self.omega.shape[-1])
        wide = self.value.new_empty(n, rows, columns + -columns % _LANES)

        @cache
        def part(n: int, rows: int) -> _Buffers:
            (plus, minus), own = features[:, :n, :rows], wide[:n, :rows]
            both = own[..., :columns]
            return _Buffers(plus, minus, own, both, both[..., :-1], both[..., -1:])

        return part

    def _size(self, u: Tensor) -> tuple[int, int]:
        """Return the number of elements and rows per block."""
        width = 2 * self.omega.shape[-1]
        rows = max(1, min(tuning.UNSCALED_ROWS, tuning.UNSCALED_FLOATS // width, u.shape[1]))
        return min(max(1, tuning.UNSCALED_FLOATS // (width * rows)), len(u)), rows


class _Buffers(NamedTuple):
    """Scratch buffers for a block of n elements and some rows, which stay in the cache.

    Attributes:
        plus: features exp(ωᵀu), ``(n, rows, m)``.
        minus: features exp(−ωᵀu).
        wide: values or sums with padded columns, ``(n, rows, ·)``.
        both: ``wide`` without padding, ``(n, rows, d_v + 1)``.
        most: the columns of the values.
        last: the column of the denominators.
    """

    plus: Tensor
    minus: Tensor
    wide: Tensor
    both: Tensor
    most: Tensor
    last: Tensor

    def features(self, u: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the features of both signs of vectors ``(n, rows, d)``."""
        torch.bmm(u, omega, out=self.plus).exp_()
        return self.plus, torch.reciprocal(self.plus, out=self.minus)

    def weighted(self, value: Tensor, factor: Tensor) -> Tensor:
        """Multiply values and a column of ones by the keys' factors: ``(n, rows, d_v + 1)``."""
        torch.mul(value, factor, out=self.most)
        self.last.copy_(factor)
        return self.both


def _divide(sums: Tensor, denominators: Tensor, out: Tensor, used: Tensor) -> None:
    """Write quotients to ``out`` and the denominators to ``used``."""
    used.copy_(denominators)
    torch.div(sums, used, out=out)


def _settled(outputs: Outputs) -> Outputs | None:
    """Set rows without keys to zero; ``None`` if some denominator is too large, or not a number."""
    if not float(outputs.used.amax()) < _MOST:
        return None
    small = outputs.used <= 0
    if small.any():
        outputs.values.masked_fill_(small, 0)
        outputs.used.masked_fill_(small, torch.inf)
    return outputs._replace(small=small)

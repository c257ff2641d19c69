"""Division of sums by their denominators under the rule, for engines that autograd follows and for those by hand."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hrf._attention.call import Call
from hrf._attention.denominator import Denominator, log_bound
from hrf.numerics import Features

__all__ = ["Outputs", "Quotients"]


class Quotients:
    """Outputs from sums that arrive block by block, with the denominators in their last column.

    Blocks are ``(rows, L, d_v + 1)`` for some of all B·H rows, or ``(1, tokens, d_v + 1)`` for part of a row, in order.
    Each is divided when it arrives, so that the sums never exist for all queries unless autograd needs them.

    Args:
        call: the map, the rule, the moments and √scale.
        query: ``(B, H, L, d)``.
        value: ``(B, H, S, d_v)``.
        out: where to write the outputs, ``(B, H, L, d_v)``; not used where autograd follows along.
    """

    def __init__(self, call: Call, query: Tensor, value: Tensor, out: Tensor | None = None) -> None:
        self._call, self._lead = call, query.shape[:3]
        self._x, self._seen = query.to(call.dtype).flatten(0, 1), call.moments.flatten(0, 1)
        self._out = self._x.new_empty(*self._lead, value.shape[-1]) if out is None else out
        self._places = self._out.view(*self._x.shape[:2], value.shape[-1])
        self._low = torch.empty_like(self._x[..., :1], dtype=torch.bool)
        self._traced: list[Tensor] = []
        self._row = self._token = 0

    def add(self, sums: Features) -> None:
        """Divide the next block."""
        values, log_scale = sums
        rows = slice(self._row, self._row + values.shape[0])
        some = rows, slice(self._token, self._token + values.shape[1])
        with torch.no_grad():
            keys = self._seen[rows] if self._seen.shape[1] == 1 else self._seen[some]
            bound = log_bound(self._call.feature_map, self._x[some], keys, self._call.root)
        used, self._low[some] = self._call.rule.settle(values[..., -1:].contiguous(), log_scale, bound)
        if values.requires_grad:
            self._traced.append((values[..., :-1] / used).flatten(0, 1))
        else:
            torch.div(values[..., :-1], used, out=self._places[some])
        end = some[1].stop
        self._row, self._token = (self._row, end) if end < self._x.shape[1] else (rows.stop, 0)

    @property
    def low(self) -> Tensor:
        """Which denominators are too small, ``(B, H, L, 1)``."""
        return self._low.unflatten(0, self._lead[:2])

    def values(self) -> Tensor:
        """Return all outputs, ``(B, H, L, d_v)``."""
        return torch.cat(self._traced).unflatten(0, self._lead) if self._traced else self._out


class Outputs(NamedTuple):
    """Outputs of all rows, and what a backward pass by hand needs of their denominators.

    Attributes:
        values: ``(N, L, d_v)``.
        used: the numbers divided by, ``(N, L, 1)``, at the scale of the sums.
        log_scale: the scale of the sums, ``(N, L, 1)``.
        low: which denominators were too small, ``(N, L, 1)``.
    """

    values: Tensor
    used: Tensor
    log_scale: Tensor
    low: Tensor

    @classmethod
    def empty(cls, sums: Tensor, length: int) -> Outputs:
        """Allocate outputs for sums like ``(N, ·, d_v + 1)``."""
        n, _, width = sums.shape
        used = sums.new_empty(n, length, 1)
        low = torch.empty_like(used, dtype=torch.bool)
        return cls(sums.new_empty(n, length, width - 1), used, torch.empty_like(used), low)

    def fill(self, call: Call, rows: slice, x: Tensor, sums: Features) -> None:
        """Divide the sums of some rows, ``(N, rows, d_v + 1)``; x are their queries, ``(B, H, rows, d)``, scaled."""
        seen = call.moments if call.moments.shape[2] == 1 else call.moments[:, :, rows]
        bound = log_bound(call.feature_map, x, seen)
        denominators = sums.values[..., -1:]
        used, low = call.rule.settle(
            denominators, sums.log_scale, None if bound is None else bound.flatten(0, 1)
        )
        self.used[:, rows], self.log_scale[:, rows], self.low[:, rows] = used, sums.log_scale, low
        torch.div(sums.values[..., :-1], used, out=self.values[:, rows])

    def pull(self, grad: Tensor, rows: slice, log_scale: Tensor, rule: Denominator) -> tuple[Tensor, Tensor]:
        """Return the gradients of the sums of some rows at ``log_scale``, and of their log scale.

        ``(N, rows, d_v + 1)`` and ``(N, rows, 1)``. Numerator and denominator share their scale, so the latter gradient
        is zero except where the floor replaced the denominator.
        """
        values, used, before, low = (tensor[:, rows] for tensor in self)
        used = used * (before - log_scale).exp()
        if rule.rule == "none":
            low = torch.zeros_like(low)
        inner = (grad * values).sum(-1, keepdim=True)
        out = grad.new_empty(*grad.shape[:-1], grad.shape[-1] + 1)
        torch.div(grad, used, out=out[..., :-1])
        out[..., -1:] = (inner / used).neg_().masked_fill_(low, 0)
        return out, inner.masked_fill(~low, 0)

"""Division of sums by their denominators under the rule, for engines that autograd follows and for those by hand."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hrf._attention.box import put_in_box
from hrf._attention.call import Call
from hrf._attention.denominator import Denominator, log_bound
from hrf._attention.visible import Visible, VisibleChunk, bounded, of_all
from hrf.numerics import Features, can_look

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
        self._visible = of_all(value, call.ignore, call.dtype, signed=not call.feature_map.nonnegative)
        self._out = self._x.new_empty(*self._lead, value.shape[-1]) if out is None else out
        self._places = self._out.view(*self._x.shape[:2], value.shape[-1])
        self._small = torch.empty_like(self._x[..., :1], dtype=torch.bool)
        self._clipped = torch.zeros_like(self._small)
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
        used, small = self._call.rule.settle(values[..., -1:].contiguous(), log_scale, bound)
        self._small[some] = small
        if values.requires_grad:
            out = values[..., :-1] / used
            if self._call.rule.replaces:
                out, _ = bounded(out, small, self._visible.part(rows))
            self._traced.append(out.flatten(0, 1))
        else:
            out = torch.div(values[..., :-1], used, out=self._places[some])
            if self._call.rule.replaces:
                clipped = put_in_box(out, small, self._visible.part(rows))
                if clipped is not None:
                    self._clipped[some] = clipped
        end = some[1].stop
        self._row, self._token = (self._row, end) if end < self._x.shape[1] else (rows.stop, 0)

    @property
    def small(self) -> Tensor:
        """Which denominators are too small, ``(B, H, L, 1)``."""
        return self._small.unflatten(0, self._lead[:2])

    @property
    def clipped(self) -> Tensor:
        """Which rows were clipped, ``(B, H, L, 1)``."""
        return self._clipped.unflatten(0, self._lead[:2])

    def values(self) -> Tensor:
        """Return all outputs, ``(B, H, L, d_v)``."""
        return torch.cat(self._traced).unflatten(0, self._lead) if self._traced else self._out


class Outputs(NamedTuple):
    """Outputs of all rows, and what a backward pass by hand needs of them.

    Attributes:
        values: ``(N, L, d_v)``.
        used: the numbers divided by, ``(N, L, 1)``, at the scale of the sums.
        log_scale: the scale of the sums, ``(N, L, 1)``.
        small: which denominators were too small, ``(N, L, 1)``.
        clipped: rows with an output that was moved into the box, ``(N, L, 1)``.
        moved: which outputs were moved into the box, ``(N, L, d_v)``; ``None`` for maps without signs, and where no
            gradient is wanted.
    """

    values: Tensor
    used: Tensor
    log_scale: Tensor
    small: Tensor
    clipped: Tensor
    moved: Tensor | None = None

    @classmethod
    def empty(cls, sums: Tensor, length: int, *, moved: bool = False) -> Outputs:
        """Allocate outputs for sums like ``(N, ·, d_v + 1)``; with a place for marks where ``moved``."""
        n, _, width = sums.shape
        used, values = sums.new_empty(n, length, 1), sums.new_empty(n, length, width - 1)
        small, clipped = (torch.zeros_like(used, dtype=torch.bool) for _ in range(2))
        marks = torch.zeros_like(values, dtype=torch.bool) if moved else None
        return cls(values, used, torch.empty_like(used), small, clipped, marks)

    def fill(self, call: Call, rows: slice, x: Tensor, sums: Features, seen: Visible | VisibleChunk) -> None:
        """Divide the sums of some rows, ``(N, rows, d_v + 1)``; x are their queries, ``(B, H, rows, d)``, scaled."""
        moments = call.moments if call.moments.shape[2] == 1 else call.moments[:, :, rows]
        bound = log_bound(call.feature_map, x, moments)
        denominators = sums.values[..., -1:]
        used, small = call.rule.settle(
            denominators, sums.log_scale, None if bound is None else bound.flatten(0, 1)
        )
        self.used[:, rows], self.log_scale[:, rows], self.small[:, rows] = used, sums.log_scale, small
        out = torch.div(sums.values[..., :-1], used, out=self.values[:, rows])
        if call.rule.replaces:
            clipped = put_in_box(out, small, seen, None if self.moved is None else self.moved[:, rows])
            if clipped is not None:
                self.clipped[:, rows] = clipped

    def count_rows(self, call: Call, lead: torch.Size) -> None:
        """Count small denominators and clipped rows of B and H = ``lead``."""
        call.rule.count(self.small.unflatten(0, lead), call.moments[..., :1], self.clipped.unflatten(0, lead))

    def pull(self, grad: Tensor, rows: slice, log_scale: Tensor, rule: Denominator) -> Tensor:
        """Return the gradients of the sums of some rows at ``log_scale``: ``(N, rows, d_v + 1)``.

        Rows with a small denominator and outputs that were moved have none. Numerator and denominator share their
        scale, so it has no gradient.
        """
        values, used, before, small = (tensor[:, rows] for tensor in self[:4])
        used = used * (before - log_scale).exp()
        if self.moved is not None and (not can_look(grad) or self.clipped[:, rows].any()):
            grad = grad.masked_fill(self.moved[:, rows], 0)
        out = grad.new_empty(*grad.shape[:-1], grad.shape[-1] + 1)
        torch.div(grad, used, out=out[..., :-1])
        out[..., -1:] = ((grad * values).sum(-1, keepdim=True) / used).neg_()
        return out.masked_fill_(small, 0) if rule.replaces else out

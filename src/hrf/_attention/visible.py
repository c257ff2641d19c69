"""The values that a row sees: their mean, and the box that holds every average of them.

Exact attention is an average of values with positive weights, so it lies between their coordinate-wise minimum and
maximum. Estimates with signs need not: moving an output to the nearest point of the box never increases its error. Maps
without signs stay in the box by themselves. Mean and box are constants for autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hrf.numerics import can_look

__all__ = ["Running", "Visible", "bounded", "of_all"]

_ROUNDING = (
    32  # times eps of the largest magnitude: outputs that leave the box by less are not counted as clipped
)


class Visible(NamedTuple):
    """Values that some rows see, ``(N, 1 or rows, ·)`` each.

    Attributes:
        total: sums of the values, and in the last column their number.
        low: coordinate-wise minimum, or ``None`` for maps without signs.
        high: coordinate-wise maximum, or ``None``.
    """

    total: Tensor
    low: Tensor | None
    high: Tensor | None

    def map(self, function: Callable[[Tensor], Tensor]) -> Visible:
        """Apply a function to all tensors."""
        low, high = (None if t is None else function(t) for t in (self.low, self.high))
        return Visible(function(self.total), low, high)

    def mean(self) -> Tensor:
        """Return the mean; zeros where there are no values."""
        return self.total[..., :-1] / self.total[..., -1:].clamp(min=1)


@torch.no_grad()
def of_all(value: Tensor, ignore: Tensor | None, dtype: torch.dtype, *, signed: bool) -> Visible:
    """Describe ``value (B, H, S, d_v)`` for rows that see all keys but those to ``ignore (B, S)``."""
    v = value.to(dtype)
    hidden = None if ignore is None else ignore[:, None, :, None]
    shown = v if hidden is None else v.masked_fill(hidden, 0)
    number = v.new_full((*v.shape[:2], 1, 1), v.shape[2])
    if hidden is not None:
        number = (~hidden).sum(2, keepdim=True).to(dtype).expand(*v.shape[:2], 1, 1)
    total = torch.cat([shown.sum(2, keepdim=True), number], -1).flatten(0, 1)
    if not signed:
        return Visible(total, None, None)
    if not v.shape[2]:
        return Visible(total, total[..., :-1], total[..., :-1])
    low, high = v, v
    if hidden is not None:
        low, high = v.masked_fill(hidden, torch.inf), v.masked_fill(hidden, -torch.inf)
    return Visible(total, *(t.flatten(0, 1) for t in (low.amin(2, keepdim=True), high.amax(2, keepdim=True))))


@dataclass
class Running:
    """`Visible` of all keys so far, ``(N, 1, ·)``, for causal attention.

    Attributes:
        last: of the keys before the next chunk.
    """

    last: Visible

    @torch.no_grad()
    def chunk(self, v: Tensor, groups: int) -> Visible:
        """Add the keys of a chunk; return what each of its rows sees, ``groups`` rows per key.

        Args:
            v: values and a column of ones, ``(N, T, d_v + 1)``, zeros where ignored.
            groups: rows per key.
        """
        found = Visible(self.last.total + v.cumsum(1), None, None)
        if self.last.low is not None and self.last.high is not None:
            hidden, values = v[..., -1:] == 0, v[..., :-1]
            lows = values.masked_fill(hidden, torch.inf).cummin(1).values
            highs = values.masked_fill(hidden, -torch.inf).cummax(1).values
            low, high = torch.minimum(self.last.low, lows), torch.maximum(self.last.high, highs)
            found = found._replace(low=low, high=high)
        if v.shape[1]:
            self.last = found.map(lambda t: t[:, -1:])
        return found if groups == 1 else found.map(lambda t: t.repeat_interleave(groups, 1))


def bounded(out: Tensor, small: Tensor, visible: Visible) -> tuple[Tensor, Tensor | None]:
    """Replace rows whose denominator is too small by the mean, and move all others into the box.

    Args:
        out: quotients, ``(N, rows, d_v)``.
        small: rows whose denominator is too small, ``(N, rows, 1)``; they get no gradient.
        visible: what the rows see.

    Returns:
        The outputs, and which coordinates were moved by more than rounding: they get no gradient either. ``None``
        without a box.
    """
    moved: Tensor | None = None
    if visible.low is not None and visible.high is not None:
        inside = out.detach().clamp(visible.low, visible.high)
        slack = torch.maximum(visible.low.abs(), visible.high.abs()) * (
            _ROUNDING * torch.finfo(out.dtype).eps
        )
        moved = ((out.detach() - inside).abs() > slack) & ~small
        out = torch.where(moved, inside, out + (inside - out.detach())) if out.requires_grad else inside
    if not can_look(out) or small.any():
        out = torch.where(small, visible.mean(), out)
    return out, moved

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

__all__ = ["ROUNDING", "Running", "Visible", "VisibleChunk", "bounded", "of_all"]

# Times eps of the largest magnitude: outputs that leave the box by less are not counted as clipped.
ROUNDING = 32


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

    def part(self, some: slice) -> Visible:
        """Restrict to some of the N."""
        return self.map(lambda t: t[some])

    def mean(self) -> Tensor:
        """Return the mean; zeros where there are no values."""
        return self.total[..., :-1] / self.total[..., -1:].clamp(min=1)

    def per_row(self) -> Visible:
        """Return self, which holds for every row."""
        return self

    def in_order(self) -> tuple[Visible, Tensor, int]:
        """Return self and no further values: all rows see the same."""
        return self, self.total[:, :0], 1

    def holds(self, out: Tensor) -> bool:
        """Whether all outputs ``(N, rows, d_v)`` are numbers in the box; reads them without writing anything."""
        if self.low is None or self.high is None or not out.numel():
            return True
        if self.low.shape[1] == 1:
            lowest, highest = out.amin(1, keepdim=True), out.amax(1, keepdim=True)
        else:
            lowest, highest = out, out
        return bool((lowest >= self.low).all() and (highest <= self.high).all())


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


class VisibleChunk(NamedTuple):
    """Values that the rows of a causal chunk see.

    Outputs are mostly averages over many keys, so that the box of the keys before the chunk, which the box of every row
    contains, holds them already: boxes and means per row are computed only where it does not.

    Attributes:
        before: of the keys before the chunk, ``(N, 1, ·)``.
        values: of the chunk's keys with a column of ones, ``(N, T, d_v + 1)``, zeros where ignored.
        groups: rows per key.
    """

    before: Visible
    values: Tensor
    groups: int

    def holds(self, out: Tensor) -> bool:
        """Whether all outputs lie in the box of the keys before the chunk."""
        return self.before.holds(out)

    def per_row(self) -> Visible:
        """Describe the values that each row sees, ``(N, rows, ·)``."""
        found = Visible(self.before.total + self.values.cumsum(1), None, None)
        if self.before.low is not None and self.before.high is not None:
            lows, highs = _shown(self.values)
            low = torch.minimum(self.before.low, lows.cummin(1).values)
            high = torch.maximum(self.before.high, highs.cummax(1).values)
            found = found._replace(low=low, high=high)
        return found if self.groups == 1 else found.map(lambda t: t.repeat_interleave(self.groups, 1))

    def in_order(self) -> tuple[Visible, Tensor, int]:
        """Return what the first row sees before the chunk, the values that follow, and rows per value."""
        return self.before, self.values, self.groups

    def after(self) -> Visible:
        """Describe the values of all keys up to the end of the chunk, ``(N, 1, ·)``."""
        found = Visible(self.before.total + self.values.sum(1, keepdim=True), None, None)
        if self.before.low is None or self.before.high is None or not self.values.shape[1]:
            return found._replace(low=self.before.low, high=self.before.high)
        lows, highs = _shown(self.values)
        low = torch.minimum(self.before.low, lows.amin(1, keepdim=True))
        return found._replace(low=low, high=torch.maximum(self.before.high, highs.amax(1, keepdim=True)))


def _shown(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return values with +inf and with −inf in place of those whose last column, 1 or 0, says ignored."""
    hidden, values = values[..., -1:] == 0, values[..., :-1]
    return values.masked_fill(hidden, torch.inf), values.masked_fill(hidden, -torch.inf)


@dataclass
class Running:
    """`Visible` of all keys so far, ``(N, 1, ·)``, for causal attention.

    Attributes:
        last: of the keys before the next chunk.
    """

    last: Visible

    @torch.no_grad()
    def chunk(self, values: Tensor, groups: int) -> VisibleChunk:
        """Add the keys of a chunk; return what its rows see: arguments of `VisibleChunk`."""
        chunk = VisibleChunk(self.last, values.detach(), groups)
        self.last = chunk.after()
        return chunk


def bounded(out: Tensor, small: Tensor, seen: Visible | VisibleChunk) -> tuple[Tensor, Tensor | None]:
    """Replace rows whose denominator is too small by the mean, and move all others into the box.

    Args:
        out: quotients, ``(N, rows, d_v)``.
        small: rows whose denominator is too small, ``(N, rows, 1)``; they get no gradient.
        seen: the values that the rows see.

    Returns:
        The outputs, and which coordinates were moved by more than rounding: they get no gradient either. ``None`` where
        none was, and without a box.
    """
    known = out.detach()
    if can_look(out) and not small.any() and seen.holds(known):
        return out, None
    with torch.no_grad():
        visible = seen.per_row()
    moved: Tensor | None = None
    if visible.low is not None and visible.high is not None:
        inside = known.clamp(visible.low, visible.high)
        rounding = ROUNDING * torch.finfo(out.dtype).eps
        slack = torch.maximum(visible.low.abs(), visible.high.abs()) * rounding
        moved = ((known - inside).abs() > slack) & ~small
        out = torch.where(moved, inside, out + (inside - known)) if out.requires_grad else inside
    return torch.where(small, visible.mean(), out), moved

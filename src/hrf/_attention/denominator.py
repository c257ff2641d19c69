"""Denominators that random features got wrong, and outputs outside the box of the values.

The true denominator is Σ_y K(x, y) over the n keys that x sees, and by Jensen's inequality it is at least
n exp(mean log K(x, y)): n exp(xᵀȳ) for the softmax kernel, from the mean ȳ of the keys alone. An estimate
below a small part of that bound, or negative, says nothing about the row; neither does one that is lost to
underflow. Such a row returns the mean of the values it sees, and every other output is moved into the box of the
values.

The values that a row sees: their mean, and the box that holds every average of them.

Exact attention is an average of values with positive weights, so it lies between their coordinate-wise minimum and
maximum. Estimates with signs need not: moving an output to the nearest point of the box never increases its error. Maps
without signs stay in the box by themselves. Mean and box are constants for autograd.

The rule for outputs, in place and without autograd: in one compiled pass, or by `bounded` in blocks.

Outputs of all rows do not fit the cache, and the operations of `bounded` pass over them several times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from hrf import _core as core
from hrf._attention.inputs import Inputs
from hrf.features.base import FeatureMap
from hrf.numerics import can_look, half_square
from hrf.registry import Handled

__all__ = [
    "FLOOR",
    "ROUNDING",
    "RULES",
    "Denominator",
    "Rule",
    "Running",
    "Visible",
    "VisibleChunk",
    "bounded",
    "key_moments",
    "log_bound",
    "of_all",
    "per_row",
    "put_in_box",
    "total_moments",
]


FLOOR = 1e-3  # of the bound
Rule = Literal["clamp", "raise", "none"]
RULES: tuple[Rule, ...] = get_args(Rule)


class Denominator(Handled):
    """A rule for denominators that are too small, and a count of what it did.

    A denominator is too small if it is negative, below `FLOOR` of its lower bound, or lost to underflow.

    Args:
        rule: ``"clamp"``: a row whose denominator is too small returns the mean of the values it sees, and passes no
            gradient on; all other outputs are clipped to the coordinate-wise minimum and maximum of these values, which
            never increases their error. ``"raise"`` refuses to go on where a denominator is too small. ``"none"``
            divides as is.

    Attributes:
        rows: denominators seen, of queries that see any key.
        clamped: rows whose denominator was too small.
        clipped: other rows with an output outside the box of the values, by more than rounding.
    """

    def __init__(self, rule: Rule = "clamp") -> None:
        if rule not in RULES:
            raise ValueError(f"denominator is {rule!r}; expected one of {', '.join(RULES)}, or a Denominator")
        self.rule: Rule = rule
        # Tensors on the device of the last call, which is not waited for before somebody reads them.
        self._rows: Tensor | int = 0
        self._clamped: Tensor | int = 0
        self._clipped: Tensor | int = 0

    @classmethod
    def of(cls, rule: Rule | Denominator) -> Denominator:
        """Return a rule as it is, or make one from its name, without a handle, which is a tensor on the CPU."""
        if isinstance(rule, Denominator):
            return rule
        found = object.__new__(cls)
        found.__init__(rule)  # type: ignore[misc]
        return found

    @property
    def rows(self) -> int:
        """Number of denominators seen."""
        return int(self._rows)

    @property
    def clamped(self) -> int:
        """Number of rows whose denominator was too small."""
        return int(self._clamped)

    @property
    def clipped(self) -> int:
        """Number of other rows with an output outside the box of the values."""
        return int(self._clipped)

    def __repr__(self) -> str:
        counts = f"rows={self.rows}, clamped={self.clamped}, clipped={self.clipped}"
        return f"Denominator({self.rule!r}, {counts})"

    @property
    def replaces(self) -> bool:
        """Whether outputs are replaced and clipped, rather than left as they are divided."""
        return self.rule != "none"

    def settle(self, denominators: Tensor, log_scale: Tensor, bound: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the numbers to divide by, and which denominators are too small, ``(..., L, 1)`` both.

        Denominators that are too small are replaced by infinity, so that quotients and gradients are zero; under
        ``"none"``, only zeros are.

        Args:
            denominators: estimates over exp(log_scale).
            log_scale: their scale.
            bound: logarithm of the lower bound, or ``None`` for nonnegative features.
        """
        known, limits = denominators.detach(), torch.finfo(denominators.dtype)
        floor: Tensor | float = limits.tiny / limits.eps
        if bound is not None:
            floor = (FLOOR * (bound - log_scale).exp().detach()).clamp(min=floor)
        small = ~((known > floor) & (known < torch.inf))
        if self.replaces:
            return denominators.masked_fill(small, torch.inf), small
        # Without keys it is 0/0, and zeros are wanted.
        return denominators.masked_fill(known == 0, torch.inf), small

    def count(self, small: Tensor, keys: Tensor, clipped: Tensor | None = None) -> None:
        """Count small denominators and clipped rows, given the number of keys per row; raise if that is the rule."""
        seen = keys > 0
        rows, clamped = seen.sum() * (small.numel() // max(1, seen.numel())), (small & seen).sum()
        self._rows, self._clamped = _plus(self._rows, rows), _plus(self._clamped, clamped)
        if clipped is not None:
            self._clipped = _plus(self._clipped, clipped.sum())
        if self.rule == "raise" and clamped:
            raise ValueError(
                f"{int(clamped)} of {int(rows)} denominators are negative, zero or below {FLOOR} of the "
                "least they can be; use more projections, a map fitted to the data or one without negative "
                "estimates, or denominator='clamp'"
            )

    def add(self, rows: int, clamped: int) -> None:
        """Add to the counts."""
        self._rows, self._clamped = self._rows + rows, self._clamped + clamped


def _plus(total: Tensor | int, more: Tensor) -> Tensor:
    return more + (total.to(more.device) if isinstance(total, Tensor) else total)


@torch.no_grad()
def key_moments(inputs: Inputs, feature_map: FeatureMap) -> Tensor:
    """Return terms whose sums over keys give the number of keys and the bound: ``(B, H, S, ·)``.

    The columns are 1, then y for maps with signs, then ‖y‖²/2 for a Gaussian kernel.
    """
    return torch.cat([term * inputs.root**k for k, term in enumerate(_terms(inputs, feature_map))], -1)


@torch.no_grad()
def total_moments(inputs: Inputs, feature_map: FeatureMap) -> Tensor:
    """Sum `key_moments` over all keys without forming them: ``(B, H, 1, ·)``."""
    sums = [term.sum(2, keepdim=True) for term in _terms(inputs, feature_map)]
    return torch.cat([term * inputs.root**k for k, term in enumerate(sums)], -1)


def _terms(inputs: Inputs, feature_map: FeatureMap) -> list[Tensor]:
    """Return the columns of `key_moments` for unscaled keys; column k still has to be multiplied by root^k."""
    y = inputs.key.to(inputs.dtype)
    terms = [y.new_ones(()).expand(*y.shape[:-1], 1)]
    if not feature_map.nonnegative:
        terms.append(y)
        if feature_map.kernel == "gaussian":
            terms.append(half_square(y))
    if inputs.ignore is None:
        return terms
    return [term.masked_fill(inputs.ignore[:, None, :, None], 0) for term in terms]


def per_row(inputs: Inputs, moments: Tensor) -> Tensor:
    """Repeat sums of `key_moments`, one for all positions or one per position, for the rows of the query."""
    if inputs.present is not None:
        moments = moments * inputs.present[:, None, :, None]
    if moments.shape[2] not in (1, inputs.query.shape[2]):
        moments = moments.repeat_interleave(inputs.query.shape[2] // moments.shape[2], 2)  # grouped queries
    return moments


def log_bound(feature_map: FeatureMap, x: Tensor, moments: Tensor, root: float = 1) -> Tensor | None:
    """Compute log n + mean log K(root·x, y) per row of x: ``(..., L, d) -> (..., L, 1)``, −inf without keys.

    Maps without signs need no bound: ``None``.
    """
    if feature_map.nonnegative:
        return None
    count = moments[..., :1]
    share, total = 1 / count.clamp(min=1), moments[..., 1 : 1 + x.shape[-1]]
    one_for_all = total.shape[-2] == 1
    # The faster way round.
    product = (total @ x.mT).mT if one_for_all else (x * total).sum(-1, keepdim=True)
    bound = count.log() + product * (root * share)
    return (
        bound
        if feature_map.kernel == "softmax"
        else bound - root**2 * half_square(x) - moments[..., -1:] * share
    )


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


@torch.no_grad()
def put_in_box(
    out: Tensor, small: Tensor, seen: Visible | VisibleChunk, moved: Tensor | None = None
) -> Tensor | None:
    """Replace rows whose denominator is too small by the mean, and move all others into the box, in place.

    Args:
        out: quotients, ``(N, rows, d_v)``; rows of one of the N are contiguous.
        small: rows whose denominator is too small, ``(N, rows, 1)``.
        seen: the values that the rows see.
        moved: where to mark coordinates that were moved by more than rounding, ``(N, rows, d_v)``, or ``None``.

    Returns:
        Rows with such a coordinate, ``(N, rows, 1)``; ``None`` for maps without signs, which stay in the box.
    """
    before, values, groups = seen.in_order()
    if before.low is None or before.high is None:
        found, _ = bounded(out, small, seen)
        if found is not out:
            out.copy_(found)
        return None
    if not core.serves(out):
        found, marks = bounded(out, small, seen)
        out.copy_(found)
        if marks is None:
            return torch.zeros_like(small)
        if moved is not None:
            moved.copy_(marks)
        return marks.any(-1, keepdim=True)
    return _compiled(out, small, before, values, groups, moved)


def _compiled(
    out: Tensor, small: Tensor, before: Visible, values: Tensor, groups: int, moved: Tensor | None
) -> Tensor:
    clipped, rounding = torch.zeros_like(small), ROUNDING * torch.finfo(out.dtype).eps
    # Rows that see values one after the other write to the box.
    boxes = [t[:, 0].clone() for t in before if t is not None]
    rows = out if out.is_contiguous() else out.contiguous()
    marks = moved if moved is None or moved.is_contiguous() else moved.contiguous()
    given = rows, small.contiguous(), *boxes, values.contiguous(), clipped, marks, float(rounding)
    numbers = *out.shape, values.shape[1], groups, core.task_tokens(*out.shape[:2])
    core.run("clip_rows", *given, *numbers, torch.get_num_threads(), out.dtype == torch.float64)
    if rows is not out:
        out.copy_(rows)
    if moved is not None and marks is not None and marks is not moved:
        moved.copy_(marks)
    return clipped

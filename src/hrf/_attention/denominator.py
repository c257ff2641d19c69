"""Denominators that random features got wrong: the rule, and the bound that it compares with.

The true denominator is Σ_y K(x, y) over the n keys that x sees, and by Jensen's inequality it is at least
n exp(mean log K(x, y)): n exp(xᵀȳ) for the softmax kernel, from the mean ȳ of the keys alone. An estimate
below a small part of that bound, or negative, says nothing about the row; neither does one that is lost to
underflow. Such a row returns the mean of the values it sees, and every other output is moved into the box of the
values (``visible.py``).
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from hrf._attention.inputs import Inputs
from hrf.features.base import FeatureMap
from hrf.numerics import half_square
from hrf.registry import Handled

__all__ = [
    "FLOOR",
    "RULES",
    "Denominator",
    "Rule",
    "key_moments",
    "log_bound",
    "per_row",
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
        # Tensors, so that no device is waited for.
        self._rows = self._clamped = self._clipped = torch.zeros((), dtype=torch.long)
        self._known = (0, 0)  # rows and clamped rows that are not in these

    @classmethod
    def of(cls, rule: Rule | Denominator) -> Denominator:
        """Return a rule as it is, or make one from its name."""
        return rule if isinstance(rule, Denominator) else cls(rule)

    @property
    def rows(self) -> int:
        """Number of denominators seen."""
        return int(self._rows) + self._known[0]

    @property
    def clamped(self) -> int:
        """Number of rows whose denominator was too small."""
        return int(self._clamped) + self._known[1]

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
        self._rows, self._clamped = self._rows.to(rows.device) + rows, self._clamped.to(rows.device) + clamped
        if clipped is not None:
            self._clipped = self._clipped.to(rows.device) + clipped.sum()
        if self.rule == "raise" and clamped:
            raise ValueError(
                f"{int(clamped)} of {int(rows)} denominators are negative, zero or below {FLOOR} of the "
                "least they can be; use more projections, a map fitted to the data or one without negative "
                "estimates, or denominator='clamp'"
            )

    def add(self, rows: int, clamped: int) -> None:
        """Add to the counts."""
        self._known = self._known[0] + rows, self._known[1] + clamped


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
    mean = moments[..., 1:] / count.clamp(min=1)
    centre = root * mean[..., : x.shape[-1]]
    one_for_all = centre.shape[-2] == 1
    # The faster way round.
    product = (centre @ x.mT).mT if one_for_all else (x * centre).sum(-1, keepdim=True)
    bound = count.log() + product
    return bound if feature_map.kernel == "softmax" else bound - root**2 * half_square(x) - mean[..., -1:]

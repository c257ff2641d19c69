"""Denominators that random features got wrong: the rule, and the bound that it compares with.

The true denominator is Σ_y K(x, y) over the n keys that x sees, and by Jensen's inequality it is at least
n exp(mean log K(x, y)): n exp(xᵀȳ) for the softmax kernel, from the mean ȳ of the keys alone. An estimate
below a small part of that bound, or negative, says nothing about the row; dividing by it would blow the row
up. Features without signs cannot do that: numerator and denominator are small together, and the ratio stays.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hrf._attention.inputs import Inputs
from hrf.features.base import FeatureMap
from hrf.numerics import half_square

__all__ = [
    "FLOOR",
    "RULES",
    "Denominator",
    "key_moments",
    "log_bound",
    "per_row",
    "total_moments",
]

FLOOR = 1e-3  # of the bound
RULES = ("clamp", "raise", "none")


class Denominator:
    """A rule for denominators that are too small, and a count of those met.

    Args:
        rule: ``"clamp"`` sets it to `FLOOR` of its lower bound, ``"raise"`` refuses to go on, ``"none"``
            divides as is.

    Attributes:
        rows: denominators seen, of queries that see any key.
        clamped: denominators that were too small (negative or below `FLOOR` of the bound; for features without
            signs, lost to underflow).
    """

    def __init__(self, rule: str = "clamp") -> None:
        if rule not in RULES:
            raise ValueError(f"denominator is {rule!r}; expected one of {', '.join(RULES)}, or a Denominator")
        self.rule = rule
        self._rows = self._clamped = torch.zeros((), dtype=torch.long)  # so that no device is waited for

    @classmethod
    def of(cls, rule: str | Denominator) -> Denominator:
        """Return a rule as it is, or make one from its name."""
        return rule if isinstance(rule, Denominator) else cls(rule)

    @property
    def rows(self) -> int:
        """Number of denominators seen."""
        return int(self._rows)

    @property
    def clamped(self) -> int:
        """Number of denominators that were too small."""
        return int(self._clamped)

    def __repr__(self) -> str:
        return f"Denominator({self.rule!r}, rows={self.rows}, clamped={self.clamped})"

    def settle(self, denominators: Tensor, log_scale: Tensor, bound: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the numbers to divide by, and which denominators are too small, ``(..., L, 1)`` both.

        Nonnegative features have no bound; their sums are 0 where there are no keys or all terms underflow, and
        dividing by infinity gives zeros there.

        Args:
            denominators: estimates over exp(log_scale).
            log_scale: their scale.
            bound: logarithm of the lower bound, or ``None`` for nonnegative features.
        """
        if bound is None:
            low = denominators.detach() <= 0
            return denominators.masked_fill(low, torch.inf), low
        floor = FLOOR * (bound - log_scale).exp().detach()
        low = denominators.detach() <= floor
        if self.rule != "none":
            denominators = torch.where(low, floor, denominators)
        # Without keys it is 0/0, and zeros are wanted.
        return denominators.masked_fill(denominators == 0, torch.inf), low

    def count(self, low: Tensor, keys: Tensor) -> None:
        """Count what `settle` found, given the number of keys per row; raise if that is the rule."""
        seen = keys > 0
        rows, clamped = seen.sum() * (low.numel() // max(1, seen.numel())), (low & seen).sum()
        self._rows, self._clamped = self._rows.to(rows.device) + rows, self._clamped.to(rows.device) + clamped
        if self.rule == "raise" and clamped:
            raise ValueError(
                f"{int(clamped)} of {int(rows)} denominators are negative, zero or below {FLOOR} of the "
                "least they can be; use more projections, a map fitted to the data or one without negative "
                "estimates, or denominator='clamp'"
            )


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

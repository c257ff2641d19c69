"""Denominators that random features got wrong.

The true denominator is Σ_y K(x, y) over the n keys that x sees, and by Jensen's inequality it is at least
n exp(mean log K(x, y)): n exp(xᵀȳ) for the softmax kernel, from the mean ȳ of the keys alone. An estimate
below a small part of that bound, or negative, says nothing about the row; dividing by it would blow the row
up. Features without signs cannot do that: numerator and denominator are small together, and the ratio stays.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hrf.attention.inputs import Inputs
from hrf.features.base import FeatureMap, Features, half_square

__all__ = ["FLOOR", "RULES", "Denominator", "key_moments", "quotient"]

FLOOR = 1e-3  # of the bound
RULES = ("clamp", "raise", "none")


class Denominator:
    """What to do with a denominator that is too small, and a count of those met.

    Args:
        rule: ``"clamp"`` sets it to `FLOOR` of its lower bound, ``"raise"`` refuses to go on, ``"none"``
            divides as is.

    Attributes:
        rows: denominators seen.
        clamped: those too small (below 0 or `FLOOR` of the bound; for features without signs, lost to
            underflow).

    A row that sees no key at all gives zeros and is not counted as clamped.
    """

    def __init__(self, rule: str = "clamp") -> None:
        if rule not in RULES:
            raise ValueError(f"denominator is {rule!r}; expected one of {', '.join(RULES)}, or a Denominator")
        self.rule, self.rows = rule, 0
        self._clamped: Tensor | int = 0  # a tensor, so that no device is waited for

    @classmethod
    def of(cls, rule: str | Denominator) -> Denominator:
        """The object itself, or a new one for a name."""
        return rule if isinstance(rule, Denominator) else cls(rule)

    @property
    def clamped(self) -> int:
        """How many of the rows were too small."""
        return int(self._clamped)

    def __repr__(self) -> str:
        return f"Denominator({self.rule!r}, rows={self.rows}, clamped={self.clamped})"

    def divide(self, sums: Features, count: Tensor, bound: Tensor | None) -> Tensor:
        """Numerators over the denominator in the last column: ``(..., L, d_v + 1) -> (..., L, d_v)``.

        Args:
            sums: what an engine returned.
            count: the number of keys each row sees.
            bound: logarithm of the lower bound, ``(..., L, 1)``, or ``None`` for features without signs.
        """
        numerators, denominators = sums.values[..., :-1], sums.values[..., -1:]
        floor = torch.zeros_like(denominators) if bound is None else FLOOR * (bound - sums.log_scale).exp()
        floor = floor.detach()
        low = (denominators.detach() <= floor) & (count > 0)
        self.rows += low.numel()
        self._clamped = self._clamped + low.sum()
        if self.rule == "raise" and bool(low.any()):
            raise ValueError(
                f"{int(low.sum())} of {low.numel()} denominators are negative, zero or below {FLOOR} of the "
                "least they can be; use more projections, a map fitted to the data or one without negative "
                "estimates, or denominator='clamp'"
            )
        if self.rule != "none":
            denominators = torch.where(low, floor, denominators)
        # Rows without keys, and those lost to underflow, are 0/0.
        return numerators / denominators.masked_fill(denominators == 0, torch.inf)


@torch.no_grad()
def key_moments(inputs: Inputs, feature_map: FeatureMap) -> Tensor:
    """Terms whose sums over keys give their number and the bound: ``(B, H, S, ·)``.

    The columns are 1, and for maps with signs y, and for a Gaussian kernel ‖y‖²/2.
    """
    key = inputs.key
    columns = [torch.ones_like(key[..., :1], dtype=inputs.dtype)]
    if not feature_map.nonnegative:
        y = key.to(inputs.dtype) * inputs.root
        columns.append(y)
        if feature_map.kernel == "gaussian":
            columns.append(half_square(y))
    terms = torch.cat(columns, -1)
    return terms if inputs.ignore is None else terms.masked_fill_(inputs.ignore[:, None, :, None], 0)


def quotient(
    inputs: Inputs, sums: Features, moments: Tensor, feature_map: FeatureMap, rule: Denominator
) -> Tensor:
    """The outputs, ``(B, H, L, d_v)``, from an engine's sums and sums of `key_moments` (one a row if causal)."""
    with torch.no_grad():
        rows = inputs.query.shape[-2]
        if moments.shape[-2] not in (1, rows):
            moments = moments.repeat_interleave(rows // moments.shape[-2], -2)  # grouped queries
        count = moments[..., :1]
        bound = None
        if not feature_map.nonnegative:
            x = inputs.query.to(inputs.dtype) * inputs.root
            mean = moments[..., 1:] / count.clamp(min=1)
            bound = count.log() + (x * mean[..., : x.shape[-1]]).sum(-1, keepdim=True)
            if feature_map.kernel == "gaussian":
                bound = bound - half_square(x) - mean[..., -1:]
    return rule.divide(sums, count, bound)

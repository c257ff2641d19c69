"""Denominators that random features got wrong.

The true denominator is Σ_y K(x, y) over the n keys that x sees, and by Jensen's inequality it is at least
n exp(mean log K(x, y)): n exp(xᵀȳ) for the softmax kernel, from the mean ȳ of the keys alone. An estimate
below a small part of that bound, or negative, says nothing about the row; dividing by it would blow the row
up. Features without signs cannot do that: numerator and denominator are small together, and the ratio stays.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from hrf._attention.inputs import Inputs
from hrf.features.base import FeatureMap, Features, half_square, is_traced

__all__ = [
    "FLOOR",
    "RULES",
    "Denominator",
    "divided",
    "key_moments",
    "log_bound",
    "per_row",
    "quotient",
    "total_moments",
]

FLOOR = 1e-3  # of the bound
RULES = ("clamp", "raise", "none")


class Denominator:
    """What to do with a denominator that is too small, and a count of those met.

    Args:
        rule: ``"clamp"`` sets it to `FLOOR` of its lower bound, ``"raise"`` refuses to go on, ``"none"``
            divides as is.

    Attributes:
        rows: denominators seen, of queries that see any key.
        clamped: those too small (below 0 or `FLOOR` of the bound; for features without signs, lost to
            underflow).
    """

    def __init__(self, rule: str = "clamp") -> None:
        if rule not in RULES:
            raise ValueError(f"denominator is {rule!r}; expected one of {', '.join(RULES)}, or a Denominator")
        self.rule = rule
        self._rows = self._clamped = torch.zeros((), dtype=torch.long)  # so that no device is waited for

    @classmethod
    def of(cls, rule: str | Denominator) -> Denominator:
        """The object itself, or a new one for a name."""
        return rule if isinstance(rule, Denominator) else cls(rule)

    @property
    def rows(self) -> int:
        """How many denominators were seen."""
        return int(self._rows)

    @property
    def clamped(self) -> int:
        """How many of them were too small."""
        return int(self._clamped)

    def __repr__(self) -> str:
        return f"Denominator({self.rule!r}, rows={self.rows}, clamped={self.clamped})"

    def settle(self, denominators: Tensor, log_scale: Tensor, bound: Tensor | None) -> tuple[Tensor, Tensor]:
        """What to divide by, and which of the denominators are too small, ``(..., L, 1)`` both.

        Those without signs are 0 where there are no keys, or all is lost to underflow: infinity gives zeros there.

        Args:
            denominators: estimates over exp(log_scale).
            log_scale: their scale.
            bound: logarithm of the lower bound, or ``None`` for features without signs.
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
        """Count what `settle` found, given the number of keys each row sees; refuse to go on if that is the rule."""
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
    """Terms whose sums over keys give their number and the bound: ``(B, H, S, ·)``.

    The columns are 1, and for maps with signs y, and for a Gaussian kernel ‖y‖²/2.
    """
    return torch.cat([term * inputs.root**k for k, term in enumerate(_terms(inputs, feature_map))], -1)


@torch.no_grad()
def total_moments(inputs: Inputs, feature_map: FeatureMap) -> Tensor:
    """The sums of all `key_moments`, which are never formed: ``(B, H, 1, ·)``."""
    sums = [term.sum(2, keepdim=True) for term in _terms(inputs, feature_map)]
    return torch.cat([term * inputs.root**k for k, term in enumerate(sums)], -1)


def _terms(inputs: Inputs, feature_map: FeatureMap) -> list[Tensor]:
    """The columns of `key_moments` for keys that are not scaled: column k has to be, by root^k."""
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
    """Sums of `key_moments`, one for all positions or one a position, for the rows of the query."""
    if inputs.present is not None:
        moments = moments * inputs.present[:, None, :, None]
    if moments.shape[2] not in (1, inputs.query.shape[2]):
        moments = moments.repeat_interleave(inputs.query.shape[2] // moments.shape[2], 2)  # grouped queries
    return moments


def log_bound(feature_map: FeatureMap, x: Tensor, moments: Tensor, root: float = 1) -> Tensor | None:
    """log n + mean log K(root·x, y) for rows of x: ``(..., L, d) -> (..., L, 1)``, −inf without keys.

    ``None`` for maps that need no bound.
    """
    if feature_map.nonnegative:
        return None
    count = moments[..., :1]
    mean = moments[..., 1:] / count.clamp(min=1)
    centre = root * mean[..., : x.shape[-1]]
    one_for_all = centre.shape[-2] == 1
    product = (
        (centre @ x.mT).mT if one_for_all else (x * centre).sum(-1, keepdim=True)
    )  # the faster way round
    bound = count.log() + product
    return bound if feature_map.kernel == "softmax" else bound - root**2 * half_square(x) - mean[..., -1:]


def quotient(
    inputs: Inputs, sums: Iterable[Features], moments: Tensor, feature_map: FeatureMap, rule: Denominator
) -> Tensor:
    """Outputs ``(B, H, L, d_v)`` from sums with the denominator in the last column; they are counted."""
    out, low = divided(inputs, sums, moments, feature_map, rule)
    rule.count(low, moments[..., :1])
    return out


def divided(
    inputs: Inputs,
    sums: Iterable[Features],
    moments: Tensor,
    feature_map: FeatureMap,
    rule: Denominator,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs ``(B, H, L, d_v)``, written to ``out`` without autograd; which denominators are low, ``(B, H, L, 1)``.

    The sums are those of some queries after others, ``(rows, L, d_v + 1)`` for some of B·H rows or
    ``(1, tokens, d_v + 1)`` for a part of one: they are divided one by one, so that they never exist for all
    queries unless autograd needs them.
    """
    x, seen = inputs.query.to(inputs.dtype).flatten(0, 1), moments.flatten(0, 1)
    lead, length = inputs.query.shape[:3], x.shape[1]
    if out is None:
        out = x.new_empty(*lead, inputs.value.shape[-1])
    places = out.view(*x.shape[:2], out.shape[-1])
    low = torch.empty_like(x[..., :1], dtype=torch.bool)
    watched, row, token = [], 0, 0
    for values, log_scale in sums:
        rows = slice(row, row + values.shape[0])
        some = rows, slice(token, token + values.shape[1])
        with torch.no_grad():
            keys = seen[rows] if seen.shape[1] == 1 else seen[some]
            bound = log_bound(feature_map, x[some], keys, inputs.root)
        used, low[some] = rule.settle(values[..., -1:].contiguous(), log_scale, bound)
        if values.requires_grad or is_traced():
            watched.append((values[..., :-1] / used).flatten(0, 1))
        else:
            torch.div(values[..., :-1], used, out=places[some])
        row, token = (row, some[1].stop) if some[1].stop < length else (rows.stop, 0)
    return torch.cat(watched).unflatten(0, lead) if watched else out, low.unflatten(0, lead[:2])

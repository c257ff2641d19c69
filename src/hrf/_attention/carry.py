"""The carry of causal attention: sums over earlier tokens that later ones need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hrf._attention.call import Call
from hrf._attention.denominator import Denominator, key_moments, per_row
from hrf._attention.dense.chunks import LOWEST
from hrf._attention.inputs import Inputs
from hrf._attention.visible import Visible, of_all
from hrf.features.base import FeatureMap

__all__ = ["Carry", "Past", "add_scaled", "prepare", "values_so_far"]


class Past(NamedTuple):
    """All keys so far, S of them, for exact pairs of clusters.

    Attributes:
        key: as given, ``(B, H, S, d)``.
        value: as given, ``(B, H, S, d_v)``.
        label: clusters of the keys, ``(B, H, S)``.
    """

    key: Tensor
    value: Tensor
    label: Tensor


class Carry(NamedTuple):
    """Sums over all keys so far.

    Attributes:
        state: Σ ψ(y) vᵀ with a column for the denominators, ``(B, H, D, d_v + 1)``.
        scale: its log scale, ``(B, H, 1, 1)``.
        moments: sums of `key_moments`, ``(B, H, 1, ·)``.
        total: sums of values and their number, ``(B, H, 1, d_v + 1)``.
        low: minimum of values, ``(B, H, 1, d_v)``; without columns for maps without signs.
        high: maximum of values, likewise.
        past: the keys themselves, if some pairs are exact.
    """

    state: Tensor
    scale: Tensor
    moments: Tensor
    total: Tensor
    low: Tensor
    high: Tensor
    past: Past | None = None

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Carry:
        """Rebuild a carry from `tensors`."""
        past = Past(*(tensors[name] for name in Past._fields)) if "key" in tensors else None
        return cls(**{name: tensors[name] for name in cls._fields[:-1]}, past=past)

    @classmethod
    def of_sums(cls, sums: Iterable[Tensor]) -> Carry:
        """Rebuild a carry without keys from `sums`."""
        return cls.of(dict(zip(cls._fields, sums, strict=False)))

    def sums(self) -> tuple[Tensor, ...]:
        """Return all tensors but the keys themselves."""
        return self[:-1]

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        past = {} if self.past is None else self.past._asdict()
        return {**dict(zip(self._fields[:-1], self[:-1], strict=True)), **past}

    def emptied(self) -> Carry:
        """Return the carry of no keys, of the same shapes."""
        state, moments, total = (torch.zeros_like(t) for t in (self.state, self.moments, self.total))
        scale, low = torch.full_like(self.scale, LOWEST), torch.full_like(self.low, torch.inf)
        return Carry(state, scale, moments, total, low, -low)

    def plus(self, other: Carry) -> Carry:
        """Return the carry of the keys of both."""
        state, scale = add_scaled((self.state, self.scale), (other.state, other.scale))
        low, high = torch.minimum(self.low, other.low), torch.maximum(self.high, other.high)
        return Carry(state, scale, self.moments + other.moments, self.total + other.total, low, high)


def add_scaled(first: Sequence[Tensor], second: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Add sums with log scales, on the larger of their scales; `LOWEST` is the scale of nothing."""
    scale = torch.maximum(first[1], second[1])
    own, other = (values * (at - scale).exp() for values, at in (first, second))
    return own + other, scale


def prepare(
    inputs: Inputs,
    feature_map: FeatureMap,
    rule: Denominator,
    carry: Carry | None = None,
    past: Past | None = None,
) -> tuple[Call, tuple[Tensor | None, ...]]:
    """Describe a causal call: row i sees the keys of ``carry`` and keys 0 … i.

    The tensors are query, key, value, the state and its scale, and ``None`` twice, for sums over exact pairs.
    """
    moments = key_moments(inputs, feature_map).cumsum(2)
    if carry is not None:
        moments = moments + carry.moments
    call = Call.of(
        inputs,
        per_row(inputs, moments),
        feature_map,
        rule,
        resumed=carry is not None,
        past=past,
        visible=values_so_far(inputs, feature_map, carry),
    )
    if carry is None:
        shape = *inputs.key.shape[:2], feature_map.feature_dim, inputs.value.shape[-1] + 1
        state = inputs.key.new_zeros(shape, dtype=inputs.dtype)
        scale = state.new_full((*shape[:2], 1, 1), LOWEST)
    else:
        state, scale = carry.state.to(inputs.dtype), carry.scale.to(inputs.dtype)
    return call, (*inputs[:3], state, scale, None, None)


def values_so_far(inputs: Inputs, feature_map: FeatureMap, carry: Carry | None) -> Visible:
    """Describe the values of the keys before a call, ``(N, 1, ·)``."""
    if carry is None:
        no_keys = inputs.value[:, :, :0].detach()
        empty = of_all(no_keys, None, inputs.dtype, signed=not feature_map.nonnegative)
        if empty.low is None or empty.high is None:
            return empty
        return Visible(
            empty.total, torch.full_like(empty.low, torch.inf), torch.full_like(empty.high, -torch.inf)
        )
    total, low, high = (
        t.detach().to(inputs.dtype).flatten(0, 1) for t in (carry.total, carry.low, carry.high)
    )
    return Visible(total, None, None) if feature_map.nonnegative else Visible(total, low, high)

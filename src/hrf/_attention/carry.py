"""The carry of causal attention: sums over earlier tokens that later ones need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from hrf._attention.call import Call
from hrf._attention.denominator import Denominator, key_moments, per_row
from hrf._attention.dense.chunks import LOWEST
from hrf._attention.inputs import Inputs
from hrf.features.base import FeatureMap

__all__ = ["Carry", "Past", "prepare"]


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
        past: the keys themselves, if some pairs are exact.
    """

    state: Tensor
    scale: Tensor
    moments: Tensor
    past: Past | None = None

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Carry:
        """Rebuild a carry from `tensors`."""
        past = Past(*(tensors[name] for name in Past._fields)) if "key" in tensors else None
        return cls(tensors["state"], tensors["scale"], tensors["moments"], past)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        past = {} if self.past is None else self.past._asdict()
        return {"state": self.state, "scale": self.scale, "moments": self.moments, **past}


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
    call = Call.of(inputs, per_row(inputs, moments), feature_map, rule, resumed=carry is not None, past=past)
    if carry is None:
        shape = *inputs.key.shape[:2], feature_map.feature_dim, inputs.value.shape[-1] + 1
        state = inputs.key.new_zeros(shape, dtype=inputs.dtype)
        scale = state.new_full((*shape[:2], 1, 1), LOWEST)
    else:
        state, scale = carry.state.to(inputs.dtype), carry.scale.to(inputs.dtype)
    return call, (*inputs[:3], state, scale, None, None)

"""Causal attention with a clustered hybrid: its estimates have features; exact pairs need all keys so far."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from hrf._attention.call import Call
from hrf._attention.carry import Carry, Past, prepare
from hrf._attention.clustered.exact import Lists, met
from hrf._attention.clustered.tokens import LOG2E, by_label
from hrf._attention.denominator import Denominator
from hrf._attention.inputs import Inputs
from hrf._attention.label_blocks import with_ones
from hrf.features.base import FeatureMap, Side
from hrf.features.clustered import ClusteredHybrid
from hrf.numerics import Features

__all__ = ["prepare_clustered"]


def prepare_clustered(
    inputs: Inputs, feature_map: ClusteredHybrid, rule: Denominator, carry: Carry | None = None
) -> tuple[Call, tuple[Tensor | None, ...]]:
    """Describe a causal call, with the sums over exact pairs among its tensors.

    Key centres stay where they were fitted: centres that move with the keys would let later keys in.
    """
    feature_map = feature_map.with_fixed_centres()
    if feature_map.exact is None:
        return prepare(inputs, feature_map, rule, carry)
    past = _past(inputs, feature_map, None if carry is None else carry.past)
    estimated = _Estimated(feature_map) if feature_map.per_pair else feature_map
    call, tensors = prepare(inputs, estimated, rule, carry, past)
    return call, (*tensors[:5], *_sums(inputs, past, feature_map))


class _Estimated(FeatureMap):
    """The pairs of a clustered hybrid that are not exact. The scale of their features has no gradient."""

    def __init__(self, whole: ClusteredHybrid) -> None:
        super().__init__()
        self.whole = whole
        self.dim, self.heads, self.feature_dim = whole.dim, whole.heads, whole.feature_dim

    @property
    @override
    def nonnegative(self) -> bool:
        return self.whole.nonnegative

    @override
    def scaled(self, x: Tensor, side: Side) -> Features:
        return self.whole.estimated_features(x, side)


def _past(inputs: Inputs, phi: ClusteredHybrid, before: Past | None) -> Past:
    """Append the keys of ``inputs`` to the keys before them; the label of ignored keys is n_k."""
    label = phi.assign(inputs.key.detach().to(inputs.dtype) * inputs.root, "key")
    if inputs.ignore is not None:
        label = label.masked_fill(inputs.ignore.unsqueeze(1), phi.n_k)
    new = Past(inputs.key, inputs.value, label)
    parts = [new] if before is None else [before, new]
    # Copied in any case: a state owns its tensors.
    return Past(*(torch.cat(some, 2) for some in zip(*parts, strict=True)))


def _sums(inputs: Inputs, past: Past, phi: ClusteredHybrid) -> Features:
    """Sum exp(xᵀy) (v(y), 1) over the exact pairs of each query with the keys up to it: ``(B·H, L, d_v + 1)``.

    The last keys of ``past`` are those of ``inputs``.
    """
    assert phi.exact is not None
    x = inputs.query.to(inputs.dtype) * inputs.root
    (n_rows, length), n_keys, n_new = x.flatten(0, 1).shape[:2], past.key.shape[2], inputs.key.shape[2]
    queries = by_label(phi.assign(x.detach(), "query").flatten(0, 1), phi.n_q)
    keys = by_label(past.label.flatten(0, 1), phi.n_k)
    exact = phi.exact.expand(*x.shape[:2], -1, -1).flatten(0, 1)
    position = torch.arange(length, device=x.device) * n_new // max(1, length) + n_keys - n_new
    last = position + n_keys * torch.arange(n_rows, device=x.device).unsqueeze(-1)
    y, v = (t.to(inputs.dtype).flatten(0, 2) for t in past[:2])
    lists = Lists.of(queries, keys, exact, last.flatten())
    values, scale = met(queries, lists, x.flatten(0, 2) * (LOG2E * inputs.root), y, with_ones(v))
    return Features(*(t.unflatten(0, (n_rows, length)) for t in (values, scale / LOG2E)))

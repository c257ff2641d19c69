"""Causal attention with exact pairs of clusters: the other pairs have features, exact ones need all keys so far."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hrf._attention.clustered.common import LOG2E, by_label
from hrf._attention.clustered.exact import Lists, met
from hrf._attention.inputs import Inputs
from hrf._attention.label_blocks import with_ones
from hrf.features.base import FeatureMap, Features, Side
from hrf.features.clustered import ClusteredHybrid

__all__ = ["Estimated", "Past", "partly_exact", "sums"]


def partly_exact(feature_map: FeatureMap) -> ClusteredHybrid | None:
    """The map, if it has pairs of clusters that are exact."""
    if isinstance(feature_map, ClusteredHybrid) and feature_map.exact is not None:
        return feature_map
    return None


class Estimated(FeatureMap):
    """The pairs of a clustered hybrid that are not exact. The scale of their features has no gradient."""

    def __init__(self, whole: ClusteredHybrid) -> None:
        super().__init__()
        self.whole = whole
        self.dim, self.heads, self.feature_dim = whole.dim, whole.heads, whole.feature_dim

    @property
    def nonnegative(self) -> bool:
        """Whether no estimate can be negative."""
        return self.whole.nonnegative

    def scaled(self, x: Tensor, side: Side) -> Features:
        return self.whole.estimated_features(x, side)


class Past(NamedTuple):
    """The keys so far, S of them.

    Attributes:
        key: as they were given, ``(B, H, S, d)``.
        value: likewise, ``(B, H, S, d_v)``.
        label: their clusters, ``(B, H, S)``; n_k for those to ignore.
    """

    key: Tensor
    value: Tensor
    label: Tensor

    @classmethod
    def of(cls, inputs: Inputs, phi: ClusteredHybrid, before: Past | None) -> Past:
        """The keys of some tokens, and those before them."""
        label = phi.assign(inputs.key.detach().to(inputs.dtype) * inputs.root, "key")
        if inputs.ignore is not None:
            label = label.masked_fill(inputs.ignore.unsqueeze(1), phi.n_k)
        new = cls(inputs.key, inputs.value, label)
        parts = [new] if before is None else [before, new]
        # Copied in any case: a state owns its tensors.
        return cls(*(torch.cat(some, 2) for some in zip(*parts, strict=True)))


def sums(inputs: Inputs, past: Past, phi: ClusteredHybrid) -> Features:
    """Σ exp(xᵀy) (v(y), 1) over the exact pairs of each query with the keys up to it: ``(B·H, L, d_v + 1)``.

    ``past`` has the keys of the queries too, its last.
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

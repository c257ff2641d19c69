"""Maps whose structure says more than their features: which engine serves them, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from hrf.attention import angular, clusters
from hrf.attention.inputs import Inputs
from hrf.features.base import FeatureMap, Features
from hrf.features.clustered import ClusteredHybrid

__all__ = ["engine", "sums"]

Engine = Callable[..., Iterator[Features]]  # x, y, values, the map, keys to keep, root, ones


def engine(feature_map: FeatureMap) -> Engine | None:
    """The engine for a map, if it has one of its own."""
    if isinstance(feature_map, ClusteredHybrid):
        return clusters.stream
    return angular.stream if angular.serves(feature_map) else None


def sums(inputs: Inputs, feature_map: FeatureMap, engine: Engine) -> Iterator[Features]:
    """Σ K̂(x, y) v and, in the last column, Σ K̂(x, y): ``(rows, L, d_v + 1)`` for some of B·H rows after others."""
    x, y, v = (tensor.to(inputs.dtype) for tensor in inputs[:3])
    keep: Tensor | None = None
    if inputs.ignore is not None:
        keep = ~inputs.ignore[:, None]
        y, v = (u.masked_fill(~keep.unsqueeze(-1), 0) for u in (y, v))  # NaN there must not count
    feature_map._check_values(x, "query")
    feature_map._check_values(y, "key")
    return engine(x, y, v, feature_map, keep, inputs.root, ones=True)

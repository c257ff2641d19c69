"""Feature maps of `hrf`, one per layer: FAVOR+ is drawn, all others are fitted to passages of training text.

FLOPs per token: as in ``benchmarks/quality/flops.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Generator, Tensor
from typing_extensions import override

import hrf
from benchmarks.field.method import Method
from benchmarks.minilm import Attention
from benchmarks.quality.flops import attention_flops

__all__ = ["Maps", "clusters", "features"]


@dataclass(frozen=True)
class Maps(Method):
    """Linear attention with a map per layer.

    Attributes:
        fit: from queries and keys ``(N, H, L, d)`` to a map.
        layers: what to fit to, by layer.
        maps: maps fitted so far, by layer.
        shares: of exact pairs, by the length of the sequence; `measure_share` adds them.
    """

    fit: Callable[[Tensor, Tensor], hrf.FeatureMap]
    layers: Sequence[Attention]
    maps: dict[int, hrf.FeatureMap] = field(default_factory=dict)
    shares: dict[int, float] = field(default_factory=dict)

    def map_of(self, layer: int) -> hrf.FeatureMap:
        """Return the map of a layer, fitted at the first call."""
        if layer not in self.maps:
            queries, keys, _ = self.layers[layer]
            self.maps[layer] = self.fit(queries, keys).float()
        return self.maps[layer]

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int = 0) -> Tensor:
        return hrf.attention(q, k, v, self.map_of(layer), scale=1.0)

    @override
    def measure_share(self, layers: Sequence[Attention]) -> None:
        found = [0.0]
        for layer, (q, k, _) in enumerate(layers):
            phi = self.map_of(layer)
            if isinstance(phi, hrf.ClusteredHybrid):
                found.append(phi.exact_share(q, k))
        self.shares[layers[0].queries.shape[-2]] = sum(found) / max(1, len(found) - 1)

    @override
    def flops(self, length: int, dim: int, value_dim: int) -> float:
        return attention_flops(self.map_of(0), value_dim, length, self.shares.get(length, 0.0))


def features(build: Callable[..., hrf.FeatureMap], layers: Sequence[Attention], size: int) -> Maps:
    """Return attention with ``size`` random features per layer, fitted if the map can be."""

    def fit(queries: Tensor, keys: Tensor) -> hrf.FeatureMap:
        heads, generator = queries.shape[1], Generator().manual_seed(0)
        phi = build(queries.shape[-1], n_projections=size, heads=heads, generator=generator)
        fitted: hrf.FeatureMap = phi.fit(queries, keys) if build is not hrf.Positive else phi
        return fitted

    return Maps(fit, layers)


def clusters(layers: Sequence[Attention], exact_share: float, size: int) -> Maps:
    """Return attention with ``size × size`` fitted clusters, separable, and a share of exact pairs."""

    def fit(queries: Tensor, keys: Tensor) -> hrf.FeatureMap:
        options = {"base": "separable", "n_clusters": (size, size), "recenter": True}
        return hrf.ClusteredHybrid.fit(
            queries, keys, exact_share=exact_share, heads=queries.shape[1], **options
        )

    return Maps(fit, layers)

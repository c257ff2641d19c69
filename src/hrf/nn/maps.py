"""Feature maps by name, for layers that make their own map."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Generator

from hrf.features.base import FeatureMap
from hrf.features.exponential import Positive, Trigonometric
from hrf.features.hybrid import AngularHybrid

__all__ = ["NAMES", "Maker", "MapName", "feature_map_for", "maker_of"]

# Called as ``maker(dim, heads=heads, generator=generator)``: for instance a class of maps with its sizes filled in.
Maker = Callable[..., FeatureMap]

MapName = Literal["positive", "angular", "trigonometric"]

# 256 features, and the angular hybrid with m = n = 8 as in the paper's robotics part (288 features).
NAMES: dict[MapName, Maker] = {
    "positive": partial(Positive, n_projections=128),
    "angular": partial(AngularHybrid, n_projections=8, n_coefficient_projections=8),
    "trigonometric": partial(Trigonometric, n_projections=128),
}

_EXPECTED = (
    f"expected one of {', '.join(NAMES)}, a FeatureMap, or a function of (dim, heads=..., generator=...) that "
    "returns one"
)


def maker_of(name: MapName) -> Maker:
    """Look up the maker of a name."""
    if name not in NAMES:
        raise ValueError(f"feature_map is {name!r}; {_EXPECTED}")
    return NAMES[name]


def feature_map_for(
    feature_map: MapName | Maker | FeatureMap, dim: int, heads: int, generator: Generator | None = None
) -> FeatureMap:
    """Return a map for ``heads`` heads of width ``dim``: by name, from its maker, or the given map if it fits."""
    if isinstance(feature_map, str):
        feature_map = maker_of(feature_map)
    if not isinstance(feature_map, FeatureMap):
        made = feature_map(dim, heads=heads, generator=generator) if callable(feature_map) else feature_map
        if not isinstance(made, FeatureMap):
            raise TypeError(f"feature_map is or returned {made!r}; {_EXPECTED}")
        feature_map = made
    if feature_map.dim != dim or feature_map.heads not in (None, heads):
        raise ValueError(
            f"the feature map has dim={feature_map.dim}, heads={feature_map.heads}; "
            f"expected dim={dim}, heads={heads} or None"
        )
    return feature_map

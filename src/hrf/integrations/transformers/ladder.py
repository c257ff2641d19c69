"""Maps from cheap to dear, for `convert` with a quality to reach: more and more pairs of tokens are exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from torch import Tensor

from hrf.features.base import FeatureMap
from hrf.features.clustered import ClusteredHybrid
from hrf.features.exponential import Exponential
from hrf.fitting import ResidualFit, fit_residuals, samples

__all__ = ["LADDER", "Rung", "Vectors", "fit_clusters"]

_CLUSTERS = (64, 64)
_SHARES = (0.05, 0.1, 0.2, 0.4)


class Vectors(NamedTuple):
    """Queries and keys of one layer, ``(H, N, d)`` each, and their clusters."""

    queries: Tensor
    keys: Tensor
    clusters: ResidualFit


class Rung(NamedTuple):
    """A kind of map.

    Attributes:
        name: what it is called in messages.
        fit: from the vectors of a layer to a map.
    """

    name: str
    fit: Callable[[Vectors], FeatureMap]


def fit_clusters(queries: Tensor, keys: Tensor, *, heads: int) -> Vectors:
    """Cluster the vectors of a layer, once for all rungs."""
    x, y = (samples(u, heads, name) for u, name in ((queries, "queries"), (keys, "keys")))
    n_q, n_k = (min(n, u.shape[1]) for n, u in zip(_CLUSTERS, (x, y), strict=True))
    return Vectors(queries, keys, fit_residuals(x, y, (n_q, n_k), "real-diagonal"))


def _exponential(vectors: Vectors) -> FeatureMap:
    return Exponential.fit(vectors.queries, vectors.keys, heads=len(vectors.queries), n_projections=128)


def _clustered(vectors: Vectors, exact_share: float = 0.0) -> FeatureMap:
    return ClusteredHybrid.fit(
        vectors.queries,
        vectors.keys,
        base="separable",
        recenter=True,
        exact_share=exact_share,
        clusters=vectors.clusters,
        heads=len(vectors.queries),
    )


LADDER: Sequence[Rung] = (
    Rung("exponential features, fitted", _exponential),
    Rung("clusters", _clustered),
    *(Rung(f"clusters, {s:.0%} of pairs exact", partial(_clustered, exact_share=s)) for s in _SHARES),
)

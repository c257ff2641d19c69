"""Attention with a clustered hybrid, exactly: every token meets only the blocks of its own cluster.

For a query of cluster i and the keys of cluster j, K̂ = exp(xᵀrⱼ + rᵢᵀy') φ(x')ᵀφ(y') (``features/clustered.py``).
The keys of each cluster become states, one for every query cluster, on a scale of their own,

    U_ij = Σ_{y in j} exp(rᵢᵀy' − c_ij) φ(y') v(y)ᵀ,        c_ij = max_{y in j} rᵢᵀy',

and the query reads Σⱼ exp(xᵀrⱼ + c_ij) φ(x')ᵀ U_ij. Exact pairs of clusters are left out of it: there a block of
queries meets the list of all keys of its exact clusters, as in block-sparse softmax attention (``exact.py``).
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from hrf import tuning
from hrf._attention.clustered.exact import Exact
from hrf._attention.clustered.pairs import Pairs, pair_tokens
from hrf._attention.clustered.states import Default, Residuals
from hrf._attention.clustered.tokens import LOG2E, ClusteredTokens, PairEngine, added
from hrf._attention.label_blocks import joined, nothing, parts, with_ones
from hrf.features.base import of_heads
from hrf.features.clustered import ClusteredHybrid
from hrf.numerics import Features, finite

__all__ = ["stream", "sums"]


def stream(
    x: Tensor,
    y: Tensor,
    values: Tensor,
    feature_map: ClusteredHybrid,
    keep: Tensor | None = None,
    root: float = 1,
    *,
    ones: bool = False,
) -> Iterator[Features]:
    """Yield Σ_y K̂(x, y) v(y) over the keys to keep, ``(rows, L, c)`` for a few rows at a time.

    Args:
        x: queries ``(..., H, L, d)``, checked.
        y: keys ``(..., H, S, d)``.
        values: ``(..., H, S, c)``.
        feature_map: the map.
        keep: booleans that broadcast to ``(..., H, S)``; ``None`` keeps all. Masked keys are not in the means
            of `ClusteredHybrid.recenter` either.
        root: √scale, which multiplies queries and keys.
        ones: add a column of ones to the values.
    """
    if not (x.numel() and y.numel()):
        yield nothing(x, y, with_ones(values) if ones else values)
        return
    if keep is not None:
        keep = keep.expand(y.shape[:-1]).reshape(-1, *y.shape[-3:-1])
    x, y, values = (t.reshape(x.shape[:-3].numel(), *t.shape[-3:]) for t in (x, y, values))
    n_tokens = pair_tokens(feature_map) if feature_map.per_pair else tuning.CLUSTER_TOKENS
    for part in parts(x, y, n_tokens):
        phi = of_heads(feature_map, part[1])
        queries = ClusteredTokens.of(x[part], root, phi, "query", None)
        keys = ClusteredTokens.of(y[part], root, phi, "key", None if keep is None else keep[part])
        total: Features | None = None
        for engine in _engines(queries, keys, values[part], ones, phi):
            total = added(total, engine.sums())
        assert total is not None
        yield Features(total.values, finite(total.log_scale) / LOG2E)


def sums(
    x: Tensor, y: Tensor, values: Tensor, feature_map: ClusteredHybrid, keep: Tensor | None = None
) -> Features:
    """Return what `stream` yields, for all queries at once: ``(..., H, L, c)``."""
    return joined(stream(x, y, values, feature_map, keep), x)


def _engines(
    queries: ClusteredTokens, keys: ClusteredTokens, values: Tensor, ones: bool, phi: ClusteredHybrid
) -> list[PairEngine]:
    """Return the engines whose sums add up to the whole: for the base, the default map and exact pairs."""
    exact, served = (
        None if table is None else table.expand(*values.shape[:-2], -1, -1).flatten(0, -3)
        for table in (phi.exact, phi.served)
    )
    estimated = None if exact is None else ~exact
    arguments = queries, keys, values, ones, phi
    base = Pairs if phi.per_pair else Residuals
    engines: list[PairEngine] = [base(*arguments, _both(served, estimated))]
    if served is not None:
        engines.append(Default(*arguments, _both(~served, estimated)))
    if exact is not None:
        engines.append(Exact(*arguments, exact))
    return engines


def _both(pairs: Tensor | None, others: Tensor | None) -> Tensor | None:
    """Return the pairs of clusters that are in both tables; ``None`` has all."""
    return others if pairs is None else pairs if others is None else pairs & others

"""Operations per token of the whole attention, 2 per multiply-add, with values of width d_v and S keys.

=================  ===================================================================================
features           2 flops() + 4 w (d_v + 1): map a query and a key, add the key to the state, read it;
                   w is the active width, D for a plain map and n blocks for n × n clusters
moving centres     d, for the means of the keys
exact pairs        less the blocks they replace, plus share · S (2d + 2d_v)
exact attention    S (2d + 2d_v)
uniform            d_v
=================  ===================================================================================

Only exact parts grow with S. At a few hundred tokens many maps need more operations than exact attention.
"""

from __future__ import annotations

import hrf

__all__ = ["attention_flops", "exact_flops", "pays_from"]


def exact_flops(dim: int, value_dim: int, n_keys: int) -> float:
    """Count operations per token of exact attention: products with all keys, and the sum of their values."""
    return float(n_keys * (2 * dim + 2 * value_dim))


def attention_flops(phi: hrf.FeatureMap, value_dim: int, n_keys: int, exact_share: float = 0.0) -> float:
    """Count operations per token of attention with a map, as in the table at the top of this file.

    Args:
        phi: the map; if clustered, with as many clusters of queries as of keys.
        value_dim: d_v.
        n_keys: S; matters for exact pairs only.
        exact_share: the share of pairs of tokens that are computed exactly.
    """
    state = 4.0 * phi.active_width * (value_dim + 1)  # the values, and a one for the denominator
    more = 0.0
    if isinstance(phi, hrf.ClusteredHybrid):
        state *= 1 if phi.exact is None else 1 - float(phi.exact.double().mean())
        more = phi.dim * phi.recenter + exact_share * exact_flops(phi.dim, value_dim, n_keys)
    return 2 * phi.flops() + state + more


def pays_from(flops: float, exact_share: float, per_key: float, n_keys: int) -> float:
    """Return the length from which a map needs fewer operations than exact attention.

    Args:
        flops: operations per token, with ``n_keys`` keys.
        exact_share: share of pairs that are computed exactly; their cost grows with the length.
        per_key: operations of exact attention per token and key.
        n_keys: S.
    """
    fixed = flops - exact_share * per_key * n_keys
    return fixed / (per_key * (1 - exact_share))

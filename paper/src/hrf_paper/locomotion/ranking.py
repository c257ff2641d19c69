"""Rank patches by the attention they get: column sums of softmax(QKᵀ), exact or by random features.

With features, the sum over queries comes before the product with keys, so that no matrix of attention is made:
s_k = ψ(k) · Σ_q φ(q) / (φ(q) · Σ_k' ψ(k')).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Generator, Tensor

import hrf

__all__ = ["METHODS", "Method", "attention_received", "build", "ranking_flops"]

Plain = Literal["exact", "uniform", "blind"]
Method = Plain | hrf.FeatureMap
_PLAIN: tuple[Plain, ...] = ("exact", "uniform", "blind")

_Builder = Callable[[int, Generator], hrf.FeatureMap]


def _within(kind: Callable[..., hrf.FeatureMap], dim: int, generator: Generator) -> hrf.FeatureMap:
    """Return the largest map whose ranking costs no more FLOPs than with the angular hybrid."""
    budget = _per_patch(_angular(dim, Generator()))
    sizes = range(1, 257)
    fitting = [m for m in sizes if _per_patch(kind(dim, n_projections=m, generator=Generator())) <= budget]
    return kind(dim, n_projections=fitting[-1], generator=generator)


def _angular(dim: int, generator: Generator) -> hrf.FeatureMap:
    return hrf.AngularHybrid(dim, n_projections=8, n_coefficient_projections=8, generator=generator)


# Numbers are the paper's random projections: rows ω, each of which gives FAVOR+ two features.
_MAPS: dict[str, _Builder] = {
    "FAVOR+ 256": lambda dim, generator: hrf.Positive(dim, n_projections=256, generator=generator),
    "FAVOR+ small": lambda dim, generator: _within(hrf.Positive, dim, generator),
    "HRF-A (8,8)": _angular,
    "Trig small": lambda dim, generator: _within(hrf.Trigonometric, dim, generator),
}
METHODS = ("exact", *_MAPS, "uniform", "blind")


def build(name: str, dim: int, generator: Generator) -> Method:
    """Return a method by its name: a map for vectors of ``dim`` numbers, or what needs no map.

    "FAVOR+ small" and "Trig small" cost no more FLOPs than "HRF-A (8,8)". "uniform" keeps all patches, and "blind" sees
    none.
    """
    if name in _MAPS:
        return _MAPS[name](dim, generator)
    for plain in _PLAIN:
        if name == plain:
            return plain
    raise ValueError(f"method is {name!r}; expected one of {', '.join(METHODS)}")


def attention_received(queries: Tensor, keys: Tensor, method: Literal["exact"] | hrf.FeatureMap) -> Tensor:
    """Return the sum of attention to each key, ``(..., n)``, for queries and keys ``(..., n, d)``.

    A ``FloatingPointError`` names a method whose sums are not finite.
    """
    if isinstance(method, str):
        received = torch.softmax(queries @ keys.mT, -1).sum(-2)
    else:
        of_queries, of_keys = method.queries(queries), method.keys(keys)
        denominator = of_queries @ of_keys.sum(-2).unsqueeze(-1)
        received = (of_keys @ (of_queries / denominator).sum(-2).unsqueeze(-1)).squeeze(-1)
    if not bool(received.isfinite().all()):
        name = method if isinstance(method, str) else type(method).__name__
        raise FloatingPointError(f"attention by {name} is not finite")
    return received


def _per_patch(feature_map: hrf.FeatureMap) -> int:
    """Count both maps, the sum of keys, the denominator, the sum of queries and the product with it."""
    return 2 * feature_map.flops() + (1 + 2 + 2 + 2) * feature_map.feature_dim


def ranking_flops(method: Method, n_patches: int, dim: int) -> int:
    """Count the operations of a ranking, without the projections to queries and keys.

    Two per multiply-add, and one per exponential, division or sum: the accounting of `hrf.FeatureMap.flops`.
    """
    if isinstance(method, hrf.FeatureMap):
        return n_patches * _per_patch(method)
    # Products, exponentials, row sums, divisions, column sums.
    return n_patches**2 * (2 * dim + 4) if method == "exact" else 0

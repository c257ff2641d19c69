"""Pairs of a query cluster and a key cluster: their moments and their weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hrf.fitting.clusters import ClusterMoments
from hrf.fitting.matrices import SecondMoments

__all__ = ["heavy_keys", "largest_pairs", "pair_moments", "samples"]


def samples(vectors: Tensor, heads: int | None, name: str) -> Tensor:
    """Flatten vectors ``(..., L, d)`` to ``(N, d)``, or ``(..., H, L, d)`` to ``(H, N, d)``, in float64."""
    expected = "(..., L, d)" if heads is None else f"(..., {heads}, L, d)"
    if not isinstance(vectors, Tensor) or not vectors.is_floating_point():
        raise TypeError(f"{name} are not a real floating-point tensor; expected one of shape {expected}")
    if vectors.ndim < (2 if heads is None else 3) or (heads is not None and vectors.shape[-3] != heads):
        raise ValueError(f"{name} have shape {tuple(vectors.shape)}; expected {expected}")
    if not vectors.numel() or not vectors.isfinite().all():
        raise ValueError(f"{name} of shape {tuple(vectors.shape)} are empty or not all finite")
    vectors = vectors.detach().double()
    if heads is None:
        return vectors.reshape(-1, vectors.shape[-1])
    return vectors.movedim(-3, 0).reshape(heads, -1, vectors.shape[-1])


def pair_moments(queries: ClusterMoments, keys: ClusterMoments) -> SecondMoments:
    """Compute second moments of every pair of clusters, all queries with all keys: ``(..., n_q, n_k, d, d)``."""
    cross = queries.means[..., :, None, :, None] * keys.means[..., None, :, None, :]
    return SecondMoments(queries.seconds.unsqueeze(-3), keys.seconds.unsqueeze(-4), cross)


def heavy_keys(centers: Sequence[Tensor], n_keys: Tensor, share: float) -> Tensor:
    """Mark the heaviest key clusters that together hold at most ``share`` of the keys, per query cluster.

    A key cluster weighs rᵢᵀrⱼ + log(number of keys), the logarithm of its part of the softmax denominator.
    Clusters are taken from the heaviest to the lightest; a cluster that no longer fits is skipped.

    Args:
        centers: centres of the queries ``(..., n_q, d)`` and of the keys ``(..., n_k, d)``.
        n_keys: number of keys per cluster, ``(..., n_k)``.
        share: share of all keys; it is refused if no cluster is that small.

    Returns:
        Booleans ``(..., n_q, n_k)``.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"exact_share is {share}; expected between 0 and 1")
    counts = n_keys.double()
    weight = centers[0] @ centers[1].mT + counts.log().unsqueeze(-2)
    order = weight.argsort(-1, descending=True)
    sizes = counts.unsqueeze(-2).expand_as(weight).gather(-1, order)
    left = share * counts.sum(-1)[..., None].expand(sizes.shape[:-1]) * (1 + 1e-9)
    taken = []
    for size in sizes.unbind(-1):
        taken.append((size > 0) & (size <= left))
        left = left - size * taken[-1]
    exact = torch.stack(taken, -1)
    if not exact.any():
        least = float((counts / counts.sum(-1, keepdim=True))[counts > 0].min())
        raise ValueError(
            f"exact_share is {share}, but no cluster holds less than {least:.3g} of the keys; "
            "expected at least that, or more clusters"
        )
    return torch.zeros_like(exact).scatter(-1, order, exact)


def largest_pairs(n_queries: Tensor, n_keys: Tensor, *, share: float) -> Tensor:
    """Mark the largest pairs of clusters that together hold at least ``share`` of all pairs of vectors.

    Returns:
        Booleans ``(..., n_q, n_k)``.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"default_share is {1 - share:g}; expected between 0 and 1")
    sizes = (n_queries.unsqueeze(-1) * n_keys.unsqueeze(-2)).double()
    flat = sizes.flatten(-2)
    order = flat.argsort(-1, descending=True)
    before = flat.gather(-1, order).cumsum(-1) - flat.gather(-1, order)
    taken = before < share * flat.sum(-1, keepdim=True)
    return torch.zeros_like(taken).scatter(-1, order, taken).view(sizes.shape)

"""Reformer (Kitaev et al., 2020): queries and keys of the same hash meet; sorted by hash and cut into chunks.

A hash is the nearest of ± random directions. Reformer shares queries and keys; in a model trained otherwise both are
hashed with the same directions and sorted each on its own. Keys are centred first, which leaves softmax as it is. A
chunk of queries meets its own chunk of keys and both neighbours. A pair that meets in several rounds counts once.

FLOPs per token and round, with chunks of c: 2bd for the hashes of query and key with b buckets, 3c (2d + 2e) for pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from typing_extensions import override

from benchmarks.field.method import Method

__all__ = ["Lsh"]


@dataclass(frozen=True)
class Lsh(Method):
    """Attention within chunks of equal hash, in ``rounds`` rounds; the length is a multiple of ``chunk``."""

    rounds: int
    chunk: int = 32

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int = 0) -> Tensor:
        n = q.shape[-2] // self.chunk  # chunks, and buckets
        centred = k - k.mean(-2, keepdim=True)
        orders = [self._orders(q, centred, n, seed) for seed in range(self.rounds)]
        places = [tuple(_chunk_of(order, self.chunk) for order in pair) for pair in orders]
        numerator, denominator = torch.zeros_like(v), torch.zeros_like(v[..., :1])
        top = torch.full_like(v[..., :1], -torch.inf)
        for of_queries, of_keys in orders:
            rows, (keys, values) = (
                _chunks(q, of_queries, n),
                (_near(_chunks(u, of_keys, n)) for u in (centred, v)),
            )
            times = sum(
                _meet(_chunks(cq[..., None], of_queries, n), _near(_chunks(ck[..., None], of_keys, n)), n)
                for cq, ck in places
            )
            logits = rows @ keys.mT - times.log()  # a pair of r rounds has the weight 1/r in each
            peak = logits.amax(-1, keepdim=True)
            weights = (logits - peak).exp()
            sums = weights @ values, weights.sum(-1, keepdim=True), peak
            new, mass, peak = (_unsorted(u, of_queries) for u in sums)
            both = torch.maximum(top, peak)
            old, own = (top - both).exp(), (peak - both).exp()
            numerator, denominator, top = numerator * old + new * own, denominator * old + mass * own, both
        return numerator / denominator

    def _orders(self, q: Tensor, k: Tensor, buckets: int, seed: int) -> tuple[Tensor, Tensor]:
        """Sort queries and keys by their hashes: ``(..., L)`` each."""
        half = torch.randn(q.shape[-1], (buckets + 1) // 2, generator=Generator().manual_seed(seed)).to(q)
        directions = torch.cat([half, -half], -1)[:, :buckets]
        orders = ((u @ directions).argmax(-1).argsort(dim=-1, stable=True) for u in (q, k))
        return next(orders), next(orders)

    @override
    def flops(self, length: int, dim: int, value_dim: int) -> float:
        buckets = length // self.chunk
        return self.rounds * (2 * buckets * dim + min(3 * self.chunk, length) * 2 * (dim + value_dim))


def _chunk_of(order: Tensor, chunk: int) -> Tensor:
    """Return the chunk of each token, given the tokens in their order."""
    return order.argsort(-1) // chunk


def _chunks(u: Tensor, order: Tensor, n: int) -> Tensor:
    """Bring rows into an order and cut them into chunks: ``(..., L, d) -> (..., n, L/n, d)``."""
    return u.gather(-2, order[..., None].expand(*order.shape, u.shape[-1])).unflatten(-2, (n, -1))


def _near(chunks: Tensor) -> Tensor:
    """Put each chunk beside its neighbours, in a ring: ``(..., n, c, d) -> (..., n, 3c, d)``; fewer if n < 3."""
    n = chunks.shape[-3]
    return torch.cat([chunks.roll(shift, -3) for shift in ((0,), (0, 1), (0, 1, -1))[min(n, 3) - 1]], -2)


def _meet(of_queries: Tensor, of_keys: Tensor, n: int) -> Tensor:
    """Whether pairs meet in a round, from their chunks ``(..., n, c, 1), (..., n, 3c, 1)``."""
    apart = (of_queries - of_keys.mT).abs()
    return ((apart <= 1) | (apart == n - 1)).to(torch.get_default_dtype())


def _unsorted(chunks: Tensor, order: Tensor) -> Tensor:
    """Bring chunks back to the order of the tokens."""
    flat = chunks.flatten(-3, -2)
    return flat.gather(-2, order.argsort(-1)[..., None].expand_as(flat))

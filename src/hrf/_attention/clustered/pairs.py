"""Pairs of clusters with a map each: ``paper`` and ``moments``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from hrf import tuning
from hrf._attention.clustered.pair_products import PairProducts
from hrf._attention.clustered.states import ClusterStates
from hrf._attention.clustered.tokens import LOG2E, ClusteredTokens
from hrf._attention.label_blocks import LabelBlocks
from hrf.features.base import FeatureMap, Side, of_heads
from hrf.features.clustered import ClusteredHybrid
from hrf.numerics import Features

__all__ = ["Pairs", "pair_tokens"]


def pair_tokens(phi: ClusteredHybrid) -> int:
    """Return the tokens whose features for all pairs of their cluster exist at a time."""
    assert phi.feature_map is not None
    return max(1, tuning.PAIR_FLOATS // (max(phi.n_q, phi.n_k) * phi.feature_map.feature_dim))


class Pairs(ClusterStates):
    """Sums with a map per pair of clusters: a block of tokens meets the maps of all pairs of its cluster."""

    @property
    @override
    def span(self) -> int:
        return pair_tokens(self.phi)

    @override
    def write(self, keys: ClusteredTokens, centers: Tensor, values: Tensor) -> Features:
        return self.written(keys, values, *self._mapped(keys, "key"))

    @override
    def read(self, queries: ClusteredTokens, centers: Tensor, states: Tensor, table: Tensor) -> Features:
        return self.summed(queries.blocks, states, table, *self._mapped(queries, "query"))

    @override
    def meet(self, states: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        return states.transpose(1, 2).flatten(2, 3), self.masked(scale[..., 0, 0].mT)

    @override
    def products(self, blocks: LabelBlocks, weights: Tensor, features: Tensor | None) -> PairProducts:
        assert features is not None
        step = tuning.CLUSTER_FLOATS // features.shape[1:].numel()
        return PairProducts(weights, features, blocks.segment, blocks.pieces(step))

    def _mapped(self, tokens: ClusteredTokens, side: Side) -> tuple[Tensor, Tensor]:
        """Return the logarithms ``(N, size, k)`` of the weights and features ``(N, k, size, D)`` of all blocks."""
        phi, blocks = self.phi, tokens.blocks
        assert phi.feature_map is not None
        x = blocks.take(tokens.tokens.flatten(0, -2)) * tokens.root
        values, log_scale = _features(x, phi.feature_map, self._heads(blocks.segment, side), side)
        return log_scale.squeeze(-1).mT * LOG2E, values

    def _heads(self, segment: Tensor, side: Side) -> Tensor:
        """Return the heads of the map, pairs of clusters, that blocks of a segment meet: ``(N, k)``."""
        phi = self.phi
        every = torch.arange((phi.heads or 1) * phi.n_q * phi.n_k, device=segment.device)
        table = every.view(-1, phi.n_q, phi.n_k)
        rows = table if side == "query" else table.mT
        return rows.flatten(0, 1)[segment % rows[..., 0].numel()]  # rows of tokens go by head


def _features(x: Tensor, phi: FeatureMap, index: Tensor, side: Side) -> Features:
    """Map every block ``(N, size, d)`` by k heads of a map, ``index (N, k)``: ``(N, k, size, D)``."""
    every = of_heads(phi, index.flatten())
    if phi.has_pullback and not any(t.requires_grad for t in (*phi.parameters(), *phi.buffers())):
        return Features(*_Mapped.apply(x, every, index.shape[1], side))
    return Features(
        *(t[0].unflatten(0, index.shape) for t in every.scaled(_for_each(x, index.shape[1]), side))
    )


def _for_each(x: Tensor, n: int) -> Tensor:
    """Repeat blocks for each of their heads: ``(N, size, d) -> (1, N·n, size, d)``."""
    return x.unsqueeze(1).expand(-1, n, -1, -1).flatten(0, 1).unsqueeze(0)


class _Mapped(torch.autograd.Function):
    """Features by a map with n heads per block, a few blocks at a time; their gradient by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, phi: FeatureMap, n: int, side: Side) -> tuple[Tensor, Tensor]:
        shape = 1, len(x) * n, x.shape[1]
        values, logs = x.new_empty(*shape, phi.feature_dim), x.new_empty(*shape, 1)
        ctx.phi, ctx.n, ctx.side = phi, n, side
        for blocks, heads in _pieces(x, phi, n):
            out = values[:, heads]
            found = of_heads(phi, heads).scaled_into(_for_each(x[blocks], n), side, out)
            if found.values.data_ptr() != out.data_ptr():
                out.copy_(found.values)
            logs[:, heads] = found.log_scale
        ctx.save_for_backward(x, values)
        return values.view(len(x), n, *values.shape[2:]), logs.view(len(x), n, *logs.shape[2:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, values = ctx.saved_tensors
        grad = Features(*(g.reshape(1, values.shape[1], *g.shape[2:]) for g in grads))
        found = torch.empty_like(x)
        for blocks, heads in _pieces(x, ctx.phi, ctx.n):
            some = Features(*(g[:, heads] for g in grad))
            u = _for_each(x[blocks], ctx.n)
            pulled = of_heads(ctx.phi, heads).pullback(u, ctx.side, values[:, heads], some)
            torch.sum(pulled.view(-1, ctx.n, *x.shape[1:]), 1, out=found[blocks])
        return found, None, None, None


def _pieces(x: Tensor, phi: FeatureMap, n: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices of blocks and of their heads, few enough for their features to stay in the cache."""
    step = max(1, tuning.PAIR_FLOATS // 8 // (n * x.shape[1] * phi.feature_dim))
    for start in range(0, len(x), step):
        stop = min(start + step, len(x))
        yield slice(start, stop), slice(start * n, stop * n)

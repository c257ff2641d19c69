"""Pairs of clusters with a map each: ``paper`` and ``moments``."""

from __future__ import annotations

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
from hrf.features.base import FeatureMap, Side
from hrf.features.clustered import ClusteredHybrid
from hrf.features.heads import of_heads
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
    if phi.has_pullback and not any(t.requires_grad for t in (*phi.parameters(), *phi.buffers())):
        return Features(*_Mapped.apply(x, phi, index, side))
    values, log_scale = of_heads(phi, index.flatten()).scaled(_for_each(x, index), side)
    return Features(*(t[0].unflatten(0, index.shape) for t in (values, log_scale)))


def _for_each(x: Tensor, index: Tensor) -> Tensor:
    """Repeat blocks for each of their heads: ``(N, size, d) -> (1, N·k, size, d)``."""
    return x.unsqueeze(1).expand(-1, index.shape[1], -1, -1).flatten(0, 1).unsqueeze(0)


class _Mapped(torch.autograd.Function):
    """Features a few blocks at a time, which stay in the cache, and their gradient by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, phi: FeatureMap, index: Tensor, side: Side) -> tuple[Tensor, Tensor]:
        shape = *index.shape, x.shape[1]
        values, logs = x.new_empty(*shape, phi.feature_dim), x.new_empty(*shape, 1)
        ctx.phi, ctx.side = phi, side
        ctx.step = max(1, tuning.CLUSTER_FLOATS // values.shape[1:].numel())
        for u, heads, out, log in zip(*(t.split(ctx.step) for t in (x, index, values, logs)), strict=True):
            place = out.flatten(0, 1).unsqueeze(0)
            found = of_heads(phi, heads.flatten()).scaled_into(_for_each(u, heads), side, place)
            if found.values.data_ptr() != place.data_ptr():
                place.copy_(found.values)
            log.flatten(0, 1).copy_(found.log_scale[0])
        ctx.save_for_backward(x, index, values)
        return values, logs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_values: Tensor, grad_logs: Tensor) -> Any:
        x, index, values = ctx.saved_tensors
        found = torch.empty_like(x)
        tensors = (x, index, values, grad_values, grad_logs, found)
        for u, heads, own, grad, along, place in zip(*(t.split(ctx.step) for t in tensors), strict=True):
            pulled = of_heads(ctx.phi, heads.flatten()).pullback(
                _for_each(u, heads),
                ctx.side,
                own.flatten(0, 1).unsqueeze(0),
                Features(*(t.flatten(0, 1).unsqueeze(0) for t in (grad, along))),
            )
            torch.sum(pulled[0].unflatten(0, heads.shape), 1, out=place)
        return found, None, None, None

"""Bidirectional linear attention, streamed: a state S = Σ ψ(y) vᵀ from all keys, then φ(x)ᵀ S for every query.

One log scale a head for the state: the largest of the keys so far, and when it grows, the state is scaled down
(as in online softmax). The scale of a query stays outside: it cancels in the quotient.

The backward pass goes over the queries, then over the keys, with G the gradient of the sums:

    ∂φ(x) = S G,   ∂S = Σ φ(x) Gᵀ,   ∂ψ(y) = ∂S v,   ∂v = ∂Sᵀ ψ(y).

The gradient of a log scale is that of its features along themselves, so it needs no product as wide as they
are: ∂φᵀφ = G · sums, and ∂ψᵀψ = v · ∂v.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hrf.attention.blocks import LOWEST, Blocks, Place
from hrf.attention.inputs import Inputs
from hrf.features.base import FeatureMap, Features

__all__ = ["sums"]


def sums(inputs: Inputs, feature_map: FeatureMap) -> Features:
    """Σ K̂(x, y) v and, in the last column, Σ K̂(x, y): ``(B, H, L, d_v + 1)``."""
    blocks = Blocks.of(inputs, feature_map)
    learned = [p for p in feature_map.parameters() if p.requires_grad]
    values, log_scale = _Sums.apply(blocks, inputs.query, inputs.key, inputs.value, *learned)
    return Features(values, log_scale)


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, blocks: Blocks, query: Tensor, key: Tensor, value: Tensor, *learned: Tensor) -> Any:
        state, scale = _state(blocks, key, value)
        batch, heads, length, _ = query.shape
        values = state.new_empty(batch * heads, length, state.shape[-1])
        log_scale = state.new_empty(batch * heads, length, 1)
        place = Place()
        for rows in blocks.slices(query):
            phi = blocks.features(query, rows, "query", place)
            values[:, rows] = phi.values @ state
            torch.add(phi.log_scale, scale, out=log_scale[:, rows])
        ctx.blocks, ctx.learned = blocks, learned
        ctx.save_for_backward(query, key, value, state, scale, values)
        ctx.mark_non_differentiable(log_scale)
        shape = (batch, heads)
        return values.unflatten(0, shape), log_scale.unflatten(0, shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:
        blocks: Blocks = ctx.blocks
        query, key, value, state, scale, values = ctx.saved_tensors
        grad = grad.flatten(0, 1)
        learned = {p: torch.zeros_like(p) for p in ctx.learned}
        grad_query, grad_key, grad_value = (torch.empty_like(u) for u in (query, key, value))
        grad_state = torch.zeros_like(state)
        for rows in blocks.slices(query):
            phi, pull = blocks.traced(query, rows, "query")
            g = grad[:, rows]
            along = (g * values[:, rows]).sum(-1, keepdim=True)
            grad_query[:, :, rows] = pull(Features(g @ state.mT, along), learned)
            grad_state.baddbmm_(phi.values.mT, g)
        for rows in blocks.slices(key):
            psi, pull = blocks.traced(key, rows, "key")
            log_weight = psi.log_scale - scale
            v = blocks.values(value, rows, log_weight)
            grad_v = psi.values @ grad_state
            along = (v * grad_v).sum(-1, keepdim=True)
            grad_key[:, :, rows] = pull(Features(v @ grad_state.mT, along), learned)
            grad_v.mul_(log_weight.exp())
            grad_value[:, :, rows] = grad_v[..., :-1].view(value[:, :, rows].shape)
        return None, grad_query, grad_key, grad_value, *learned.values()


def _state(blocks: Blocks, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """S at its log scale: ``(N, D, d_v + 1)`` and ``(N, 1, 1)``."""
    n, width = key.shape[0] * key.shape[1], value.shape[-1] + 1
    # Transposed: the matrix product then is a third faster.
    state = torch.zeros(n, width, blocks.feature_map.feature_dim, dtype=blocks.dtype, device=key.device)
    scale = state.new_full((n, 1, 1), LOWEST)
    place = Place()
    for rows in blocks.slices(key):
        psi = blocks.features(key, rows, "key", place)
        before, scale = scale, torch.maximum(scale, psi.log_scale.amax(-2, keepdim=True))
        state.mul_((before - scale).exp())
        state.baddbmm_(blocks.values(value, rows, psi.log_scale - scale).mT, psi.values)
    return state.mT.contiguous(), scale

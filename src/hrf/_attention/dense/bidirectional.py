"""Bidirectional linear attention, streamed: a state S = Σ ψ(y) vᵀ from all keys, then φ(x)ᵀ S for every query.

One log scale a head for the state: the largest of the keys so far, and when it grows, the state is scaled down
(as in online softmax). The scale of a query stays outside: it cancels in the quotient.

The backward pass goes over the queries, then over the keys, with G the gradient of the sums φ(x)ᵀ S:

    ∂φ(x) = S G,   ∂S = Σ φ(x) Gᵀ,   ∂ψ(y) = ∂S v,   ∂v = ∂Sᵀ ψ(y).

The gradient of a log scale is that of its features along themselves, so it needs no product as wide as they
are: ∂ψᵀψ = v · ∂v.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hrf._attention.denominator import Denominator
from hrf._attention.dense.blocks import LOWEST, Blocks, Outputs, Place
from hrf._attention.dense.unscaled_positive import Small
from hrf._attention.inputs import Inputs
from hrf.features.base import FeatureMap, Features, full_precision

__all__ = ["attend"]


def attend(inputs: Inputs, moments: Tensor, feature_map: FeatureMap, rule: Denominator) -> Tensor:
    """Attention of every query to all keys: ``(B, H, L, d_v)``.

    ``moments`` are those of the keys that each row sees.
    """
    learned = [p for p in feature_map.parameters() if p.requires_grad]
    blocks = Blocks.of(inputs, feature_map, rule)
    return _Attend.apply(blocks, moments, inputs.query, inputs.key, inputs.value, *learned)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, blocks: Blocks, moments: Tensor, query: Tensor, key: Tensor, value: Tensor, *learned: Tensor
    ) -> Any:
        small = Small.of(blocks, query, key, value)
        if small and (found := small.bidirectional()):
            outputs, states = found
            if any(ctx.needs_input_grad):
                scale = small.tops()[:, -1:]
                state = small.joined(states, scale)
                outputs = outputs._replace(log_scale=small.query_log_scale())
        else:
            state, scale = _state(blocks, key, value)
            outputs = _outputs(blocks, query, state, scale, moments)
        blocks.rule.count(outputs.low.unflatten(0, query.shape[:2]), moments[..., :1])
        if any(ctx.needs_input_grad):
            ctx.blocks, ctx.learned = blocks, learned
            # The backward pass uses the map again: saved here, a redraw in between is an error.
            ctx.save_for_backward(query, key, value, state, scale, *outputs, *blocks.feature_map.buffers())
        return outputs.values.unflatten(0, query.shape[:2])

    @staticmethod
    @once_differentiable
    @full_precision
    def backward(ctx: Any, grad: Tensor) -> Any:
        blocks: Blocks = ctx.blocks
        query, key, value, state, scale, *rest = ctx.saved_tensors
        divided, grad, place = Outputs(*rest[: len(Outputs._fields)]), grad.flatten(0, 1), Place()
        learned = {p: torch.zeros_like(p) for p in ctx.learned}
        grad_query, grad_key, grad_value = (torch.empty_like(u) for u in (query, key, value))
        grad_state = torch.zeros_like(state.mT, memory_format=torch.contiguous_format)
        for rows in blocks.slices(query):
            phi, pull = blocks.traced(query, rows, "query", place)
            g, along = divided.pull(grad[:, rows], rows, phi.log_scale + scale, blocks.rule)
            grad_query[:, :, rows] = pull(Features(g @ state.mT, along), learned)
            grad_state.baddbmm_(g.mT, phi.values)
        for rows in blocks.slices(key):
            psi, pull = blocks.traced(key, rows, "key", place)
            log_weight = psi.log_scale - scale
            v = blocks.values(value, rows, log_weight)
            grad_v = psi.values @ grad_state.mT
            along = (v * grad_v).sum(-1, keepdim=True)
            grad_key[:, :, rows] = pull(Features(v @ grad_state, along), learned)
            grad_v.mul_(log_weight.exp())
            grad_value[:, :, rows] = grad_v[..., :-1].view(value[:, :, rows].shape)
        return None, None, grad_query, grad_key, grad_value, *learned.values()


def _outputs(blocks: Blocks, query: Tensor, state: Tensor, scale: Tensor, moments: Tensor) -> Outputs:
    """Quotients of all rows, which see the same state."""
    outputs, place = Outputs.empty(state, query.shape[2]), Place()
    for rows in blocks.slices(query):
        x = blocks.vectors(query, rows, "query")
        phi = blocks.features(x, rows, "query", place)
        outputs.fill(blocks, rows, x, Features(phi.values @ state, phi.log_scale + scale), moments)
    return outputs


def _state(blocks: Blocks, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """S at its log scale: ``(N, D, d_v + 1)`` and ``(N, 1, 1)``."""
    n, width = key.shape[0] * key.shape[1], value.shape[-1] + 1
    # Transposed: the matrix product then is a third faster.
    state = torch.zeros(n, width, blocks.feature_map.feature_dim, dtype=blocks.dtype, device=key.device)
    scale = state.new_full((n, 1, 1), LOWEST)
    place = Place()
    for rows in blocks.slices(key):
        psi = blocks.features(blocks.vectors(key, rows, "key"), rows, "key", place)
        before, scale = scale, torch.maximum(scale, psi.log_scale.amax(-2, keepdim=True))
        state.mul_((before - scale).exp())
        state.baddbmm_(blocks.values(value, rows, psi.log_scale - scale).mT, psi.values)
    return state.mT.contiguous(), scale

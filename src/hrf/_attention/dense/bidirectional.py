"""Bidirectional attention with features: a state S = Σ ψ(y) vᵀ from all keys, then φ(x)ᵀ S for every query.

The state has one log scale per head: the largest of the keys so far, and when it grows, the state is scaled down
(as in online softmax). The scale of a query stays outside: it cancels in the quotient.

The backward pass goes over the queries, then over the keys, with G the gradient of the sums φ(x)ᵀ S:

    ∂φ(x) = S G,   ∂S = Σ φ(x) Gᵀ,   ∂ψ(y) = ∂S v,   ∂v = ∂Sᵀ ψ(y).

The gradient of a log scale is that of its features along themselves, so it needs no product as wide as the
features: ∂ψᵀψ = v · ∂v.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hrf._attention.call import Call, Path
from hrf._attention.dense.chunks import LOWEST, Dense
from hrf._attention.dense.unscaled_positive import UnscaledPositive
from hrf._attention.quotients import Outputs
from hrf._attention.rows import prepare
from hrf._attention.visible import of_all
from hrf.numerics import Features

__all__ = ["PATH"]


def _forward(
    call: Call, query: Tensor, key: Tensor, value: Tensor, saved: list[Tensor | None] | None = None
) -> tuple[Tensor, ...]:
    unscaled = UnscaledPositive.of(call, query, key, value)
    if unscaled and (found := unscaled.bidirectional()):
        outputs, states = found
        if saved is not None:
            scale = unscaled.tops()[:, -1:]
            state = unscaled.joined(states, scale)
            outputs = outputs._replace(log_scale=unscaled.query_log_scale())
    else:
        state, scale = _state(Dense(call), key, value)
        outputs = _outputs(Dense(call), query, value, state, scale, traced=saved is not None)
    outputs.count_rows(call, query.shape[:2])
    if saved is not None:
        saved += [query, key, value, state, scale, *outputs]
    return (outputs.values.unflatten(0, query.shape[:2]),)


def _state(blocks: Dense, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return S and its log scale: ``(N, D, d_v + 1)`` and ``(N, 1, 1)``."""
    call, n, width = blocks.call, key.shape[0] * key.shape[1], value.shape[-1] + 1
    # Transposed: the matrix product then is a third faster.
    state = torch.zeros(n, width, call.feature_map.feature_dim, dtype=call.dtype, device=key.device)
    scale = state.new_full((n, 1, 1), LOWEST)
    for rows in blocks.blocks(key):
        psi = blocks.features(blocks.vectors(key, rows, "key"), rows, "key")
        before, scale = scale, torch.maximum(scale, psi.log_scale.amax(-2, keepdim=True))
        state.mul_((before - scale).exp())
        state.baddbmm_(blocks.values(value, rows, psi.log_scale - scale).mT, psi.values)
    return state.mT.contiguous(), scale


def _outputs(
    blocks: Dense, query: Tensor, value: Tensor, state: Tensor, scale: Tensor, *, traced: bool
) -> Outputs:
    """Divide the sums of all rows, which see the same state."""
    call, signed = blocks.call, not blocks.call.feature_map.nonnegative
    visible = of_all(value, call.ignore, call.dtype, signed=signed)
    outputs = Outputs.empty(state, query.shape[2], moved=signed and traced)
    for rows in blocks.blocks(query):
        x = blocks.vectors(query, rows, "query")
        phi = blocks.features(x, rows, "query")
        outputs.fill(call, rows, x, Features(phi.values @ state, phi.log_scale + scale), visible)
    return outputs


def _backward(
    call: Call, saved: Sequence[Tensor], grads: Sequence[Tensor], needed: Sequence[bool]
) -> Sequence[Tensor | None]:
    query, key, value, state, scale, *rest = saved
    divided, grad, blocks = Outputs(*rest), grads[0].flatten(0, 1), Dense(call)
    learned = {p: torch.zeros_like(p) for p in call.learned}
    grad_query, grad_key, grad_value = (torch.empty_like(u) for u in (query, key, value))
    grad_state = torch.zeros_like(state.mT, memory_format=torch.contiguous_format)
    for rows in blocks.blocks(query):
        phi, pull = blocks.traced(query, rows, "query")
        g = divided.pull(grad[:, rows], rows, phi.log_scale + scale, call.rule)
        grad_query[:, :, rows] = pull([g @ state.mT], torch.zeros_like(phi.log_scale), learned)
        grad_state.baddbmm_(g.mT, phi.values)
    for rows in blocks.blocks(key):
        psi, pull = blocks.traced(key, rows, "key")
        log_weight = psi.log_scale - scale
        v = blocks.values(value, rows, log_weight)
        grad_v = psi.values @ grad_state.mT
        along = (v * grad_v).sum(-1, keepdim=True)
        grad_key[:, :, rows] = pull([v @ grad_state], along, learned)
        grad_v.mul_(log_weight.exp())
        grad_value[:, :, rows] = grad_v[..., :-1].view(value[:, :, rows].shape)
    return grad_query, grad_key, grad_value, *learned.values()


PATH = Path(prepare, _forward, _backward)

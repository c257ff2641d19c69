"""The two halves of attention, apart: keys become a state (`write`), and queries read one (`read`).

Between the two a state may meet states of other keys, on other machines for instance. Both halves go block by block
through the features of `Chunks`, so that one code serves every map with features; gradients are computed by hand, as in
``dense/bidirectional.py``, where the formulas stand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hrf._attention.call import Call, Path, runner
from hrf._attention.carry import Carry, values_so_far
from hrf._attention.denominator import Denominator, per_row, total_moments
from hrf._attention.dense.chunks import LOWEST, Chunks, RunningState, joined
from hrf._attention.dispatch import engine_for
from hrf._attention.inputs import Inputs
from hrf._attention.quotients import Outputs
from hrf._attention.visible import of_all
from hrf.features.base import FeatureMap
from hrf.numerics import Features

__all__ = ["read", "write"]

MakeChunks = Callable[[Call], Chunks]


def write(inputs: Inputs, feature_map: FeatureMap) -> Carry:
    """Sum over all keys of ``inputs``; only the state has gradients."""
    call, tensors = _prepare_write(inputs, feature_map)
    state, scale = runner(_path(_prepare_write, _write, _write_backward, feature_map), call, tensors)()
    if inputs.key.shape[2]:
        seen = of_all(inputs.value, inputs.ignore, inputs.dtype, signed=not feature_map.nonnegative)
    else:
        seen = values_so_far(inputs, feature_map, None)
    lead = inputs.key.shape[:2]
    total, low, high = (state.new_empty(*lead, 1, 0) if t is None else t.unflatten(0, lead) for t in seen)
    return Carry(state, scale.detach(), call.moments, total, low, high)


def read(inputs: Inputs, feature_map: FeatureMap, rule: Denominator, carry: Carry) -> Tensor:
    """Return the outputs of all queries of ``inputs``, which see the keys of ``carry``: ``(B, H, L, d_v)``."""
    call, tensors = _prepare_read(inputs, feature_map, rule, carry)
    out, *_ = runner(_path(_prepare_read, _read, _read_backward, feature_map), call, tensors)()
    return out


def _path(
    prepare: Callable[..., Any], forward: Callable[..., Any], backward: Callable[..., Any], phi: FeatureMap
) -> Path:
    make_chunks = engine_for(phi).chunks
    return Path(prepare, partial(forward, make_chunks), partial(backward, make_chunks))


def _prepare_write(inputs: Inputs, feature_map: FeatureMap) -> tuple[Call, tuple[Tensor, ...]]:
    moments = total_moments(inputs, feature_map)
    return Call.of(inputs, moments, feature_map, Denominator()), (inputs.key, inputs.value)


def _prepare_read(
    inputs: Inputs, feature_map: FeatureMap, rule: Denominator, carry: Carry
) -> tuple[Call, tuple[Tensor, ...]]:
    moments, seen = per_row(inputs, carry.moments), values_so_far(inputs, feature_map, carry)
    call = Call.of(inputs, moments, feature_map, rule, visible=seen)
    return call, (inputs.query, carry.state, carry.scale)


def _write(
    make_chunks: MakeChunks, call: Call, key: Tensor, value: Tensor, saved: list[Tensor | None] | None = None
) -> tuple[Tensor, ...]:
    chunks, lead = make_chunks(call), key.shape[:2]
    shape = lead.numel(), call.feature_map.feature_dim, value.shape[-1] + 1
    empty = key.new_zeros(shape, dtype=call.dtype)
    running = RunningState(chunks.split(empty), empty.new_full((len(empty), 1, 1), LOWEST))
    for rows in chunks.blocks(key):
        psi = chunks.features(chunks.vectors(key, rows, "key"), rows, "key")
        top = torch.maximum(running.scale, psi.log_scale.amax(1, keepdim=True))
        running.add(psi, chunks.values(value, rows), top)
    if saved is not None:
        saved += [key, value, running.scale]
    return tuple(t.unflatten(0, lead) for t in (joined(running.states), running.scale.clone()))


def _write_backward(
    make_chunks: MakeChunks,
    call: Call,
    saved: Sequence[Tensor],
    grads: Sequence[Tensor],
    needed: Sequence[bool],
) -> Sequence[Tensor | None]:
    key, value, scale = saved
    chunks, learned = make_chunks(call), {p: torch.zeros_like(p) for p in call.learned}
    states = chunks.split(grads[0].flatten(0, 1))
    grad_key, grad_value = torch.empty_like(key), torch.empty_like(value)
    for rows in chunks.blocks(key):
        psi, pull = chunks.traced(key, rows, "key")
        share, v = (psi.log_scale - scale).exp(), chunks.values(value, rows)
        grad_v = psi.times(states).mul_(share)
        grad_psi = psi.gradient(v * share, states)
        along = (v * grad_v).sum(-1, keepdim=True)
        grad_key[:, :, rows] = pull(grad_psi, along, learned)
        grad_value[:, :, rows] = grad_v[..., :-1].view(value[:, :, rows].shape)
    return grad_key, grad_value, *learned.values()


def _read(
    make_chunks: MakeChunks,
    call: Call,
    query: Tensor,
    state: Tensor,
    scale: Tensor,
    saved: list[Tensor | None] | None = None,
) -> tuple[Tensor, ...]:
    chunks, signed = make_chunks(call), not call.feature_map.nonnegative
    states, flat_scale = chunks.split(state.flatten(0, 1)), scale.flatten(0, 1)
    outputs = Outputs.empty(states[0], query.shape[2], moved=signed and saved is not None)
    for rows in chunks.blocks(query):
        x = chunks.vectors(query, rows, "query")
        phi = chunks.features(x, rows, "query")
        sums = Features(phi.times(states), phi.log_scale + flat_scale)
        outputs.fill(call, rows, x, sums, call.visible)
    outputs.count_rows(call, query.shape[:2])
    if saved is not None:
        saved += [query, state, scale, *outputs]
    return (outputs.values.unflatten(0, query.shape[:2]),)


def _read_backward(
    make_chunks: MakeChunks,
    call: Call,
    saved: Sequence[Tensor],
    grads: Sequence[Tensor],
    needed: Sequence[bool],
) -> Sequence[Tensor | None]:
    query, state, scale, *rest = saved
    divided, grad, scale = Outputs(*rest), grads[0].flatten(0, 1), scale.flatten(0, 1)
    chunks, learned = make_chunks(call), {p: torch.zeros_like(p) for p in call.learned}
    states, grad_query = chunks.split(state.flatten(0, 1)), torch.empty_like(query)
    grad_states = chunks.split(torch.zeros_like(state.flatten(0, 1)))
    for rows in chunks.blocks(query):
        phi, pull = chunks.traced(query, rows, "query")
        g = divided.pull(grad[:, rows], rows, phi.log_scale + scale, call.rule)
        grad_query[:, :, rows] = pull(phi.gradient(g, states), torch.zeros_like(phi.log_scale), learned)
        phi.add_to(grad_states, g)
    return grad_query, joined(grad_states).view(state.shape), None, *learned.values()

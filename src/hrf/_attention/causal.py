"""Causal attention in chunks: a matrix of estimates within a chunk, a state between chunks.

With sⱼ the log scale of key j, cᵢ = max_{j≤i} sⱼ (so that a later key changes nothing, not even a scale), S the
state from earlier chunks and c its scale, a row of sums at the scale cᵢ is

    Oᵢ = Σ_{j≤i} Wᵢⱼ φ(xᵢ)ᵀψ(yⱼ) vⱼ + exp(c − cᵢ) φ(xᵢ)ᵀ S,   Wᵢⱼ = exp(sⱼ − cᵢ) ≤ 1.

Sums over exact pairs of clusters are computed before (``clusters.py``), on a scale of their own, and added to
Oᵢ. The backward pass goes forward in time for the queries, which need S, recomputed chunk by chunk, and backward for
the keys and values, which need ∂S: no state is kept.

Decoding one token from a state, for any map with features: the same sums without chunks.

All rows see all keys, so there are no estimates of single pairs: the key is added to the state before the queries are
multiplied. The time of a step is mostly the number of operations, which is about half of that of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from hrf import tuning
from hrf._attention.call import Call, Outputs, Path
from hrf._attention.compiled_maps import Attended
from hrf._attention.denominator import Running, bounded, log_bound
from hrf._attention.dense import Chunks, Dense, RunningState, joined
from hrf._attention.map_kernels import accelerated, kernels_for
from hrf.numerics import Features, common_scale

__all__ = ["in_chunks", "one_token"]


def one_token(
    call: Call, query: Tensor, key: Tensor, value: Tensor, state: Tensor, scale: Tensor
) -> tuple[Tensor, ...]:
    """Return what the causal path returns, for a single position and no gradients."""
    chunks, phi, lead, all_rows = Dense(call), call.feature_map, query.shape[:2], slice(None)
    x = chunks.vectors(query, all_rows, "query")
    features = phi.scaled(x, "query")
    keys = phi.scaled(chunks.vectors(key, all_rows, "key"), "key")
    log_scale = chunks.masked(keys.log_scale, all_rows, "key")
    v, before = chunks.values(value, all_rows), scale.flatten(0, 1)
    top = torch.maximum(before, log_scale)
    new = state.flatten(0, 1) * (before - top).exp()
    new.addcmul_(keys.values.flatten(0, 1).mT, v * (log_scale - top).exp())  # thrice as fast as a product
    sums = features.values.flatten(0, 1) @ new
    running, groups = Running(call.visible), query.shape[2]
    visible = running.chunk(v, groups)
    bound = log_bound(phi, x, call.moments)
    bound = None if bound is None else bound.flatten(0, 1)
    used, small = call.rule.settle(sums[..., -1:], features.log_scale.flatten(0, 1) + top, bound)
    out, moved = sums[..., :-1] / used, None
    if call.rule.replaces:
        out, moved = bounded(out, small, visible)
    clipped = None if moved is None else moved.any(-1, keepdim=True)
    call.rule.count(small.unflatten(0, lead), call.moments[..., :1], clipped)
    seen = (new.new_empty(len(new), 1, 0) if t is None else t for t in running.last)
    return tuple(t.unflatten(0, lead) for t in (out, new, top, *seen))


def in_chunks(
    prepare: Callable[..., tuple[Call, tuple[Tensor | None, ...]]], chunks: Callable[[Call], Chunks]
) -> Path:
    """Return the path of causal attention for maps whose features ``chunks`` computes.

    Its tensors are query, key, value, the state and its scale, and the sums over exact pairs and their scale or
    ``None`` twice; its outputs are those of all rows, the new state and its scale, and the values seen (`Visible`).
    """
    return Path(prepare, partial(_forward, chunks), partial(_backward, chunks))


class _Chunk(NamedTuple):
    """Positions of a chunk, the rows of their queries, and how many rows each position has."""

    keys: slice
    rows: slice
    groups: int

    def tops(self, tops: Tensor) -> Tensor:
        """Return the scales of all positions, ``(N, S, 1)``, for the rows of the chunk."""
        own = tops[:, self.keys]
        return own if self.groups == 1 else own.repeat_interleave(self.groups, 1)

    def weights(self, log_scale: Tensor, row_tops: Tensor) -> Tensor:
        """Return W: ``(N, rows, keys)``."""
        position = torch.arange(log_scale.shape[1], device=log_scale.device)
        later = position > position.repeat_interleave(self.groups)[:, None]
        return (log_scale.mT - row_tops).masked_fill_(later, -torch.inf).exp_()


def _cut(query: Tensor, key: Tensor, chunks: Chunks) -> Iterator[_Chunk]:
    length, size = key.shape[2], chunks.multiple * tuning.CAUSAL_CHUNK
    groups = query.shape[2] // max(1, length)
    for start in range(0, length, size):
        stop = min(start + size, length)
        yield _Chunk(slice(start, stop), slice(start * groups, stop * groups), groups)


def _forward(
    make_chunks: Callable[[Call], Chunks],
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    scale: Tensor,
    exact: Tensor | None,
    exact_scale: Tensor | None,
    saved: list[Tensor | None] | None = None,
) -> tuple[Tensor, ...]:
    lead = query.shape[:2]
    is_dense, sums, traced = make_chunks is Dense and exact is None, _rows(state, scale), saved is not None
    if is_dense and call.resumed and key.shape[2] == 1 and not traced:
        stepped = accelerated(call, query, key, value)
        if stepped is None:
            return one_token(call, query, key, value, state, scale)
        done: Attended | None = stepped.step(*sums)
    else:
        kernels = kernels_for(call, query, key, value) if is_dense else None
        done = kernels.causal(*sums, traced=traced) if kernels else None
    if done:
        outputs, last, last_scale, tops, visible = done
    else:
        chunks = make_chunks(call)
        running = RunningState(chunks.split(state.flatten(0, 1)), scale.flatten(0, 1))
        signed, seen = not call.feature_map.nonnegative, Running(call.visible)
        outputs = Outputs.empty(running.states[0], query.shape[2], moved=signed and saved is not None)
        tops = running.scale.new_empty(len(running.scale), key.shape[2], 1)
        for chunk in _cut(query, key, chunks):
            x = chunks.vectors(query, chunk.rows, "query")
            phi = chunks.features(x, chunk.rows, "query")
            psi = chunks.features(chunks.vectors(key, chunk.keys, "key"), chunk.keys, "key")
            v = chunks.values(value, chunk.keys)
            tops[:, chunk.keys] = torch.maximum(running.scale, psi.log_scale.cummax(1).values)
            top = chunk.tops(tops)
            scores = phi.scores(psi).mul_(chunk.weights(psi.log_scale, top))
            values = phi.times(running.states).mul_((running.scale - top).exp()).baddbmm_(scores, v)
            sums = Features(values, phi.log_scale + top)
            if exact is not None and exact_scale is not None:
                sums = _plus(sums, Features(exact[:, chunk.rows], exact_scale[:, chunk.rows]))
            outputs.fill(call, chunk.rows, x, sums, seen.chunk(v, chunk.groups))
            running.add(psi, v, top[:, -1:])
        last, last_scale, visible = joined(running.states), running.scale.clone(), seen.last
    outputs.count_rows(call, lead)
    if saved is not None:
        saved += [query, key, value, state, scale, exact_scale, tops, *outputs]
    total, low, high = (last.new_empty(len(last), 1, 0) if t is None else t for t in visible)
    return tuple(t.unflatten(0, lead) for t in (outputs.values, last, last_scale, total, low, high))


def _rows(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.flatten(0, 1) for t in tensors)


def _plus(sums: Features, others: Features) -> Features:
    (values, more), log_scale = common_scale([sums, others])
    return Features(values.add_(more), log_scale)


def _backward(
    make_chunks: Callable[[Call], Chunks],
    call: Call,
    saved: Sequence[Tensor],
    grads: Sequence[Tensor],
    needed: Sequence[bool],
) -> Sequence[Tensor | None]:
    query, key, value, state, scale, exact_scale, tops, *rest = saved
    if make_chunks is Dense and exact_scale is None and (found := _compiled_backward(call, saved, grads)):
        return found
    chunks, learned = make_chunks(call), {p: torch.zeros_like(p) for p in call.learned}
    running = RunningState(chunks.split(state.flatten(0, 1)), scale.flatten(0, 1))
    gradients = _Gradients(
        call, chunks, query, key, value, tops, Outputs(*rest), grads[0].flatten(0, 1), learned
    )
    grad_query, grad_exact, before = gradients.over_queries(running, exact_scale)
    states = chunks.split(grads[1].flatten(0, 1))
    grad_key, grad_value = gradients.over_keys(states, before)
    grad_state = joined(states).view(state.shape)
    return grad_query, grad_key, grad_value, grad_state, None, grad_exact, None, *learned.values()


def _compiled_backward(
    call: Call, saved: Sequence[Tensor], grads: Sequence[Tensor]
) -> tuple[Tensor | None, ...] | None:
    query, key, value, state, scale, _, tops, *rest = saved
    kernels = kernels_for(call, query, key, value)
    if kernels is None:
        return None
    sums = state.flatten(0, 1), scale.flatten(0, 1), tops, Outputs(*rest)
    found = kernels.causal_backward(*sums, (grads[0].flatten(0, 1), grads[1].flatten(0, 1)))
    if found is None:
        return None
    pairs = zip(found, (query, key, value, state), strict=True)
    return *(g.view(u.shape).to(u.dtype) for g, u in pairs), None, None, None


@dataclass
class _Gradients:
    """The two halves of the backward pass.

    Attributes:
        tops: the scales cᵢ, ``(N, S, 1)``.
        divided: the outputs of the forward pass.
        grad: gradient of the outputs, ``(N, L, d_v)``.
        learned: gradients of the map's tensors, which are added to.
    """

    call: Call
    chunks: Chunks
    query: Tensor
    key: Tensor
    value: Tensor
    tops: Tensor
    divided: Outputs
    grad: Tensor
    learned: dict[Tensor, Tensor]

    def over_queries(
        self, running: RunningState, exact_scale: Tensor | None
    ) -> tuple[Tensor, Tensor | None, dict[int, Tensor]]:
        """Go forward in time: gradients of queries and exact sums, and the scale that each chunk starts from."""
        chunks, divided, rule = self.chunks, self.divided, self.call.rule
        grad_query, before = torch.empty_like(self.query), {}
        width = running.states[0].shape[-1]
        grad_exact = None if exact_scale is None else self.grad.new_empty(*self.grad.shape[:2], width)
        for chunk in _cut(self.query, self.key, chunks):
            before[chunk.keys.start] = running.scale
            phi, pull = chunks.traced(self.query, chunk.rows, "query")
            psi = chunks.features(chunks.vectors(self.key, chunk.keys, "key"), chunk.keys, "key")
            v, top, grad = (
                chunks.values(self.value, chunk.keys),
                chunk.tops(self.tops),
                self.grad[:, chunk.rows],
            )
            g = divided.pull(grad, chunk.rows, phi.log_scale + top, rule)
            grad_scores = (g @ v.mT).mul_(chunk.weights(psi.log_scale, top))
            decay = (running.scale - top).exp()
            grad_phi = phi.gradient(g * decay, running.states, grad_scores, psi)
            if grad_exact is not None and exact_scale is not None:
                at = exact_scale[:, chunk.rows]
                grad_exact[:, chunk.rows] = divided.pull(grad, chunk.rows, at, rule)
            grad_query[:, :, chunk.rows] = pull(grad_phi, torch.zeros_like(phi.log_scale), self.learned)
            running.add(psi, v, top[:, -1:])
        return grad_query, grad_exact, before

    def over_keys(self, states: list[Tensor], before: dict[int, Tensor]) -> tuple[Tensor, Tensor]:
        """Go backward in time: gradients of keys and values; ``states``, the gradient of the state, is written to."""
        chunks, rule = self.chunks, self.call.rule
        grad_key, grad_value = torch.empty_like(self.key), torch.empty_like(self.value)
        for chunk in reversed(list(_cut(self.query, self.key, chunks))):
            phi = chunks.features(chunks.vectors(self.query, chunk.rows, "query"), chunk.rows, "query")
            psi, pull = chunks.traced(self.key, chunk.keys, "key")
            v, top = chunks.values(self.value, chunk.keys), chunk.tops(self.tops)
            start = before[chunk.keys.start]
            g = self.divided.pull(self.grad[:, chunk.rows], chunk.rows, phi.log_scale + top, rule)
            weights = chunk.weights(psi.log_scale, top)
            scores = phi.scores(psi).mul_(weights)
            share = (psi.log_scale - top[:, -1:]).exp()  # of a key in the state after the chunk
            grad_v = psi.times(states).mul_(share).baddbmm_(scores.mT, g)
            grad_psi = psi.gradient(v * share, states, weights.mul_(g @ v.mT).mT, phi)
            along = (v * grad_v).sum(-1, keepdim=True)
            grad_key[:, :, chunk.keys] = pull(grad_psi, along, self.learned)
            grad_value[:, :, chunk.keys] = grad_v[..., :-1].view(self.value[:, :, chunk.keys].shape)
            for part in states:
                part.mul_((start - top[:, -1:]).exp())
            phi.add_to(states, g * (start - top).exp())
        return grad_key, grad_value

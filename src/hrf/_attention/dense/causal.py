"""Causal linear attention in chunks: a matrix of estimates within a chunk, a state between chunks.

With sⱼ the log scale of key j, cᵢ = max_{j≤i} sⱼ (so that a later key changes nothing, not even a scale), S the
state from earlier chunks and c its scale, a row of sums at the scale cᵢ is

    Oᵢ = Σ_{j≤i} Wᵢⱼ φ(xᵢ)ᵀψ(yⱼ) vⱼ + exp(c − cᵢ) φ(xᵢ)ᵀ S,   Wᵢⱼ = exp(sⱼ − cᵢ) ≤ 1.

Sums over pairs that are exact are made before (``clusters/causal.py``), on a scale of their own, and added to Oᵢ.

The backward pass goes forward in time for the queries, which need S, made again chunk by chunk, and backward
for the keys and values, which need ∂S: no state is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hrf._attention.clustered import causal as clusters
from hrf._attention.clustered.causal import Past
from hrf._attention.clustered.chunks import Clustered, of_residuals
from hrf._attention.denominator import Denominator
from hrf._attention.dense.blocks import LOWEST, Blocks, Outputs
from hrf._attention.dense.chunks import Chunks, Dense, Products, joined
from hrf._attention.dense.unscaled_positive import Small
from hrf._attention.inputs import Inputs
from hrf.features.base import FeatureMap, Features, common_scale, full_precision
from hrf.features.clustered import ClusteredHybrid

__all__ = ["Carry", "attend", "fixed"]

_CHUNK = 128


class Carry(NamedTuple):
    """Σ ψ(y) vᵀ over all keys so far, with a column for the denominators, at a log scale.

    Attributes:
        state: ``(B, H, D, d_v + 1)``, or B and H in one axis.
        scale: ``(B, H, 1, 1)``, likewise.
        past: the keys themselves, if some pairs are exact.
    """

    state: Tensor
    scale: Tensor
    past: Past | None = None

    @classmethod
    def empty(cls, inputs: Inputs, feature_map: FeatureMap) -> Carry:
        """That of no keys."""
        key, width = inputs.key, inputs.value.shape[-1] + 1
        state = key.new_zeros(*key.shape[:2], feature_map.feature_dim, width, dtype=inputs.dtype)
        return cls(state, state.new_full((*key.shape[:2], 1, 1), LOWEST))

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Carry:
        """What `tensors` returned."""
        past = Past(*(tensors[name] for name in Past._fields)) if "key" in tensors else None
        return cls(tensors["state"], tensors["scale"], past)

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name."""
        past = {} if self.past is None else self.past._asdict()
        return {"state": self.state, "scale": self.scale, **past}


def attend(
    inputs: Inputs, moments: Tensor, feature_map: FeatureMap, rule: Denominator, carry: Carry | None = None
) -> tuple[Tensor, Carry]:
    """Attention of every query to the keys up to it, ``(B, H, L, d_v)``, and what to carry on.

    ``moments`` are those of the keys that each row sees, the ones in ``carry`` included.
    """
    past = known = None
    if (whole := clusters.partly_exact(feature_map)) is not None:
        past = Past.of(inputs, whole, None if carry is None else carry.past)
        known, feature_map = clusters.sums(inputs, past, whole), clusters.Estimated(whole)
    blocks = Blocks.of(inputs, feature_map, rule)
    fresh = carry is None
    carry = carry or Carry.empty(inputs, feature_map)
    state, scale = (tensor.to(inputs.dtype).flatten(0, 1) for tensor in (carry.state, carry.scale))
    learned = [p for p in feature_map.parameters() if p.requires_grad]
    tensors = inputs.query, inputs.key, inputs.value, state, scale, *(known or (None, None))
    out, state, scale = _Attend.apply(blocks, moments, fresh, *tensors, *learned)
    lead = carry.state.shape[:2]
    return out, Carry(state.unflatten(0, lead), scale.unflatten(0, lead), past)


def fixed(feature_map: FeatureMap) -> FeatureMap:
    """The map itself, or with centres that stay where they were fitted: those of moving ones see later keys."""
    if feature_map.factorised:
        return feature_map
    if isinstance(feature_map, ClusteredHybrid):
        still = copy.copy(feature_map)
        still.recenter = False
        return still
    raise NotImplementedError(
        f"causal attention needs features, and {type(feature_map).__name__} is made of maps without: a "
        "ClusteredHybrid with exact pairs or moving centres; use that itself, or fit it without"
    )


class _Chunk(NamedTuple):
    """Positions of a chunk, the rows of their queries, and the scales of these rows."""

    keys: slice
    rows: slice
    groups: int

    def tops(self, tops: Tensor) -> Tensor:
        """Scales of all positions, ``(N, S, 1)``, for the rows of the chunk."""
        own = tops[:, self.keys]
        return own if self.groups == 1 else own.repeat_interleave(self.groups, 1)

    def weights(self, log_scale: Tensor, row_tops: Tensor) -> Tensor:
        """W: ``(N, rows, keys)``."""
        position = torch.arange(log_scale.shape[1], device=log_scale.device)
        later = position > position.repeat_interleave(self.groups)[:, None]
        return (log_scale.mT - row_tops).masked_fill_(later, -torch.inf).exp_()


def _cut(query: Tensor, key: Tensor, size: int) -> Iterator[_Chunk]:
    length, size = key.shape[2], size * _CHUNK
    groups = query.shape[2] // max(1, length)
    for start in range(0, length, size):
        stop = min(start + size, length)
        yield _Chunk(slice(start, stop), slice(start * groups, stop * groups), groups)


@dataclass
class _Running:
    """A `Carry` in parts, of one's own."""

    states: list[Tensor]
    scale: Tensor

    def add(self, psi: Products, v: Tensor, top: Tensor) -> None:
        """Add the keys of a chunk, at the scale ``top (N, 1, 1)``."""
        for state in self.states:
            state.mul_((self.scale - top).exp())
        psi.add_to(self.states, v * (psi.log_scale - top).exp())
        self.scale = top


def _chunks(blocks: Blocks) -> Chunks:
    clustered = of_residuals(blocks.feature_map)
    return Dense(blocks) if clustered is None else Clustered(blocks, clustered)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        blocks: Blocks,
        moments: Tensor,
        fresh: bool,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: Tensor,
        scale: Tensor,
        known: Tensor | None,
        known_scale: Tensor | None,
        *learned: Tensor,
    ) -> Any:
        small = Small.of(blocks, query, key, value) if fresh else None
        if small and (found := small.causal(_CHUNK)):
            outputs, states = found
            tops = small.tops()
            carry = Carry(small.joined(states, tops[:, -1:]), tops[:, -1:])
            if any(ctx.needs_input_grad):
                outputs = outputs._replace(log_scale=small.query_log_scale())
        else:
            exact = None if known is None or known_scale is None else Features(known, known_scale)
            outputs, carry, tops = _outputs(blocks, query, key, value, Carry(state, scale), moments, exact)
        blocks.rule.count(outputs.low.unflatten(0, query.shape[:2]), moments[..., :1])
        ctx.blocks, ctx.learned = blocks, learned
        # The backward pass uses the map again: saved here, a redraw in between is an error.
        saved = query, key, value, state, scale, known_scale, tops, *outputs
        ctx.save_for_backward(*saved, *blocks.feature_map.buffers())
        last = carry.scale.clone()
        ctx.mark_non_differentiable(last)
        return outputs.values.unflatten(0, query.shape[:2]), carry.state, last

    @staticmethod
    @once_differentiable
    @full_precision
    def backward(ctx: Any, grad: Tensor, grad_state: Tensor, _: Tensor) -> Any:
        blocks: Blocks = ctx.blocks
        query, key, value, state, scale, known_scale, tops, *rest = ctx.saved_tensors
        divided, grad = Outputs(*rest[: len(Outputs._fields)]), grad.flatten(0, 1)
        grad_known = None if known_scale is None else state.new_empty(*grad.shape[:2], state.shape[-1])
        learned = {p: torch.zeros_like(p) for p in ctx.learned}
        grad_query, grad_key, grad_value = (torch.empty_like(u) for u in (query, key, value))
        before = {}  # the scale of the state that each chunk starts from
        chunks = _chunks(blocks)
        running = _Running(chunks.split(state), scale)
        for chunk in _cut(query, key, chunks.size):
            before[chunk.keys.start] = running.scale
            phi, pull = chunks.traced(query, chunk.rows, "query")
            psi = chunks.features(blocks.vectors(key, chunk.keys, "key"), chunk.keys, "key")
            v, top = blocks.values(value, chunk.keys), chunk.tops(tops)
            g, along = divided.pull(grad[:, chunk.rows], chunk.rows, phi.log_scale + top, blocks.rule)
            grad_scores = (g @ v.mT).mul_(chunk.weights(psi.log_scale, top))
            decay = (running.scale - top).exp()
            grad_phi = phi.gradient(g * decay, running.states, grad_scores, psi)
            if grad_known is not None:
                at = known_scale[:, chunk.rows]
                grad_known[:, chunk.rows], _ = divided.pull(grad[:, chunk.rows], chunk.rows, at, blocks.rule)
            grad_query[:, :, chunk.rows] = pull(grad_phi, along, learned)
            running.add(psi, v, top[:, -1:])
        states = chunks.split(grad_state)
        for chunk in reversed(list(_cut(query, key, chunks.size))):
            phi = chunks.features(blocks.vectors(query, chunk.rows, "query"), chunk.rows, "query")
            psi, pull = chunks.traced(key, chunk.keys, "key")
            v, top, start = blocks.values(value, chunk.keys), chunk.tops(tops), before[chunk.keys.start]
            g, _ = divided.pull(grad[:, chunk.rows], chunk.rows, phi.log_scale + top, blocks.rule)
            weights = chunk.weights(psi.log_scale, top)
            scores = phi.scores(psi).mul_(weights)
            share = (psi.log_scale - top[:, -1:]).exp()  # of a key in the state after the chunk
            grad_v = psi.times(states).mul_(share).baddbmm_(scores.mT, g)
            grad_psi = psi.gradient(v * share, states, weights.mul_(g @ v.mT).mT, phi)
            along = (v * grad_v).sum(-1, keepdim=True)
            grad_key[:, :, chunk.keys] = pull(grad_psi, along, learned)
            grad_value[:, :, chunk.keys] = grad_v[..., :-1].view(value[:, :, chunk.keys].shape)
            for part in states:
                part.mul_((start - top[:, -1:]).exp())
            phi.add_to(states, g * (start - top).exp())
        grad_state = joined(states)
        grads = grad_query, grad_key, grad_value, grad_state, None, grad_known, None
        return None, None, None, *grads, *learned.values()


def _outputs(
    blocks: Blocks,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    carry: Carry,
    moments: Tensor,
    known: Features | None,
) -> tuple[Outputs, Carry, Tensor]:
    """Quotients of all rows, what to carry on, and the scales cᵢ."""
    chunks = _chunks(blocks)
    running = _Running(chunks.split(carry.state), carry.scale)
    outputs = Outputs.empty(carry.state, query.shape[2])
    tops = carry.state.new_empty(len(carry.state), key.shape[2], 1)
    for chunk in _cut(query, key, chunks.size):
        x = blocks.vectors(query, chunk.rows, "query")
        phi = chunks.features(x, chunk.rows, "query")
        psi = chunks.features(blocks.vectors(key, chunk.keys, "key"), chunk.keys, "key")
        v = blocks.values(value, chunk.keys)
        tops[:, chunk.keys] = torch.maximum(running.scale, psi.log_scale.cummax(1).values)
        top = chunk.tops(tops)
        scores = phi.scores(psi).mul_(chunk.weights(psi.log_scale, top))
        values = phi.times(running.states).mul_((running.scale - top).exp()).baddbmm_(scores, v)
        sums = Features(values, phi.log_scale + top)
        if known is not None:
            sums = _both(sums, Features(*(tensor[:, chunk.rows] for tensor in known)))
        outputs.fill(blocks, chunk.rows, x, sums, moments)
        running.add(psi, v, top[:, -1:])
    return outputs, Carry(joined(running.states), running.scale), tops


def _both(sums: Features, others: Features) -> Features:
    (values, more), log_scale = common_scale([sums, others])
    return Features(values.add_(more), log_scale)

"""States of attention: for keys and queries that meet elsewhere, and for decoding.

The two halves of attention, apart: keys become a state (`write`), and queries read one (`read`).

Between the two a state may meet states of other keys, on other machines for instance. Both halves go block by block
through the features of `Chunks`, so that one code serves every map with features; gradients are computed by hand, as in
``dense.py``, where the formulas stand.

Decoding: causal attention token by token, from a state whose size does not grow (except with exact pairs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from hrf._attention.call import Call, Outputs, Path, runner
from hrf._attention.carry import Carry, CompiledSteps, Past, values_so_far
from hrf._attention.denominator import Denominator, Rule, of_all, per_row, total_moments
from hrf._attention.dense import LOWEST, Chunks, RunningState, joined
from hrf._attention.dispatch import engine_for
from hrf._attention.inputs import Inputs, check, padding
from hrf._attention.operator import uncompiled
from hrf.features.base import FeatureMap
from hrf.features.clustered import ClusteredHybrid
from hrf.numerics import Features, full_precision

__all__ = ["AttentionState", "read", "write"]


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


class AttentionState:
    """The state of causal attention after some tokens: sums of features times values, at a scale, per head.

    It also holds what denominators and outputs are compared with: means of keys, and sum and range of the values
    (``carry.py`` has names and shapes).

    Tokens may come in pieces of any length; the outputs equal those of the whole sequence. Gradients flow
    through the state until it is detached.

    The size of the state does not depend on the number of tokens, with one exception: exact pairs of clusters
    (`ClusteredHybrid`) need the keys and values themselves, so that with them it grows with every token.

    Args:
        feature_map: as in `hrf.attention`.
        scale: as in `hrf.attention`.
        denominator: as in `hrf.attention`.

    >>> import torch, hrf
    >>> phi = hrf.Positive(4, n_projections=8)
    >>> q, k, v = torch.randn(3, 1, 2, 10, 4)  # a batch of 1, 2 heads, 10 tokens
    >>> state = hrf.AttentionState(phi)
    >>> prompt = state.prefill(q[..., :9, :], k[..., :9, :], v[..., :9, :])
    >>> last = state.step(q[..., 9, :], k[..., 9, :], v[..., 9, :])
    >>> whole = hrf.attention(q, k, v, phi, is_causal=True)
    >>> bool(torch.allclose(whole[..., 9, :], last, atol=1e-5))
    True
    """

    def __init__(
        self,
        feature_map: FeatureMap,
        *,
        scale: float | None = None,
        denominator: Rule | Denominator = "clamp",
    ) -> None:
        self.feature_map, self._path = feature_map, engine_for(feature_map).causal
        self.scale, self.denominator = scale, Denominator.of(denominator)
        self._tensors: dict[str, Tensor] = {}
        # Steps hold the state in place of the tensors, if there are any.
        self._steps: CompiledSteps | None = None

    def prefill(
        self, query: Tensor, key: Tensor, value: Tensor, *, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """Attend from the next L tokens to all so far: ``(..., H, L, d)`` and so on, as in `hrf.attention`."""
        tokens = query, key, value
        if self._steps is not None and self._steps.fits(tokens):
            ignore = None if key_padding_mask is None else padding(key_padding_mask, (*query.shape[:-3], 1))
            out = self._steps.step(tokens, ignore, self.denominator)
            if out is not None:
                return out
        return self._prefill(query, key, value, key_padding_mask)

    @uncompiled
    @full_precision
    def _prefill(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        inputs = check(
            query,
            key,
            value,
            self.feature_map,
            paired=True,
            key_padding_mask=key_padding_mask,
            scale=self.scale,
        )
        rows, carry = inputs.for_map(self.feature_map), None
        if kept := self.tensors():
            _check_size(rows.value, kept["state"])
            carry = Carry.of(kept)
        call, tensors = self._path.prepare(rows, self.feature_map, self.denominator, carry)
        out, state, log_scale, total, low, high = runner(self._path, call, tensors)()
        if key.shape[-2]:
            moments = call.moments[:, :, -1:].clone()
            self._keep(Carry(state, log_scale, moments, total, low, high, call.past), inputs)
        return inputs.restored(out)

    def _keep(self, carry: Carry, inputs: Inputs) -> None:
        """Keep a state; after a single token, in the form for compiled steps, if they serve."""
        self._tensors, self._steps = carry.tensors(), None
        if inputs.key.shape[2] == 1 and self.denominator.rule == "clamp":
            self._steps = CompiledSteps.of(self.feature_map, inputs, carry)
            self._tensors = self._tensors if self._steps is None else {}

    def step(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend from the next token to all so far: `prefill` without the axis of length."""
        return self.prefill(query.unsqueeze(-2), key.unsqueeze(-2), value.unsqueeze(-2)).squeeze(-2)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state as tensors, to be saved and given to `load`; empty before the first token."""
        return dict(self._tensors) if self._steps is None else self._steps.carry().tensors()

    def load(self, tensors: Mapping[str, Tensor]) -> Self:
        """Continue from what `tensors` returned."""
        expected = list(Carry._fields[:-1])
        if isinstance(self.feature_map, ClusteredHybrid) and self.feature_map.exact is not None:
            expected += Past._fields
        if set(tensors) not in (set(), set(expected)):
            names = f"{', '.join(expected[:-1])} and {expected[-1]}"
            raise ValueError(f"the tensors are {sorted(tensors)}; expected {names}, or none")
        self._tensors, self._steps = dict(tensors), None
        return self

    def to(self, *args: Any, **kwargs: Any) -> AttentionState:
        """Move the state to another device or dtype; the map stays where it is."""

        def move(tensor: Tensor) -> Tensor:
            moved = tensor.to(*args, **kwargs)
            return moved if tensor.is_floating_point() else tensor.to(moved.device)

        return self._mapped(move)

    def detach(self) -> AttentionState:
        """Return the state without its history for autograd."""
        return self._mapped(torch.Tensor.detach)

    def reorder(self, index: Tensor) -> AttentionState:
        """Return the states of the batch elements ``index``, in that order and as often: for beam search."""
        if self._steps is None:
            return self._mapped(lambda tensor: tensor.index_select(0, index))
        other = AttentionState(self.feature_map, scale=self.scale, denominator=self.denominator)
        other._steps = self._steps.reordered(index)
        return other

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> AttentionState:
        other = AttentionState(self.feature_map, scale=self.scale, denominator=self.denominator)
        return other.load({name: function(tensor) for name, tensor in self.tensors().items()})


def _check_size(value: Tensor, state: Tensor) -> None:
    received, kept = (*value.shape[:2], value.shape[-1]), (*state.shape[:2], state.shape[-1] - 1)
    if received != kept:
        raise ValueError(
            f"the tokens have batch, heads and value width {received}, the state has {kept}; expected the same"
        )

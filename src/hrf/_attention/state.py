"""Decoding: causal attention token by token, from a state whose size does not grow (except with exact pairs)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from hrf._attention.call import runner
from hrf._attention.carry import Carry, Past
from hrf._attention.denominator import Denominator, Rule
from hrf._attention.dense.compiled_steps import CompiledSteps
from hrf._attention.dispatch import engine_for
from hrf._attention.inputs import Inputs, check
from hrf._attention.masks import padding
from hrf._attention.operator import uncompiled
from hrf.features.base import FeatureMap
from hrf.features.clustered import ClusteredHybrid
from hrf.numerics import full_precision

__all__ = ["AttentionState"]


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

"""Attention by the compiled core, for maps whose features are functions of affine exponents.

These are real exponential maps with any matrix and shifts, trigonometric ones, FAVOR++ and FAVOR#. The twins are in
``dense.py`` and ``causal.py``; they also serve where tensors of the map want gradients. The core
(``_core/map_attention.h``) returns quotients, denominators and scales; the rule for small denominators is applied here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import Self

from hrf import _core as core
from hrf._attention.call import Call, Outputs, with_ones
from hrf._attention.denominator import Visible, VisibleChunk, of_all
from hrf.features.affine_exponents import Affine

__all__ = ["KINDS", "Attended", "CompiledMaps"]

_OUT_OF_RANGE = 2  # what the passes of the core return
KINDS = "pairs", "single", "turns"


class Attended(NamedTuple):
    """Results of a causal forward pass.

    Attributes:
        outputs: of all rows.
        state: after all keys, ``(N, D, d_v + 1)``.
        scale: its log scale, ``(N, 1, 1)``.
        tops: the scales cᵢ, ``(N, S, 1)``.
        visible: values of all keys so far.
    """

    outputs: Outputs
    state: Tensor
    scale: Tensor
    tops: Tensor
    visible: Visible


class _Sums(NamedTuple):
    """What the passes of the core read and write beside tokens and their gradients, in its order."""

    state: Tensor
    scale: Tensor
    out: Tensor | None = None
    used: Tensor | None = None
    tops: Tensor | None = None
    logs: Tensor | None = None


@dataclass(frozen=True)
class CompiledMaps:
    """A call that the core serves.

    Attributes:
        call: the call.
        tokens: query, key and value in the dtype of the computation, ``(B, H, ·, ·)``.
        weights: matrix ``(H or 1, d, ·)``, the same transposed and padded, and offset, for queries and for keys.
        n_projections: m.
        square: factor of −‖x‖²/2 in the log scale.
        kind: number of the kind of exponents.
    """

    call: Call
    tokens: tuple[Tensor, Tensor, Tensor]
    weights: tuple[tuple[Tensor, Tensor, Tensor], ...]
    n_projections: int
    square: float
    kind: int

    @classmethod
    def of(cls, call: Call, query: Tensor, key: Tensor, value: Tensor) -> Self | None:
        """Prepare ``(B, H, ·, ·)``; ``None`` if the core does not serve the map or these tensors."""
        tokens = tuple(u.detach().to(call.dtype) for u in (query, key, value))
        if call.learned or not key.numel() or not core.serves(*tokens):
            return None
        affine = call.feature_map.affine()
        if affine is None:
            return None
        sides = tuple(_weights(side, call) for side in (affine.query, affine.key))
        sign = -1 if affine.kind == "turns" else 1
        q, k, v = tokens
        kind = KINDS.index(affine.kind)
        return cls(call, (q, k, v), sides, affine.n_projections, sign * call.root**2, kind)

    def bidirectional(self, *, traced: bool) -> tuple[Outputs, Tensor, Tensor] | None:
        """Return outputs, state ``(N, D, d_v + 1)`` and its scale; ``None`` if an exponent leaves the range."""
        query, key, value = self.tokens
        n, parts = key.shape[0] * key.shape[1], self._parts(key)
        state = key.new_empty(n, parts, self._features, value.shape[-1] + 1)
        scale = key.new_empty(n, parts, 1, 1)
        if not self._run("sum_keys", _Sums(state, scale), parts=parts):
            return None
        top = scale.amax(1, keepdim=True)
        state, scale = (state * (scale - top).exp()).sum(1) if parts > 1 else state[:, 0], top[:, 0]
        signed = not self.call.feature_map.nonnegative
        outputs = Outputs.empty(state, query.shape[2], moved=signed and traced)
        sums = _Sums(state, scale, outputs.values, outputs.used, None, outputs.log_scale)
        if not self._run("read_keys", sums, parts=self._parts(query)):
            return None
        outputs.log_scale.add_(scale)
        seen = of_all(value, self.call.ignore, self.call.dtype, signed=signed)
        return outputs.settled(self.call, query, seen), state, scale

    def bidirectional_backward(
        self, state: Tensor, scale: Tensor, outputs: Outputs, grad: Tensor
    ) -> list[Tensor] | None:
        """Return the gradients of query, key and value; ``None`` where `bidirectional` returned it."""
        query, key, _ = self.tokens
        grad, found = outputs.gradient_of_quotients(grad), [u.new_empty(u.shape) for u in self.tokens]
        parts, sums = self._parts(query), _Sums(state, scale, outputs.values, outputs.used)
        grad_state = state.new_empty(len(state), parts, *state.shape[1:])
        if not self._run("pull_reads", sums, (grad, grad_state), found, parts=parts):
            return None
        done = self._run("pull_keys", sums, (grad, grad_state.sum(1)), found, parts=self._parts(key))
        return found if done else None

    def causal(self, state: Tensor, scale: Tensor, *, traced: bool) -> Attended | None:
        """Attend from a state ``(N, D, d_v + 1)``; ``None`` if an exponent is out of range or not finite."""
        call, (query, key, value) = self.call, self.tokens
        signed = not call.feature_map.nonnegative
        outputs = Outputs.empty(state, query.shape[2], moved=signed and traced)
        state, scale, logs = state.clone(), scale.clone(), torch.empty_like(outputs.used)
        tops = logs.new_empty(len(state), key.shape[2], 1)
        sums = _Sums(state, scale, outputs.values, outputs.used, tops, logs)
        if not self._run("causal_maps_forward", sums):
            return None
        groups = query.shape[2] // key.shape[2]
        log_scale = logs.add_(tops if groups == 1 else tops.repeat_interleave(groups, 1))
        values = with_ones(value)
        if call.ignore is not None:
            values.masked_fill_(call.ignore[:, None, :, None], 0)
        chunk = VisibleChunk(call.visible, values.flatten(0, 1), groups)
        seen = of_all(value, call.ignore, call.dtype, signed=signed)
        outputs = outputs._replace(log_scale=log_scale).settled(call, query, chunk)
        return Attended(outputs, state, scale, tops, _together(call.visible, seen))

    def causal_backward(
        self, state: Tensor, scale: Tensor, tops: Tensor, outputs: Outputs, grads: tuple[Tensor, Tensor]
    ) -> list[Tensor] | None:
        """Return the gradients of query, key, value and state, from those of outputs and of the state after all keys.

        ``None`` where `causal` returned it.
        """
        grad = outputs.gradient_of_quotients(grads[0])
        grad_state = grads[1].clone(memory_format=torch.contiguous_format)
        found = [u.new_empty(u.shape) for u in self.tokens]
        sums = _Sums(state.contiguous(), scale.contiguous(), outputs.values, outputs.used, tops)
        done = self._run("causal_maps_backward", sums, (grad, grad_state), found)
        return [*found, grad_state] if done else None

    @property
    def _features(self) -> int:
        return self.n_projections * (1 if KINDS[self.kind] == "single" else 2)

    def _parts(self, u: Tensor) -> int:
        """Return into how many parts the tokens of a row are cut, so that every thread has work."""
        return max(1, -(-u.shape[2] // core.task_tokens(u.shape[0] * u.shape[1], u.shape[2])))

    def _run(
        self,
        name: str,
        sums: _Sums,
        grads: tuple[Tensor | None, Tensor | None] = (None, None),
        found: list[Tensor] | tuple[None, ...] = (None, None, None),
        *,
        parts: int = 0,
    ) -> bool:
        """Call a pass of the core; return whether it served. Causal passes have no ``parts``."""
        (query, key, value), call = self.tokens, self.call
        (batch, heads, length, dim), columns = key.shape, self.weights[0][0].shape[-1]
        query_side, key_side = (
            (*_strided(u), *weights, grad, len(weights[0]))
            for u, weights, grad in zip((query, key), self.weights, found, strict=False)
        )
        ignore = None if call.ignore is None else call.ignore.contiguous()
        exponents = self.square, heads, dim, self.n_projections, columns, self.kind
        groups = 1 if parts else query.shape[2] // length
        sizes = batch * heads, batch, length, groups, query.shape[2], parts, value.shape[-1]
        done = core.run(
            name,
            *(
                *query_side,
                *key_side,
                *_strided(value),
                ignore,
                *sums,
                grads[0],
                found[2],
                grads[1],
                *exponents,
            ),
            *(*sizes, torch.get_num_threads(), value.dtype == torch.float64),
        )
        return done != _OUT_OF_RANGE


def _strided(u: Tensor) -> tuple[Tensor, int, int, int]:
    """Return ``(B, H, L, d)`` as it is in memory, with L before H as projections leave it, too, and its strides."""
    if not u.transpose(1, 2).is_contiguous():
        u = u.contiguous()
    batch, head, token, _ = u.stride()
    return u if u.is_contiguous() else u.transpose(1, 2), batch, head, token


_PAD = 16  # PAD of the core


def _weights(affine: Affine, call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return matrix, its transpose with padded columns, and offset as the core reads them."""
    matrix = (affine.matrix * call.root).to(call.dtype)
    transposed = matrix.new_zeros(len(matrix), matrix.shape[2], matrix.shape[1] + -matrix.shape[1] % _PAD)
    transposed[..., : matrix.shape[1]] = matrix.mT
    return matrix.contiguous(), transposed, affine.offset.to(call.dtype).contiguous()


def _together(before: Visible, seen: Visible) -> Visible:
    """Describe the values of both."""
    found = Visible(before.total + seen.total, None, None)
    if before.low is None or before.high is None or seen.low is None or seen.high is None:
        return found
    return found._replace(low=torch.minimum(before.low, seen.low), high=torch.maximum(before.high, seen.high))

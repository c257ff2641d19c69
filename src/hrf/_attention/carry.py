"""The carry of causal attention: sums over earlier tokens that later ones need.

Decoding token by token by the compiled core, for real exponential features: positive ones, fitted or not.

The time of a step in PyTorch is mostly the number of its operations. Here a step copies query, key and value into
buffers, and one call of the core does the rest on tensors that stay where they are: the state is written in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import Self

from hrf import _core as core
from hrf import tuning
from hrf._attention.call import Call
from hrf._attention.denominator import Denominator, Visible, key_moments, of_all, per_row
from hrf._attention.dense import LOWEST
from hrf._attention.inputs import Inputs
from hrf.features.base import FeatureMap
from hrf.features.exponential_features import ExponentialFeatures, is_real
from hrf.numerics import is_traced

__all__ = ["Carry", "CompiledSteps", "Past", "add_scaled", "prepare", "values_so_far"]


class Past(NamedTuple):
    """All keys so far, S of them, for exact pairs of clusters.

    Attributes:
        key: as given, ``(B, H, S, d)``.
        value: as given, ``(B, H, S, d_v)``.
        label: clusters of the keys, ``(B, H, S)``.
    """

    key: Tensor
    value: Tensor
    label: Tensor


class Carry(NamedTuple):
    """Sums over all keys so far.

    Attributes:
        state: Σ ψ(y) vᵀ with a column for the denominators, ``(B, H, D, d_v + 1)``.
        scale: its log scale, ``(B, H, 1, 1)``.
        moments: sums of `key_moments`, ``(B, H, 1, ·)``.
        total: sums of values and their number, ``(B, H, 1, d_v + 1)``.
        low: minimum of values, ``(B, H, 1, d_v)``; without columns for maps without signs.
        high: maximum of values, likewise.
        past: the keys themselves, if some pairs are exact.
    """

    state: Tensor
    scale: Tensor
    moments: Tensor
    total: Tensor
    low: Tensor
    high: Tensor
    past: Past | None = None

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Carry:
        """Rebuild a carry from `tensors`."""
        past = Past(*(tensors[name] for name in Past._fields)) if "key" in tensors else None
        return cls(**{name: tensors[name] for name in cls._fields[:-1]}, past=past)

    @classmethod
    def of_sums(cls, sums: Iterable[Tensor]) -> Carry:
        """Rebuild a carry without keys from `sums`."""
        return cls.of(dict(zip(cls._fields, sums, strict=False)))

    def sums(self) -> tuple[Tensor, ...]:
        """Return all tensors but the keys themselves."""
        return self[:-1]

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        past = {} if self.past is None else self.past._asdict()
        return {**dict(zip(self._fields[:-1], self[:-1], strict=True)), **past}

    def emptied(self) -> Carry:
        """Return the carry of no keys, of the same shapes."""
        state, moments, total = (torch.zeros_like(t) for t in (self.state, self.moments, self.total))
        scale, low = torch.full_like(self.scale, LOWEST), torch.full_like(self.low, torch.inf)
        return Carry(state, scale, moments, total, low, -low)

    def plus(self, other: Carry) -> Carry:
        """Return the carry of the keys of both."""
        state, scale = add_scaled((self.state, self.scale), (other.state, other.scale))
        low, high = torch.minimum(self.low, other.low), torch.maximum(self.high, other.high)
        return Carry(state, scale, self.moments + other.moments, self.total + other.total, low, high)


def add_scaled(first: Sequence[Tensor], second: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Add sums with log scales, on the larger of their scales; `LOWEST` is the scale of nothing."""
    scale = torch.maximum(first[1], second[1])
    own, other = (values * (at - scale).exp() for values, at in (first, second))
    return own + other, scale


def prepare(
    inputs: Inputs,
    feature_map: FeatureMap,
    rule: Denominator,
    carry: Carry | None = None,
    past: Past | None = None,
) -> tuple[Call, tuple[Tensor | None, ...]]:
    """Describe a causal call: row i sees the keys of ``carry`` and keys 0 … i.

    The tensors are query, key, value, the state and its scale, and ``None`` twice, for sums over exact pairs.
    """
    moments = key_moments(inputs, feature_map).cumsum(2)
    if carry is not None:
        moments = moments + carry.moments
    call = Call.of(
        inputs,
        per_row(inputs, moments),
        feature_map,
        rule,
        resumed=carry is not None,
        past=past,
        visible=values_so_far(inputs, feature_map, carry),
    )
    if carry is None:
        shape = *inputs.key.shape[:2], feature_map.feature_dim, inputs.value.shape[-1] + 1
        state = inputs.key.new_zeros(shape, dtype=inputs.dtype)
        scale = state.new_full((*shape[:2], 1, 1), LOWEST)
    else:
        state, scale = carry.state.to(inputs.dtype), carry.scale.to(inputs.dtype)
    return call, (*inputs[:3], state, scale, None, None)


def values_so_far(inputs: Inputs, feature_map: FeatureMap, carry: Carry | None) -> Visible:
    """Describe the values of the keys before a call, ``(N, 1, ·)``."""
    if carry is None:
        no_keys = inputs.value[:, :, :0].detach()
        empty = of_all(no_keys, None, inputs.dtype, signed=not feature_map.nonnegative)
        if empty.low is None or empty.high is None:
            return empty
        return Visible(
            empty.total, torch.full_like(empty.low, torch.inf), torch.full_like(empty.high, -torch.inf)
        )
    total, low, high = (
        t.detach().to(inputs.dtype).flatten(0, 1) for t in (carry.total, carry.low, carry.high)
    )
    return Visible(total, None, None) if feature_map.nonnegative else Visible(total, low, high)


Tokens = tuple[Tensor, Tensor, Tensor]


class _Weights(NamedTuple):
    """A map as the core reads it: matrix and offset for queries and for keys, and the factor of squares."""

    query: tuple[Tensor, Tensor]
    key: tuple[Tensor, Tensor]
    square: Tensor

    @classmethod
    def of(cls, feature_map: ExponentialFeatures, inputs: Inputs) -> _Weights | None:
        """Convert a map; ``None`` if the core does not serve these inputs."""
        dtype = inputs.dtype
        if not core.serves(*(u.to(dtype) for u in inputs[:3])):
            return None
        affine = feature_map.affine()
        assert affine is not None, "real maps have affine exponents"
        sides = affine.query, affine.key
        query, key = (((a.matrix * inputs.root).to(dtype), a.offset.to(dtype)) for a in sides)
        # One matrix for both sides is in the cache when it is read for the second time.
        key = query if affine.query is affine.key else key
        return cls(query, key, torch.full((1,), inputs.root**2, dtype=dtype))


_NOT_FINITE = 2  # what `decode` of the core returns


class CompiledSteps:
    """A state that is written in place, and the steps from it; see `of`."""

    def __init__(self, weights: _Weights, inputs: Inputs, carry: Carry) -> None:
        dtype, (*lead, _, c) = inputs.dtype, carry.state.shape
        query, key, value = (torch.empty_like(u) for u in inputs[:3])  # a key may be a view of all keys
        self._inputs = inputs._replace(query=query, key=key, value=value, ignore=None)
        self._weights, self._form = weights, _form((query, key, value))
        self._lead, self._floats = tuple(lead), partial(torch.empty, dtype=dtype)
        self._tokens = [self._floats(u.shape) for u in inputs[:3]]
        self._state = carry.state.to(dtype).flatten(0, 1).mT.clone(memory_format=torch.contiguous_format)
        self._scale, self._total = (
            t.to(dtype).reshape(len(self._state), -1).clone() for t in (carry.scale, carry.total)
        )
        self._out = self._floats(*inputs.query.shape[:3], c - 1)
        self._ignore = torch.zeros(self._lead[0], dtype=torch.bool)
        self._counts = torch.zeros(len(self._state), 2, dtype=torch.long)
        self._step = self._prepared()

    @classmethod
    def of(cls, feature_map: FeatureMap, inputs: Inputs, carry: Carry) -> Self | None:
        """Continue from a copy of a state; ``None`` if the core does not serve.

        Args:
            feature_map: the map.
            inputs: a token, as checked; the tokens of all steps have its form.
            carry: the state.
        """
        tensors = *inputs[:3], carry.state, *feature_map.parameters(), *feature_map.buffers()
        if not is_real(feature_map) or any(t.requires_grad for t in tensors):
            return None
        # Ordinary tensors: steps with and without inference mode may write to them.
        with torch.inference_mode(False), torch.no_grad():
            weights = _Weights.of(feature_map, inputs)
            return None if weights is None else cls(weights, inputs, carry)

    def reordered(self, index: Tensor) -> Self:
        """Return the states of the batch elements ``index``."""
        with torch.inference_mode(False), torch.no_grad():
            query, key, value = (u.new_empty(len(index), *u.shape[1:]) for u in self._inputs[:3])
            inputs = self._inputs._replace(query=query, key=key, value=value, batch=(len(index),))
            carry = {name: t.index_select(0, index) for name, t in self.carry().tensors().items()}
            return type(self)(self._weights, inputs, Carry.of(carry))

    def _prepared(self) -> core.Prepared:
        """Return the call of the core that takes a step, on as many threads as there is work for."""
        (n, c, width), floats, weights = self._state.shape, self._floats, self._weights
        query, key, value = (u.flatten(0, 2) for u in self._tokens)
        sides: list[Tensor | int] = []
        for u, (matrix, offset), rows in ((query, weights.query, len(query)), (key, weights.key, n)):
            maps = matrix.reshape(-1, *matrix.shape[-2:]).contiguous(), offset.contiguous()
            sides += [u, *maps, floats(rows, width), floats(rows), len(u), rows, len(maps[0])]
        dim, columns = weights.query[0].shape[-2:]
        scratch = floats(n, columns), floats(n, c), floats(len(query), c)
        limits = torch.finfo(value.dtype)
        floor = limits.tiny / limits.eps  # as in `Denominator.settle`
        threads = max(1, min(n, torch.get_num_threads(), self._state.numel() // tuning.STEP_FLOATS))
        return core.Prepared(
            "decode",
            *sides,
            *(value, self._ignore, self._state, self._scale, self._total, *scratch, self._out, self._counts),
            *(float(weights.square), float(floor)),
            *(n, self._lead[1], self._lead[0], len(value), dim, columns, width, c, c - 1),
            *(threads, value.dtype == torch.float64),
        )

    def fits(self, tokens: Tokens) -> bool:
        """Return whether a token has the form of all others and no gradients are wanted."""
        if _form(tokens) != self._form or is_traced():
            return False
        return not (torch.is_grad_enabled() and any(u.requires_grad for u in tokens))

    def step(self, tokens: Tokens, ignore: Tensor | None, rule: Denominator) -> Tensor | None:
        """Attend from the next token to all so far: ``(..., H, 1, d_v)``.

        Returns ``None``, and leaves the state as it is, if a query or a key is not finite.

        Args:
            tokens: query, key and value that fit.
            ignore: batch elements whose key is ignored, booleans ``(..., 1)``, or ``None``.
            rule: counts the denominators; it has to be ``"clamp"``.
        """
        for buffer, token in zip(self._tokens, tokens, strict=True):
            buffer.copy_(token if token.ndim == 4 else token.reshape(buffer.shape))
        if ignore is not None:
            self._tokens[1].masked_fill_(ignore.reshape(-1, 1, 1, 1), 0)
        self._ignore.copy_(ignore.reshape(-1)) if ignore is not None else self._ignore.zero_()
        if self._step() == _NOT_FINITE:
            return None
        rule.add(*self._counts.sum(0).tolist())
        return self._inputs.restored(self._out.clone())

    def carry(self) -> Carry:
        """Return a copy of the state."""
        state, scale, total = (t.unflatten(0, self._lead) for t in (self._state, self._scale, self._total))
        c = total.shape[-1]
        total = total.unsqueeze(-2).clone()
        none = total[..., :0]
        return Carry(
            state[:, :, :c].mT.clone(memory_format=torch.contiguous_format),
            scale.unsqueeze(-1).clone(),
            total[..., -1:].clone(),
            total,
            none,
            none,
        )


def _form(tokens: Tokens) -> tuple[object, ...]:
    query, key, value = tokens
    return query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype, query.device

"""Decoding token by token in compiled loops, for real exponential features: positive ones, fitted or not.

The time of a step in PyTorch is mostly the number of its operations. Here a step copies query, key and value into
buffers, and two loops do the rest on arrays that stay where they are: the state is written in place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import Self

from hrf import tuning
from hrf._attention import loops
from hrf._attention.carry import Carry
from hrf._attention.denominator import Denominator
from hrf._attention.inputs import Inputs
from hrf.features.base import FeatureMap
from hrf.features.exponential_features import Affine, ExponentialFeatures, is_real
from hrf.numerics import is_traced

__all__ = ["CompiledSteps"]

Tokens = tuple[Tensor, Tensor, Tensor]


class _Weights(NamedTuple):
    """A map as the loops read it: matrix and offset for queries and for keys, and the factor of squares."""

    query: tuple[Tensor, Tensor]
    key: tuple[Tensor, Tensor]
    square: Tensor

    @classmethod
    def of(cls, feature_map: ExponentialFeatures, inputs: Inputs) -> _Weights | None:
        """Convert a map; ``None`` if the loops do not serve these inputs."""
        dtype = inputs.dtype
        if not loops.serves(*(u.to(dtype) for u in inputs[:3])):
            return None
        affine = Affine.of(feature_map)
        query, key = (((a.matrix * inputs.root).to(dtype), a.offset.to(dtype)) for a in affine)
        # One matrix for both sides is in the cache when it is read for the second time.
        key = query if affine[0] is affine[1] else key
        return cls(query, key, torch.full((1,), inputs.root**2, dtype=dtype))


class CompiledSteps:
    """A state that is written in place, and the steps from it; see `of`."""

    def __init__(self, weights: _Weights, inputs: Inputs, carry: Carry) -> None:
        from hrf._attention.loops.decoding import LINES, advance, map_tokens

        dtype, (*lead, _, c) = inputs.dtype, carry.state.shape
        query, key, value = (torch.empty_like(u) for u in inputs[:3])  # a key may be a view of all keys
        self._inputs = inputs._replace(query=query, key=key, value=value, ignore=None)
        self._weights, self._form = weights, _form((query, key, value))
        self._lead, self._floats = tuple(lead), partial(torch.empty, dtype=dtype)
        self._tokens = [self._floats(u.shape) for u in inputs[:3]]
        self._state = pad(carry.state.to(dtype).flatten(0, 1).mT, (0, 0, 0, -c % LINES)).contiguous()
        self._scale, self._total = (
            t.to(dtype).reshape(len(self._state), -1).clone() for t in (carry.scale, carry.total)
        )
        self._out = self._floats(*inputs.query.shape[:3], c - 1)
        flags = (torch.zeros(k, dtype=torch.bool) for k in (self._lead[0], 1))
        self._parts = max(
            1, min(len(self._state), torch.get_num_threads(), self._state.numel() // tuning.STEP_FLOATS)
        )
        counts = torch.zeros(self._parts, 2, dtype=torch.long)
        self._ignore, self._finite, self._counts = loops.arrays(*flags, counts)
        maps, steps = self._tasks()
        self._map, self._advance = partial(_run, map_tokens, maps), partial(_run, advance, steps)

    @classmethod
    def of(cls, feature_map: FeatureMap, inputs: Inputs, carry: Carry) -> Self | None:
        """Continue from a copy of a state; ``None`` if the loops do not serve.

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

    def _tasks(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """Return the arguments of both loops, for as many parts of the rows as there is work for."""
        (n, c, width), floats, weights = self._state.shape, self._floats, self._weights
        query, key, value = (u.flatten(0, 2) for u in self._tokens)
        queries, keys = (
            loops.arrays(u, *own, floats(rows, width), floats(rows))
            for u, own, rows in ((query, weights.query, len(query)), (key, weights.key, n))
        )
        square, products = loops.arrays(weights.square, floats(n, weights.query[0].shape[-1]))
        state = loops.arrays(self._state, self._scale.view(n), self._total)
        places = loops.arrays(floats(n, c + 2), floats(len(query), c), self._out.view(len(query), -1))
        (values,), limits = loops.arrays(value), torch.finfo(value.dtype)
        floor = limits.tiny / limits.eps  # as in `Denominator.settle`
        cuts = [n * part // self._parts for part in range(self._parts + 1)]
        maps, steps = [], []
        for rows, counts in zip(pairwise(cuts), self._counts, strict=True):
            maps.append((*rows, self._lead[1], square, products, queries, keys, self._finite))
            read = queries[3], keys[3], keys[4], values, self._ignore, floor
            steps.append((*rows, *read, *state, *places, counts))
        return maps, steps

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
        self._ignore[:] = False if ignore is None else ignore.reshape(-1).numpy()
        self._finite[0] = True
        self._map()
        if not self._finite[0]:
            return None
        self._advance()
        for seen, small in self._counts.tolist():
            rule.add(seen, small)
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


def _run(loop: Callable[..., None], tasks: list[tuple[Any, ...]]) -> None:
    if len(tasks) == 1:
        loop(*tasks[0])
    else:
        loops.each(loop, tasks)

"""Attention by features, for any map.

Blocks of positions, few enough to be finished in the cache: vectors, values, features, and products of features.

Features never exist for a whole sequence. The backward pass recomputes those of a block, and pulls their gradients
back before the next block. `Dense` serves any map; clustered maps, whose features are mostly zeros, have products of
their own (``clusters.py``). With batch elements and heads in one axis N, a state is a list of tensors
``(N, D, c)``, which products may overwrite.

Bidirectional attention with features: a state S = Σ ψ(y) vᵀ from all keys, then φ(x)ᵀ S for every query.

The state has one log scale per head: the largest of the keys so far, and when it grows, the state is scaled down
(as in online softmax). The scale of a query stays outside: it cancels in the quotient.

The backward pass goes over the queries, then over the keys, with G the gradient of the sums φ(x)ᵀ S:

    ∂φ(x) = S G,   ∂S = Σ φ(x) Gᵀ,   ∂ψ(y) = ∂S v,   ∂v = ∂Sᵀ ψ(y).

The gradient of a log scale is that of its features along themselves, so it needs no product as wide as the
features: ∂ψᵀψ = v · ∂v.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Self, override

from hrf import tuning
from hrf._attention.call import Call, Outputs, Path, prepare
from hrf._attention.denominator import of_all
from hrf._attention.map_kernels import kernels_for
from hrf.features.base import Side
from hrf.numerics import Features

__all__ = [
    "LOWEST",
    "PATH",
    "ChunkFeatures",
    "Chunks",
    "Dense",
    "Pull",
    "RunningState",
    "Scratch",
    "joined",
    "pulled",
]


# The log scale of a sum without terms. Finite, so that differences of scales are never NaN.
LOWEST = -1e30

# From the gradients of features and of their log scale to the gradient of the rows; parameters' gradients are added up.
Pull = Callable[[list[Tensor], Tensor, dict[Tensor, Tensor]], Tensor]


class Scratch:
    """A scratch buffer that all blocks use in turn, so that it stays in the cache."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    def of(self, *shape: int, like: Tensor) -> Tensor:
        """Return a tensor of this shape in the buffer, which grows if it has to."""
        size = math.prod(shape)
        if self._memory is None or self._memory.numel() < size:
            self._memory = like.new_empty(size)
        return self._memory[:size].view(shape)


class ChunkFeatures(ABC):
    """Features ψ of T queries or keys, up to their log scales, ``(N, T, 1)``."""

    log_scale: Tensor

    @abstractmethod
    def scores(self, keys: Self) -> Tensor:
        """Return φᵀψ for all queries and keys: ``(N, T, S)``."""

    @abstractmethod
    def times(self, states: list[Tensor]) -> Tensor:
        """Return ψᵀS: ``(N, T, c)``."""

    @abstractmethod
    def add_to(self, states: list[Tensor], v: Tensor) -> None:
        """Add Σ ψ vᵀ to S in place."""

    @abstractmethod
    def gradient(
        self, g: Tensor, states: list[Tensor], weights: Tensor | None = None, others: Self | None = None
    ) -> list[Tensor]:
        """Return the gradient S g + Σ weights · φ over the other side, if any, as `Pull` takes it.

        ``weights (N, T, S)``.
        """


class Chunks(ABC):
    """Vectors, values and features, chunk by chunk.

    Attributes:
        multiple: length of a chunk over `tuning.CAUSAL_CHUNK`.
    """

    multiple = 1

    def __init__(self, call: Call) -> None:
        self.call = call

    @abstractmethod
    def split(self, state: Tensor) -> list[Tensor]:
        """Copy a state ``(N, D, c)`` into its parts."""

    @abstractmethod
    def features(self, x: Tensor, rows: slice, side: Side) -> ChunkFeatures:
        """Map `vectors`; the scale of ignored keys is −inf."""

    @abstractmethod
    def traced(self, u: Tensor, rows: slice, side: Side) -> tuple[ChunkFeatures, Pull]:
        """Map rows of query or key, and return the way back for gradients."""

    def blocks(self, u: Tensor) -> Iterator[slice]:
        """Cut the rows of ``u (B, H, L, d)`` into blocks."""
        return _cut(u, self.multiple * tuning.CAUSAL_CHUNK)

    def vectors(self, u: Tensor, rows: slice, side: Side) -> Tensor:
        """Return the vectors to map, ``(B, H, rows, d)``: scaled, and zero where ignored."""
        x = u[:, :, rows].to(self.call.dtype) * self.call.root
        if side == "key" and self.call.ignore is not None:
            x = x.masked_fill_(self.call.ignore[:, None, rows, None], 0)
        self.call.feature_map.check_values(x, side)
        return x

    def values(self, value: Tensor, rows: slice, log_weight: Tensor | None = None) -> Tensor:
        """Return values and a column of ones, whose sums are the denominators, all times exp(log_weight) per row.

        ``(N, rows, d_v + 1)``; zero where ignored.
        """
        v = value[:, :, rows].to(self.call.dtype)
        out = v.new_empty(*v.shape[:-1], v.shape[-1] + 1)
        if log_weight is None:
            out[..., :-1], out[..., -1:] = v, 1
        else:
            weight = log_weight.exp().view_as(out[..., -1:])
            torch.mul(v, weight, out=out[..., :-1])
            out[..., -1:] = weight
        if self.call.ignore is not None:
            out.masked_fill_(self.call.ignore[:, None, rows, None], 0)
        return out.flatten(0, 1)

    def masked(self, log_scale: Tensor, rows: slice, side: Side) -> Tensor:
        """Return log scales ``(B, H, rows, 1)`` as ``(N, rows, 1)``, −inf for ignored keys."""
        if side == "key" and self.call.ignore is not None:
            log_scale = log_scale.masked_fill(self.call.ignore[:, None, rows, None], -torch.inf)
        return log_scale.flatten(0, 1)


class DenseFeatures(ChunkFeatures):
    """Features as a map gives them, ``values (N, T, D)``."""

    def __init__(self, values: Tensor, log_scale: Tensor) -> None:
        self.values, self.log_scale = values, log_scale

    @override
    def scores(self, keys: Self) -> Tensor:
        return self.values @ keys.values.mT

    @override
    def times(self, states: list[Tensor]) -> Tensor:
        return self.values @ states[0]

    @override
    def add_to(self, states: list[Tensor], v: Tensor) -> None:
        states[0].baddbmm_(self.values.mT, v)

    @override
    def gradient(
        self, g: Tensor, states: list[Tensor], weights: Tensor | None = None, others: Self | None = None
    ) -> list[Tensor]:
        grad = g @ states[0].mT
        return [grad if weights is None or others is None else grad.baddbmm_(weights, others.values)]


class Dense(Chunks):
    """Chunk features for any map."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._scratch = {"query": Scratch(), "key": Scratch()}
        # Gradients of parameters are left to autograd.
        self._by_hand = call.feature_map.has_pullback and not call.learned

    @override
    def blocks(self, u: Tensor) -> Iterator[slice]:
        floats = max(1, u.shape[0] * u.shape[1] * self.call.feature_map.feature_dim)
        return _cut(u, max(tuning.DENSE_LEAST_ROWS, tuning.DENSE_FLOATS // floats))

    @override
    def split(self, state: Tensor) -> list[Tensor]:
        return [state.clone()]

    @override
    def features(self, x: Tensor, rows: slice, side: Side) -> DenseFeatures:
        out = self._scratch[side].of(*x.shape[:-1], self.call.feature_map.feature_dim, like=x)
        values, log_scale = self.call.feature_map.scaled_into(x, side, out)
        return DenseFeatures(values.flatten(0, 1), self.masked(log_scale, rows, side))

    @override
    def traced(self, u: Tensor, rows: slice, side: Side) -> tuple[DenseFeatures, Pull]:
        x, phi = self.vectors(u, rows, side), self.call.feature_map
        if self._by_hand:
            products = self.features(x, rows, side)

            def pull(grads: list[Tensor], along: Tensor, parameters: dict[Tensor, Tensor]) -> Tensor:
                grad = Features(*(g.view(*x.shape[:-1], g.shape[-1]) for g in (grads[0], along)))
                values = products.values.view_as(grad.values)
                return phi.pullback(x, side, values, grad).mul_(self.call.root)

            return products, pull
        with torch.enable_grad():
            features = phi.scaled(x.requires_grad_(), side)

        def pull_through(grads: list[Tensor], along: Tensor, parameters: dict[Tensor, Tensor]) -> Tensor:
            return pulled(x, features, [grads[0], along], parameters) * self.call.root

        log_scale = self.masked(features.log_scale.detach(), rows, side)
        return DenseFeatures(features.values.detach().flatten(0, 1), log_scale), pull_through


@dataclass
class RunningState:
    """A state in parts that are written in place, and its scale."""

    states: list[Tensor]
    scale: Tensor

    def add(self, psi: ChunkFeatures, v: Tensor, top: Tensor) -> None:
        """Add the keys of a chunk, at the scale ``top (N, 1, 1)``."""
        for state in self.states:
            state.mul_((self.scale - top).exp())
        psi.add_to(self.states, v * (psi.log_scale - top).exp())
        self.scale = top


def joined(states: list[Tensor]) -> Tensor:
    """Concatenate the parts of a state; a single part is returned as it is."""
    return states[0] if len(states) == 1 else torch.cat(states, 1)


def _cut(u: Tensor, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, u.shape[2])) for start in range(0, u.shape[2], size))


def pulled(
    x: Tensor, outputs: Sequence[Tensor], grads: Sequence[Tensor], parameters: dict[Tensor, Tensor]
) -> Tensor:
    """Return the gradient of x by autograd from those of outputs; gradients of parameters are added to theirs."""
    pairs = [(out, g.view_as(out)) for out, g in zip(outputs, grads, strict=True) if out.requires_grad]
    if not pairs:
        return torch.zeros_like(x)
    outs, gs = zip(*pairs, strict=True)
    found = torch.autograd.grad(outs, [x, *parameters], gs, allow_unused=True)
    for parameter, g in zip(parameters, found[1:], strict=True):
        if g is not None:
            parameters[parameter] += g
    return torch.zeros_like(x) if found[0] is None else found[0]


def _forward(
    call: Call, query: Tensor, key: Tensor, value: Tensor, saved: list[Tensor | None] | None = None
) -> tuple[Tensor, ...]:
    kernels = kernels_for(call, query, key, value)
    if kernels and (found := kernels.bidirectional(traced=saved is not None)):
        outputs, state, scale = found
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
    divided, grad = Outputs(*rest), grads[0].flatten(0, 1)
    kernels = kernels_for(call, query, key, value)
    if kernels and (found := kernels.bidirectional_backward(state, scale, divided, grad)):
        return [g.to(u.dtype) for g, u in zip(found, (query, key, value), strict=True)]
    blocks = Dense(call)
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

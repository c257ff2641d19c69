"""Features of a chunk for a clustered hybrid, without their zeros.

A query x of cluster i has features a_j φ(x') in the blocks (i, j) only, a key y of cluster j has b_i ψ(y') in the same
ones (`Active` of ``cluster_features.py``), so that the estimate of a pair is a_j b_i φ(x')ᵀψ(y'). With a state S_ij,
a query reads Σⱼ a_j φ(x')ᵀS_ij, and a key adds b_i ψ(y') vᵀ to S_ij for all i: blocks of tokens of one cluster meet
the states of their cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from typing_extensions import Self, override

from hrf import tuning
from hrf._attention.call import Call
from hrf._attention.clustered.tokens import by_label
from hrf._attention.dense.chunks import ChunkFeatures, Chunks, Pull, pulled
from hrf._attention.label_blocks import LabelBlocks
from hrf.features.base import Side
from hrf.features.cluster_features import Active
from hrf.features.clustered import ClusteredHybrid
from hrf.numerics import finite

__all__ = ["Clustered"]


class Clustered(Chunks):
    """Chunk features for a base of residuals, and for a default map."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.multiple = tuning.CLUSTERED_CHUNKS
        assert isinstance(call.feature_map, ClusteredHybrid)
        self._phi = call.feature_map

    @override
    def split(self, state: Tensor) -> list[Tensor]:
        default = 0 if self._phi.default is None else self._phi.n_q * self._phi.default.feature_dim
        sizes = [state.shape[1] - default, default] if default else [state.shape[1]]
        return [part.clone(memory_format=torch.contiguous_format) for part in state.split(sizes, 1)]

    @override
    def features(self, x: Tensor, rows: slice, side: Side) -> ChunkFeatures:
        parts = self._phi.active_parts(x, side, self._phi.assign(x.detach(), side))
        return self._products(_on_one_scale(parts), rows, side)

    @override
    def traced(self, u: Tensor, rows: slice, side: Side) -> tuple[ChunkFeatures, Pull]:
        x = self.vectors(u, rows, side)
        with torch.enable_grad():
            own = self._phi.assign(x.detach(), side)
            parts = _on_one_scale(self._phi.active_parts(x.requires_grad_(), side, own))
        outputs = [t for part in parts for t in (part.weights, part.values)]

        def pull(grad: list[Tensor], along: Tensor, parameters: dict[Tensor, Tensor]) -> Tensor:
            return pulled(x, outputs, grad, parameters) * self.call.root

        return self._products(parts, rows, side), pull

    def _products(self, parts: list[Active], rows: slice, side: Side) -> ChunkFeatures:
        log_scale = self.masked(parts[0].log_scale, rows, side)
        return _Clustered([_Part(part, side) for part in parts], log_scale, side)


def _on_one_scale(parts: list[Active]) -> list[Active]:
    """Bring all parts to one scale per row, which has no gradient."""
    scale = torch.stack([part.log_scale for part in parts]).detach().amax(0)
    return [
        part._replace(weights=part.weights * (part.log_scale - finite(scale)).exp(), log_scale=scale)
        for part in parts
    ]


class _Clustered(ChunkFeatures):
    def __init__(self, parts: list[_Part], log_scale: Tensor, side: Side) -> None:
        self.parts, self.log_scale, self.side = parts, log_scale, side

    @override
    def scores(self, keys: Self) -> Tensor:
        first, *rest = (
            (own.values @ other.values.mT).mul_(own.met(other)).mul_(own.meets(other))
            for own, other in zip(self.parts, keys.parts, strict=True)
        )
        return sum(rest, first)

    @override
    def times(self, states: list[Tensor]) -> Tensor:
        first, *rest = (part.read(state) for part, state in zip(self.parts, states, strict=True))
        return sum(rest, first)

    @override
    def add_to(self, states: list[Tensor], v: Tensor) -> None:
        for part, state in zip(self.parts, states, strict=True):
            part.write(state, v)

    @override
    def gradient(
        self, g: Tensor, states: list[Tensor], weights: Tensor | None = None, others: Self | None = None
    ) -> list[Tensor]:
        found: list[Tensor] = []
        if weights is None or others is None:
            for own, state in zip(self.parts, states, strict=True):
                found += own.pulled(state, g)
            return found
        for own, other, state in zip(self.parts, others.parts, states, strict=True):
            grad_weights, grad_values = own.pulled(state, g)
            both = own.meets(other).mul_(weights)
            grad_weights.baddbmm_((own.values @ other.values.mT).mul_(both), other.here)
            grad_values.baddbmm_(both.mul_(own.met(other)), other.values)
            found += [grad_weights, grad_values]
        return found


class _Part:
    """Features of one part of the map: ``label (N, T)``, ``weights (N, T, n)`` and ``values (N, T, D)``."""

    def __init__(self, active: Active, side: Side) -> None:
        self.label, self.weights, self.values = (
            t.detach().flatten(0, 1) for t in (active.label, active.weights, active.values)
        )
        self.n_labels, self.side = active.n_labels, side

    @cached_property
    def here(self) -> Tensor:
        """Cluster indicators, ``(N, T, n_labels)``."""
        return one_hot(self.label, self.n_labels).to(self.values.dtype)

    def met(self, other: _Part) -> Tensor:
        """Return own weights for the cluster of each token of the other side: ``(N, T, S)``."""
        return self.weights @ other.here.mT

    def meets(self, other: _Part) -> Tensor:
        """Return weights of each token of the other side for the own cluster: ``(N, T, S)``."""
        return self.here @ other.weights.mT

    def read(self, state: Tensor) -> Tensor:
        """Multiply with the states of each token's cluster: ``(N, T, c)``."""
        places = state.new_empty(*self._blocks.members.shape, state.shape[-1])
        for some, rows in self._pieces():
            torch.bmm(self._wide(some), self._own(state, rows), out=places[some])
        return self._given(places)

    def write(self, state: Tensor, v: Tensor) -> None:
        """Add products with v to the states of each token's cluster, in place."""
        flat, rows_of_state = v.flatten(0, 1), self._rows_of(state)
        for some, rows in self._pieces():
            product = self._wide(some).mT @ self._blocks.take_once(flat, some)
            rows_of_state.index_add_(0, rows.flatten(), product.view(rows.numel(), -1))

    def pulled(self, state: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of weights and values if that of `read` is g."""
        shape = self._blocks.members.shape
        grad_weights, grad_values = (
            state.new_empty(*shape, t.shape[-1]) for t in (self.weights, self.values)
        )
        flat = g.flatten(0, 1)
        for some, rows in self._pieces():
            wide = self._blocks.take(flat, some) @ self._own(state, rows).mT
            wide = wide.unflatten(-1, (self.weights.shape[-1], -1))  # (n, size, n, D)
            weights, values = self._taken(some)
            torch.sum(wide * values, -1, out=grad_weights[some])
            torch.sum(wide.mul_(weights), -2, out=grad_values[some])
        return self._given(grad_weights), self._given(grad_values)

    @cached_property
    def _blocks(self) -> LabelBlocks:
        return by_label(self.label, self.n_labels)

    @cached_property
    def _rows(self) -> Tensor:
        """Indices of the states (i, j), of all elements, that go with each block: ``(blocks, n)``."""
        n, segment = self.weights.shape[-1], self._blocks.segment.unsqueeze(-1)
        others = torch.arange(n, device=segment.device)
        if self.side == "query":
            return segment * n + others
        element, own = segment // self.n_labels, segment % self.n_labels
        return (element * n + others) * self.n_labels + own

    def _pieces(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield batches of blocks, and the rows of states that go with them."""
        width = self.weights.shape[-1] * self.values.shape[-1]
        for some in self._blocks.pieces(tuning.CLUSTER_FLOATS // (width * self._blocks.members.shape[-1])):
            yield some, self._rows[some]

    def _rows_of(self, state: Tensor) -> Tensor:
        return state.view(-1, self.values.shape[-1] * state.shape[-1])

    def _own(self, state: Tensor, rows: Tensor) -> Tensor:
        """Gather the states of a batch of blocks, ``(blocks, n·D, c)``."""
        return self._rows_of(state).index_select(0, rows.flatten()).view(len(rows), -1, state.shape[-1])

    def _taken(self, some: slice) -> tuple[Tensor, Tensor]:
        """Gather weights and values of a batch of blocks, ``(blocks, size, n, 1)`` and ``(blocks, size, 1, D)``."""
        weights, values = (self._blocks.take(t.flatten(0, 1), some) for t in (self.weights, self.values))
        return weights.unsqueeze(-1), values.unsqueeze(-2)

    def _wide(self, some: slice) -> Tensor:
        """Return all products of a weight and a feature, ``(blocks, size, n·D)``."""
        weights, values = self._taken(some)
        return (weights * values).flatten(-2)

    def _given(self, places: Tensor) -> Tensor:
        return self._blocks.give(places).view(*self.label.shape, places.shape[-1])

"""Features of a chunk by a clustered hybrid, without their zeros.

A query x of cluster i has features a_j φ(x') in the blocks (i, j) only, a key y of cluster j has b_i ψ(y') in the same
ones (``features/grouping.py``, `Active`), so that the estimate of a pair is a_j b_i φ(x')ᵀψ(y'). With a state S_ij,
a query reads Σⱼ a_j φ(x')ᵀS_ij, and a key adds b_i ψ(y') vᵀ to S_ij for all i: blocks of tokens of one cluster meet
the states of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from typing_extensions import Self

from hrf._attention.clustered import common
from hrf._attention.clustered.causal import Estimated
from hrf._attention.clustered.common import by_label
from hrf._attention.dense.blocks import Blocks, pulled
from hrf._attention.dense.chunks import Chunks, Products, Pull
from hrf._attention.label_blocks import Blocks as Segments
from hrf.features.base import FeatureMap, Side, finite
from hrf.features.clustered import ClusteredHybrid
from hrf.features.grouping import Active

__all__ = ["Clustered", "of_residuals"]


def of_residuals(feature_map: FeatureMap) -> ClusteredHybrid | None:
    """The clustered hybrid that a map is, or the rest of, if its base is one of residuals."""
    whole = feature_map.whole if isinstance(feature_map, Estimated) else feature_map
    return whole if isinstance(whole, ClusteredHybrid) and not whole.per_pair else None


class Clustered(Chunks):
    """Those of a base of residuals, and of a default map."""

    size = 4  # every chunk reads and writes the state, which is large

    def __init__(self, blocks: Blocks, phi: ClusteredHybrid) -> None:
        self._blocks, self._phi = blocks, phi

    def split(self, state: Tensor) -> list[Tensor]:
        """A copy: what belongs to the base, and to the default map."""
        default = 0 if self._phi.default is None else self._phi.n_q * self._phi.default.feature_dim
        sizes = [state.shape[1] - default, default] if default else [state.shape[1]]
        return [part.clone(memory_format=torch.contiguous_format) for part in state.split(sizes, 1)]

    def features(self, x: Tensor, rows: slice, side: Side) -> Products:
        """Those of `Blocks.vectors`."""
        return self._products(self._parts(x, side), rows, side)

    def traced(self, u: Tensor, rows: slice, side: Side) -> tuple[Products, Pull]:
        """Those of rows of query or key, and the way back for gradients."""
        x = self._blocks.vectors(u, rows, side)
        with torch.enable_grad():
            parts = self._parts(x.requires_grad_(), side)
        outputs = [t for part in parts for t in (part.weights, part.values)]

        def pull(grad: list[Tensor], along: Tensor, parameters: dict[Tensor, Tensor]) -> Tensor:
            return pulled(x, outputs, grad, parameters) * self._blocks.root

        return self._products(parts, rows, side), pull

    def _parts(self, x: Tensor, side: Side) -> list[Active]:
        """On one scale a row, which has no gradient."""
        parts = self._phi.active_parts(x, side, self._phi.assign(x.detach(), side))
        scale = torch.stack([part.log_scale for part in parts]).detach().amax(0)
        return [
            part._replace(weights=part.weights * (part.log_scale - finite(scale)).exp(), log_scale=scale)
            for part in parts
        ]

    def _products(self, parts: list[Active], rows: slice, side: Side) -> Products:
        log_scale = parts[0].log_scale
        if side == "key" and self._blocks.ignore is not None:
            log_scale = log_scale.masked_fill(self._blocks.ignore[:, None, rows, None], -torch.inf)
        return _Clustered([_Part(part, side) for part in parts], log_scale.flatten(0, 1), side)


class _Clustered(Products):
    def __init__(self, parts: list[_Part], log_scale: Tensor, side: Side) -> None:
        self.parts, self.log_scale, self.side = parts, log_scale, side

    def scores(self, keys: Self) -> Tensor:
        first, *rest = (
            (own.values @ other.values.mT).mul_(own.met(other)).mul_(own.meets(other))
            for own, other in zip(self.parts, keys.parts, strict=True)
        )
        return sum(rest, first)

    def times(self, states: list[Tensor]) -> Tensor:
        first, *rest = (part.read(state) for part, state in zip(self.parts, states, strict=True))
        return sum(rest, first)

    def add_to(self, states: list[Tensor], v: Tensor) -> None:
        for part, state in zip(self.parts, states, strict=True):
            part.write(state, v)

    def gradient(self, g: Tensor, states: list[Tensor], weights: Tensor, others: Self) -> list[Tensor]:
        found = []
        for own, other, state in zip(self.parts, others.parts, states, strict=True):
            grad_weights, grad_values = own.pulled(state, g)
            both = own.meets(other).mul_(weights)
            grad_weights.baddbmm_((own.values @ other.values.mT).mul_(both), other.here)
            grad_values.baddbmm_(both.mul_(own.met(other)), other.values)
            found += [grad_weights, grad_values]
        return found


class _Part:
    """The features of one part of the map: ``label (N, T)``, ``weights (N, T, n)`` and ``values (N, T, D)``."""

    def __init__(self, active: Active, side: Side) -> None:
        self.label, self.weights, self.values = (
            t.detach().flatten(0, 1) for t in (active.label, active.weights, active.values)
        )
        self.n_labels, self.side = active.n_labels, side

    @cached_property
    def here(self) -> Tensor:
        """Indicators of the clusters, ``(N, T, n_labels)``."""
        return one_hot(self.label, self.n_labels).to(self.values.dtype)

    def met(self, other: _Part) -> Tensor:
        """The weights for the cluster of each token of the other side: ``(N, T, S)``."""
        return self.weights @ other.here.mT

    def meets(self, other: _Part) -> Tensor:
        """The weights of each token of the other side for one's own cluster: ``(N, T, S)``."""
        return self.here @ other.weights.mT

    def read(self, state: Tensor) -> Tensor:
        """Products with the states of each token's cluster: ``(N, T, c)``."""
        places = state.new_empty(*self._segments.members.shape, state.shape[-1])
        for some, rows in self._pieces():
            torch.bmm(self._wide(some), self._own(state, rows), out=places[some])
        return self._given(places)

    def write(self, state: Tensor, v: Tensor) -> None:
        """Add the products with v to the states of each token's cluster."""
        flat, rows_of_state = v.flatten(0, 1), self._rows_of(state)
        for some, rows in self._pieces():
            product = self._wide(some).mT @ self._segments.take_once(flat, some)
            rows_of_state.index_add_(0, rows.flatten(), product.view(rows.numel(), -1))

    def pulled(self, state: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of weights and values where those of `read` are g."""
        shape = self._segments.members.shape
        grad_weights, grad_values = (
            state.new_empty(*shape, t.shape[-1]) for t in (self.weights, self.values)
        )
        flat = g.flatten(0, 1)
        for some, rows in self._pieces():
            wide = self._segments.take(flat, some) @ self._own(state, rows).mT
            wide = wide.unflatten(-1, (self.weights.shape[-1], -1))  # (n, size, n, D)
            weights, values = self._taken(some)
            torch.sum(wide * values, -1, out=grad_weights[some])
            torch.sum(wide.mul_(weights), -2, out=grad_values[some])
        return self._given(grad_weights), self._given(grad_values)

    @cached_property
    def _segments(self) -> Segments:
        return by_label(self.label, self.n_labels)

    @cached_property
    def _rows(self) -> Tensor:
        """Which states (i, j), of all elements, go with each block: ``(blocks, n)``."""
        n, segment = self.weights.shape[-1], self._segments.segment.unsqueeze(-1)
        others = torch.arange(n, device=segment.device)
        if self.side == "query":
            return segment * n + others
        element, own = segment // self.n_labels, segment % self.n_labels
        return (element * n + others) * self.n_labels + own

    def _pieces(self) -> Iterator[tuple[slice, Tensor]]:
        """Some blocks after others, and the rows of states that go with them."""
        width = self.weights.shape[-1] * self.values.shape[-1]
        for some in self._segments.pieces(common.FLOATS // (width * self._segments.members.shape[-1])):
            yield some, self._rows[some]

    def _rows_of(self, state: Tensor) -> Tensor:
        return state.view(-1, self.values.shape[-1] * state.shape[-1])

    def _own(self, state: Tensor, rows: Tensor) -> Tensor:
        """The states of some blocks, ``(blocks, n·D, c)``."""
        return self._rows_of(state).index_select(0, rows.flatten()).view(len(rows), -1, state.shape[-1])

    def _taken(self, some: slice) -> tuple[Tensor, Tensor]:
        """Weights and values of some blocks, ``(blocks, size, n, 1)`` and ``(blocks, size, 1, D)``."""
        weights, values = (self._segments.take(t.flatten(0, 1), some) for t in (self.weights, self.values))
        return weights.unsqueeze(-1), values.unsqueeze(-2)

    def _wide(self, some: slice) -> Tensor:
        """All products of a weight and a feature, ``(blocks, size, n·D)``."""
        weights, values = self._taken(some)
        return (weights * values).flatten(-2)

    def _given(self, places: Tensor) -> Tensor:
        return self._segments.give(places).view(*self.label.shape, places.shape[-1])

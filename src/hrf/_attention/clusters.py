"""Attention with a `ClusteredHybrid`: exact pairs of clusters, bidirectional attention, causal attention.

Every token meets only the blocks of its own cluster. For a query of cluster i and the keys of cluster j, K̂ =
exp(xᵀrⱼ + rᵢᵀy') φ(x')ᵀφ(y') (``features/clustered.py``). The keys of each cluster become states, one for every query
cluster, on a scale of their own,

    U_ij = Σ_{y in j} exp(rᵢᵀy' − c_ij) φ(y') v(y)ᵀ,        c_ij = max_{y in j} rᵢᵀy',

and the query reads Σⱼ exp(xᵀrⱼ + c_ij) φ(x')ᵀ U_ij. Exact pairs of clusters are left out of it: there a block of
queries meets the list of all keys of its exact clusters, as in block-sparse softmax attention.

In causal attention it meets the beginning of that list. The backward pass recomputes the products, so that none of
them is kept.

Causal attention goes by chunks, with features without their zeros. A query x of cluster i has features a_j φ(x') in
the blocks (i, j) only, a key y of cluster j has b_i ψ(y') in the same ones (``features/cluster_features.py``,
`Active`), so that the estimate of a pair is a_j b_i φ(x')ᵀψ(y'). With a state S_ij, a query reads Σⱼ a_j φ(x')ᵀS_ij,
and a key adds b_i ψ(y') vᵀ to S_ij for all i: blocks of tokens of one cluster meet the states of their cluster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import one_hot
from typing_extensions import Self, override

from hrf import _core as core
from hrf import tuning
from hrf._attention.call import Call, LabelBlocks, at_once, nothing, parts, with_ones
from hrf._attention.carry import Carry, Past, prepare
from hrf._attention.cluster_sums import (
    LOG2E,
    ClusteredTokens,
    Default,
    PairEngine,
    Pairs,
    Residuals,
    added,
    by_label,
    pair_tokens,
)
from hrf._attention.denominator import Denominator
from hrf._attention.dense import ChunkFeatures, Chunks, Pull, pulled
from hrf._attention.inputs import Inputs
from hrf.features.base import FeatureMap, Side, of_heads
from hrf.features.cluster_features import Active
from hrf.features.clustered import ClusteredHybrid
from hrf.numerics import Features, finite, full_precision

__all__ = ["Clustered", "Exact", "met", "prepare_clustered", "stream"]


class Exact(PairEngine):
    """Softmax numerators."""

    @override
    def sums(self) -> Features:
        assert self.active is not None
        queries, keys = self.queries.blocks, self.keys.blocks
        lists = Lists.of(queries, keys, self.active)
        x = self.queries.tokens * (self.queries.root * self.keys.root * LOG2E)
        flat = (t.flatten(0, -2) for t in (x, self.keys.tokens, self.columns(self.values)))
        return Features(*(t.unflatten(0, (len(self.active), -1)) for t in met(queries, lists, *flat)))


class Lists(NamedTuple):
    """Lists of keys, and how many keys of a list each block of queries meets.

    Attributes:
        tokens: the keys of all lists, one list after the other.
        first: where the list of each block begins, ``(N,)``.
        lengths: how many keys from there the queries of a block meet, ``(N, 1)``, or each of them, ``(N, size)``.
    """

    tokens: Tensor
    first: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, queries: LabelBlocks, keys: LabelBlocks, exact: Tensor, last: Tensor | None = None) -> Lists:
        """List the keys that each block of queries meets.

        Args:
            queries: by cluster.
            keys: by cluster.
            exact: pairs of clusters, ``(R, n_q, n_k)``.
            last: the last key that each query may meet, ``(R·L,)``; ``None`` for all.
        """
        tokens, lengths = keys.lists(exact & (queries.counts.mT > 0))
        segment = queries.segment
        first = (lengths.cumsum(0) - lengths).index_select(0, segment)
        if last is None:
            return cls(tokens, first, lengths.index_select(0, segment).unsqueeze(-1))
        # In the order of the sequence, so that the keys up to some token are the beginning of a list.
        n_tokens = keys.place.numel()
        ranks = (torch.repeat_interleave(lengths) * n_tokens + tokens).sort().values
        bounds = segment.unsqueeze(-1) * n_tokens + last[queries.members]
        seen = torch.searchsorted(ranks, bounds, right=True) - first.unsqueeze(-1)
        return cls(ranks % n_tokens, first, seen)

    def products(self, queries: LabelBlocks, x: Tensor, y: Tensor, values: Tensor) -> Iterator[_Products]:
        """Yield batches of the blocks that meet any key."""
        both = torch.cat([y, values], -1)  # one gather is faster than two
        # Blocks that meet about as many keys go together.
        most, order = self.lengths.amax(-1).sort()
        lengths, least = most.tolist(), self.lengths.amin(-1)[order].tolist()
        for some in _batches(lengths, lengths.count(0), queries.members.shape[-1]):
            blocks = order[some]
            slots = torch.arange(lengths[some.stop - 1], device=order.device)
            places = self.first.index_select(0, blocks).unsqueeze(-1) + slots
            keys = _rows(self.tokens, places.clamp_(max=len(self.tokens) - 1))
            key, value = _rows(both, keys).split([y.shape[-1], values.shape[-1]], -1)
            members = queries.members.index_select(0, blocks)
            query = _rows(x, members)
            logs = query @ key.mT
            sure = min(least[some])
            absent = slots[sure:] >= self.lengths.index_select(0, blocks).unsqueeze(-1)
            logs[..., sure:].masked_fill_(absent, -torch.inf)
            yield _Products(blocks, members, keys, query, key, value, logs)


class _Products(NamedTuple):
    """A batch of blocks of queries with the keys that they meet.

    Attributes:
        blocks: indices of the blocks, ``(n,)``.
        members: indices of the queries, ``(n, size)``.
        keys: indices of the keys, ``(n, k)``.
        query: x, ``(n, size, d)``.
        key: y, ``(n, k, d)``.
        value: v, ``(n, k, c)``.
        logs: xᵀy, ``(n, size, k)``, −∞ where query and key do not meet.
    """

    blocks: Tensor
    members: Tensor
    keys: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    logs: Tensor


def met(queries: LabelBlocks, lists: Lists, x: Tensor, y: Tensor, values: Tensor) -> Features:
    """Sum 2^(xᵀy) v(y) over the keys that each query meets, ``(R·L, c)``; the scale is −∞ where there are none."""
    compute = _Met.apply if torch.is_grad_enabled() else _at_places
    sums, scales = compute(queries, lists, x, y, values)
    return Features(queries.give(sums), queries.give(scales))


def _at_places(
    queries: LabelBlocks, lists: Lists, x: Tensor, y: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """Return sums and their scales at all places, ``(N, size, c)`` and ``(N, size, 1)``."""
    sums = values.new_zeros(*queries.members.shape, values.shape[-1])
    scales = values.new_full((*queries.members.shape, 1), -torch.inf)
    if core.serves(x, y, values):
        blocks = queries.members, queries.filled, lists.first, lists.lengths
        tokens = (t.detach().contiguous() for t in (lists.tokens, x, y, values))
        own_lengths = lists.lengths.shape[1] > 1
        numbers = *queries.members.shape, x.shape[-1], values.shape[-1], own_lengths
        threads, is_double = torch.get_num_threads(), x.dtype == torch.float64
        given = (t.contiguous() for t in blocks)
        core.run("meet_pairs", *given, sums, scales, *tokens, *numbers, threads, is_double)
        return sums, scales
    for some in lists.products(queries, x, y, values):
        scale = some.logs.amax(-1, keepdim=True)
        scales.index_copy_(0, some.blocks, scale)
        sums.index_copy_(0, some.blocks, some.logs.sub_(finite(scale)).exp2_() @ some.value)
    return sums, scales


class _Met(torch.autograd.Function):
    """`_at_places` with gradients."""

    @staticmethod
    def forward(ctx: Any, queries: LabelBlocks, lists: Lists, x: Tensor, y: Tensor, values: Tensor) -> Any:
        sums, scales = _at_places(queries, lists, x, y, values)
        ctx.queries, ctx.lists = queries, lists
        ctx.save_for_backward(x, y, values, scales)
        ctx.mark_non_differentiable(scales)
        return sums, scales

    @staticmethod
    @once_differentiable
    @full_precision
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:
        x, y, values, scales = ctx.saved_tensors
        grad_x, grad_y, grad_values = (torch.zeros_like(t) for t in (x, y, values))
        for some in ctx.lists.products(ctx.queries, x, y, values):
            scale, g = (t.index_select(0, some.blocks) for t in (scales, grad))
            weights = some.logs.sub_(finite(scale)).exp2_()
            _add(grad_values, some.keys, weights.mT @ g)
            grad_logs = weights.mul_(g @ some.value.mT).mul_(math.log(2))
            _add(grad_x, some.members, grad_logs @ some.key)
            _add(grad_y, some.keys, grad_logs.mT @ some.query)
        return None, None, grad_x, grad_y, grad_values


def _rows(tokens: Tensor, index: Tensor) -> Tensor:
    """Gather rows of ``tokens (T, ...)`` by index ``(n, k)``: ``(n, k, ...)``."""
    return tokens.index_select(0, index.flatten()).unflatten(0, index.shape)


def _add(tokens: Tensor, index: Tensor, rows: Tensor) -> None:
    """Add rows ``(n, k, d)`` to the rows of ``tokens (T, d)`` by index, in place."""
    tokens.index_add_(0, index.flatten(), rows.flatten(0, 1))


def _batches(lengths: list[int], start: int, size: int) -> Iterator[slice]:
    """Cut blocks, ascending by number of keys, into batches with products of at most `tuning.CLUSTER_FLOATS`."""
    while start < len(lengths):
        end = start + 1
        while end < len(lengths) and lengths[end] * size * (end + 1 - start) <= tuning.CLUSTER_FLOATS:
            end += 1
        yield slice(start, end)
        start = end


def stream(
    x: Tensor,
    y: Tensor,
    values: Tensor,
    feature_map: ClusteredHybrid,
    keep: Tensor | None = None,
    root: float = 1,
    *,
    ones: bool = False,
) -> Iterator[Features]:
    """Yield Σ_y K̂(x, y) v(y) over the keys to keep, ``(rows, L, c)`` for a few rows at a time.

    Args:
        x: queries ``(..., H, L, d)``, checked.
        y: keys ``(..., H, S, d)``.
        values: ``(..., H, S, c)``.
        feature_map: the map.
        keep: booleans that broadcast to ``(..., H, S)``; ``None`` keeps all. Masked keys are not in the means
            of `ClusteredHybrid.recenter` either.
        root: √scale, which multiplies queries and keys.
        ones: add a column of ones to the values.
    """
    if not (x.numel() and y.numel()):
        yield nothing(x, y, with_ones(values) if ones else values)
        return
    if keep is not None:
        keep = keep.expand(y.shape[:-1]).reshape(-1, *y.shape[-3:-1])
    x, y, values = (t.reshape(x.shape[:-3].numel(), *t.shape[-3:]) for t in (x, y, values))
    n_tokens = pair_tokens(feature_map) if feature_map.per_pair else tuning.CLUSTER_TOKENS
    for part in parts(x, y, at_once(x, n_tokens)):
        phi = of_heads(feature_map, part[1])
        queries = ClusteredTokens.of(x[part], root, phi, "query", None)
        keys = ClusteredTokens.of(y[part], root, phi, "key", None if keep is None else keep[part])
        total: Features | None = None
        for engine in _engines(queries, keys, values[part], ones, phi):
            total = added(total, engine.sums())
        assert total is not None
        yield Features(total.values, finite(total.log_scale) / LOG2E)


def _engines(
    queries: ClusteredTokens, keys: ClusteredTokens, values: Tensor, ones: bool, phi: ClusteredHybrid
) -> list[PairEngine]:
    """Return the engines whose sums add up to the whole: for the base, the default map and exact pairs."""
    exact, served = (
        None if table is None else table.expand(*values.shape[:-2], -1, -1).flatten(0, -3)
        for table in (phi.exact, phi.served)
    )
    estimated = None if exact is None else ~exact
    arguments = queries, keys, values, ones, phi
    base = Pairs if phi.per_pair else Residuals
    engines: list[PairEngine] = [base(*arguments, _both(served, estimated))]
    if served is not None:
        engines.append(Default(*arguments, _both(~served, estimated)))
    if exact is not None:
        engines.append(Exact(*arguments, exact))
    return engines


def _both(pairs: Tensor | None, others: Tensor | None) -> Tensor | None:
    """Return the pairs of clusters that are in both tables; ``None`` has all."""
    return others if pairs is None else pairs if others is None else pairs & others


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


def prepare_clustered(
    inputs: Inputs, feature_map: ClusteredHybrid, rule: Denominator, carry: Carry | None = None
) -> tuple[Call, tuple[Tensor | None, ...]]:
    """Describe a causal call, with the sums over exact pairs among its tensors.

    Key centres stay where they were fitted: centres that move with the keys would let later keys in.
    """
    feature_map = feature_map.with_fixed_centres()
    if feature_map.exact is None:
        return prepare(inputs, feature_map, rule, carry)
    past = _past(inputs, feature_map, None if carry is None else carry.past)
    estimated = _Estimated(feature_map) if feature_map.per_pair else feature_map
    call, tensors = prepare(inputs, estimated, rule, carry, past)
    return call, (*tensors[:5], *_sums(inputs, past, feature_map))


class _Estimated(FeatureMap):
    """The pairs of a clustered hybrid that are not exact. The scale of their features has no gradient."""

    def __init__(self, whole: ClusteredHybrid) -> None:
        super().__init__()
        self.whole = whole
        self.dim, self.heads, self.feature_dim = whole.dim, whole.heads, whole.feature_dim

    @property
    @override
    def nonnegative(self) -> bool:
        return self.whole.nonnegative

    @override
    def scaled(self, x: Tensor, side: Side) -> Features:
        return self.whole.estimated_features(x, side)


def _past(inputs: Inputs, phi: ClusteredHybrid, before: Past | None) -> Past:
    """Append the keys of ``inputs`` to the keys before them; the label of ignored keys is n_k."""
    label = phi.assign(inputs.key.detach().to(inputs.dtype) * inputs.root, "key")
    if inputs.ignore is not None:
        label = label.masked_fill(inputs.ignore.unsqueeze(1), phi.n_k)
    new = Past(inputs.key, inputs.value, label)
    parts = [new] if before is None else [before, new]
    # Copied in any case: a state owns its tensors.
    return Past(*(torch.cat(some, 2) for some in zip(*parts, strict=True)))


def _sums(inputs: Inputs, past: Past, phi: ClusteredHybrid) -> Features:
    """Sum exp(xᵀy) (v(y), 1) over the exact pairs of each query with the keys up to it: ``(B·H, L, d_v + 1)``.

    The last keys of ``past`` are those of ``inputs``.
    """
    assert phi.exact is not None
    x = inputs.query.to(inputs.dtype) * inputs.root
    (n_rows, length), n_keys, n_new = x.flatten(0, 1).shape[:2], past.key.shape[2], inputs.key.shape[2]
    queries = by_label(phi.assign(x.detach(), "query").flatten(0, 1), phi.n_q)
    keys = by_label(past.label.flatten(0, 1), phi.n_k)
    exact = phi.exact.expand(*x.shape[:2], -1, -1).flatten(0, 1)
    position = torch.arange(length, device=x.device) * n_new // max(1, length) + n_keys - n_new
    last = position + n_keys * torch.arange(n_rows, device=x.device).unsqueeze(-1)
    y, v = (t.to(inputs.dtype).flatten(0, 2) for t in past[:2])
    lists = Lists.of(queries, keys, exact, last.flatten())
    values, scale = met(queries, lists, x.flatten(0, 2) * (LOG2E * inputs.root), y, with_ones(v))
    return Features(*(t.unflatten(0, (n_rows, length)) for t in (values, scale / LOG2E)))

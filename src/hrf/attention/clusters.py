"""Attention with a clustered hybrid, exactly: every token meets only the blocks of its own cluster.

For a query of cluster i and the keys of cluster j, K̂ = exp(xᵀrⱼ + rᵢᵀy') φ(x')ᵀφ(y') (``features/clustered.py``).
The keys of each cluster become states, one for every query cluster, on a scale of their own,

    U_ij = Σ_{y in j} exp(rᵢᵀy' − c_ij) φ(y') v(y)ᵀ,        c_ij = max_{y in j} rᵢᵀy',

and the query reads Σⱼ exp(xᵀrⱼ + c_ij) φ(x')ᵀ U_ij. Pairs of clusters that are exact are left out of it: there
a block of queries meets the list of all keys of its exact clusters, as in block-sparse softmax attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hrf.attention.segments import Blocks, finite, joined, nothing, with_ones
from hrf.features.base import Features, Side
from hrf.features.clustered import ClusteredHybrid
from hrf.features.grouping import Groups, gather_rows

__all__ = ["stream", "sums"]

_SIZE = (16, 64)  # least and most tokens of a block
_TOKENS = 1 << 14  # tokens at a time, and numbers of a product: they stay in the cache
_FLOATS = 1 << 18

# Logarithms are to the base 2 in here: where they underflow, exp is up to 100 times slower than exp2.
_LOG2E = math.log2(math.e)


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
    """Σ_y K̂(x, y) v(y), over the keys to keep, for some rows of queries after others: ``(rows, L, c)``.

    Args:
        x: queries ``(..., H, L, d)``, checked.
        y: keys ``(..., H, S, d)``.
        values: ``(..., H, S, c)``.
        feature_map: the map.
        keep: booleans that broadcast to ``(..., H, S)``; ``None`` keeps all. Masked keys are not in the means
            of `ClusteredHybrid.recenter` either.
        root: what multiplies queries and keys.
        ones: add a column of ones to the values.
    """
    values = with_ones(values) if ones else values
    if not (x.shape[-2] and y.shape[-2]):
        yield nothing(x, y, values)
        return
    x, y = x * root, y * root
    queries = _Clusters.of(x, feature_map, "query", None)
    keys = _Clusters.of(y, feature_map, "key", keep)
    exact, served = (
        None if table is None else table.expand(*x.shape[:-2], -1, -1).flatten(0, -3)
        for table in (feature_map.exact, feature_map.served)
    )
    estimated = None if exact is None else ~exact
    flat = values.reshape(-1, values.shape[-1])
    arguments = queries, keys, flat, feature_map
    base = _Pairs if feature_map._per_pair else _Residuals
    engines: list[_Engine] = [base(*arguments, _both(served, estimated))]
    if served is not None:
        engines.append(_Default(*arguments, _both(~served, estimated)))
    if exact is not None:
        engines.append(_Exact(*arguments, exact))
    n_rows = queries.centers.shape[0]
    step = max(1, _TOKENS // max(x.shape[-2], y.shape[-2]))
    for start in range(0, n_rows, step):
        end = min(start + step, n_rows)
        total, scale = _merged([engine.rows(start, end) for engine in engines])
        yield Features(*(t.unflatten(0, (end - start, -1)) for t in (total, scale / _LOG2E)))


def sums(
    x: Tensor, y: Tensor, values: Tensor, feature_map: ClusteredHybrid, keep: Tensor | None = None
) -> Features:
    """What `stream` gives, for all queries at once: ``(..., H, L, c)``."""
    return joined(stream(x, y, values, feature_map, keep), x)


def _both(pairs: Tensor | None, others: Tensor | None) -> Tensor | None:
    """Pairs of clusters that are in both tables; ``None`` has all."""
    return others if pairs is None else pairs if others is None else pairs & others


def _merged(parts: list[Features]) -> Features:
    """The sum of all parts, on one scale a token; a scale of −∞ is that of nothing."""
    scale = parts[0].log_scale.detach()
    for part in parts[1:]:
        scale = torch.maximum(scale, part.log_scale.detach())
    scale = finite(scale)
    total = parts[0].values * (parts[0].log_scale - scale).exp2()
    for part in parts[1:]:
        total = torch.addcmul(total, part.values, (part.log_scale - scale).exp2())
    return Features(total, scale)


class _Clusters(NamedTuple):
    """Queries or keys by cluster, n clusters in R rows.

    Attributes:
        tokens: as they came, ``(..., H, L, d)``.
        labels: their clusters, ``(..., H, L)``; n for those to leave out.
        blocks: tokens by cluster.
        centers: ``(R, n, d)``.
    """

    tokens: Tensor
    labels: Tensor
    blocks: Blocks
    centers: Tensor

    @classmethod
    def of(cls, u: Tensor, phi: ClusteredHybrid, side: Side, keep: Tensor | None) -> _Clusters:
        centers = (phi.query_centers if side == "query" else phi.key_centers).to(u.dtype)
        n = centers.shape[-2]
        labels = phi.assign(u.detach(), side)
        if keep is not None:
            labels = labels.where(keep, n)
        size = min(max(u.shape[-2] // n, _SIZE[0]), _SIZE[1])
        blocks = Blocks.of(labels.reshape(-1, 1, u.shape[-2]), n, size)
        centers = centers.expand(*u.shape[:-2], -1, -1).flatten(0, -3)
        if side == "key" and phi.recenter:
            members = blocks.take(u.reshape(-1, u.shape[-1]))
            totals = blocks.add((blocks.filled.unsqueeze(-2).to(u.dtype) @ members).squeeze(-2))
            counts = blocks.counts.view(-1, n, 1)
            centers = torch.where(counts > 0, totals.view(centers.shape) / counts.clamp(min=1), centers)
        return cls(u, labels, blocks, centers)

    def flat(self) -> Tensor:
        """All tokens one after the other, ``(R·L, d)``."""
        return self.tokens.reshape(-1, self.tokens.shape[-1])

    def residuals(self) -> Tensor:
        """What a token is from its centre, ``(..., H, L, d)``; anything if it is left out."""
        centers = self.centers.view(*self.tokens.shape[:-2], *self.centers.shape[-2:])
        return self.tokens - gather_rows(centers, self.labels.clamp(max=centers.shape[-2] - 1))


class _Engine:
    """Sums over some pairs of clusters, ``active (R, n_q, n_k)``, ``None`` for all."""

    def __init__(
        self, queries: _Clusters, keys: _Clusters, values: Tensor, phi: ClusteredHybrid, active: Tensor | None
    ) -> None:
        self.queries, self.keys, self.values, self.phi, self.active = queries, keys, values, phi, active
        self.x, self.y = queries.flat() * _LOG2E, keys.flat()
        self.prepare()

    def prepare(self) -> None:
        """What is done for all rows at once."""

    def rows(self, start: int, end: int) -> Features:
        """The sums for the queries of some rows, ``(rows·L, c)``; a scale of −∞ where there is nothing."""
        raise NotImplementedError

    def _masked(self, table: Tensor, start: int, end: int) -> Tensor:
        """Scales of states, ``(rows, n_q, n_k)``, without those that do not count."""
        return table if self.active is None else table.masked_fill(~self.active[start:end], -torch.inf)


class _Residuals(_Engine):
    """For ``separable``, ``shifted`` and ``shrunk``."""

    features: tuple[Features | None, Features | None] = (None, None)

    def prepare(self) -> None:
        if self.phi.feature_map is not None:
            of = self.phi._of_residuals
            self.features = of(self.queries.residuals(), "query"), of(self.keys.residuals(), "key")

    def rows(self, start: int, end: int) -> Features:
        query_centers, key_centers = (side.centers[start:end] for side in (self.queries, self.keys))
        queries, keys = (side.blocks.rows(start, end) for side in (self.queries, self.keys))
        phi_x, phi_y = self.features
        query_centers = query_centers * _LOG2E
        states, scale = _write(keys, self._logs(keys, self.y, query_centers), phi_y, self.values)
        table = self._masked(scale.mT - query_centers @ key_centers.mT, start, end)
        states = states.transpose(1, 2).flatten(2, 3)  # (rows, n_q, n_k·D, c)
        return _read(queries, self._logs(queries, self.x, key_centers), table, phi_x, states)

    def _logs(self, blocks: Blocks, tokens: Tensor, centers: Tensor) -> Tensor:
        """Products with all centres of the other side, ``(N, size, n)``."""
        row = blocks.segment // blocks.counts.shape[-1]
        return blocks.take(tokens) @ centers.index_select(0, row).mT


class _Default(_Engine):
    """The default map."""

    def prepare(self) -> None:
        assert self.phi.default is not None
        self.features = [
            self.phi.default._scaled(self.queries.tokens, "query"),
            self.phi.default._scaled(self.keys.tokens, "key"),
        ]

    def rows(self, start: int, end: int) -> Features:
        queries, keys = (side.blocks.rows(start, end) for side in (self.queries, self.keys))
        phi_x, phi_y = self.features
        states, scale = _write(keys, self.y.new_zeros(*keys.members.shape, 1), phi_y, self.values)
        logs = self._masked(scale.mT.expand(-1, self.phi.n_q, -1), start, end)
        largest = logs.amax(-1, keepdim=True)
        mixed = (logs - finite(largest)).exp2() @ states.flatten(2)  # (rows, n_q, D·c)
        mixed = mixed.unflatten(-1, states.shape[-2:])
        return _read(queries, self.x.new_zeros(*queries.members.shape, 1), largest, phi_x, mixed)


def _write(blocks: Blocks, logs: Tensor, phi: Features | None, values: Tensor) -> tuple[Tensor, Tensor]:
    """States Σ 2^(logs − s) φ(y) v(y)ᵀ of each cluster, ``(R, n, k, D, c)``, and their scales s ``(R, n, k)``.

    Args:
        blocks: keys by cluster.
        logs: k weights for each place, ``(N, size, k)``, to be overwritten.
        phi: features of all keys; ``None`` is 1.
        values: of all keys, ``(R·S, c)``.
    """
    n_rows, k = blocks.counts.shape[0], logs.shape[-1]
    if phi is not None:
        logs += blocks.take(phi.log_scale.flatten(0, -2) * _LOG2E)
    scale = blocks.largest(logs.detach().amax(1))
    weights = logs.sub_(finite(scale).index_select(0, blocks.segment).unsqueeze(1)).exp2_()
    width = k * (1 if phi is None else phi.values.shape[-1])
    states = values.new_zeros(len(scale), width * values.shape[-1])
    for some in blocks.pieces(_FLOATS // (width * logs.shape[1])):
        product = _wide(weights, phi, blocks, some).mT @ blocks.take_once(values, some)
        states = states.index_add_(0, blocks.segment[some], product.flatten(1))
    return states.view(n_rows, -1, k, width // k, values.shape[-1]), scale.view(n_rows, -1, k)


def _read(blocks: Blocks, logs: Tensor, table: Tensor, phi: Features | None, states: Tensor) -> Features:
    """Σ 2^(logs + table) φ(x)ᵀ state with the states of each query's cluster: ``(R·L, c)``.

    Args:
        blocks: queries by cluster.
        logs: k weights for each place, ``(N, size, k)``, to be overwritten.
        table: what the cluster adds to them, ``(R, n, k)``.
        phi: features of all queries; ``None`` is 1.
        states: ``(R, n, k·D, c)``.
    """
    logs += table.flatten(0, 1).index_select(0, blocks.segment).unsqueeze(1)
    scale = logs.detach().amax(-1, keepdim=True)
    weights = logs.sub_(finite(scale)).exp2_()
    states = states.flatten(0, 1)
    parts = [
        _wide(weights, phi, blocks, some) @ states.index_select(0, blocks.segment[some])
        for some in blocks.pieces(_FLOATS // (states.shape[1] * logs.shape[1]))
    ]
    if phi is not None:
        scale = scale + blocks.take(phi.log_scale.flatten(0, -2) * _LOG2E)
    return Features(blocks.give(torch.cat(parts)), blocks.give(scale))


def _wide(weights: Tensor, phi: Features | None, blocks: Blocks, some: slice) -> Tensor:
    """All products of a weight and a feature: ``(n, size, k·D)``."""
    if phi is None:
        return weights[some]
    features = blocks.take(phi.values.flatten(0, -2), some)
    return (weights[some].unsqueeze(-1) * features.unsqueeze(-2)).flatten(-2)


class _Exact(_Engine):
    """exp(xᵀy) itself: blocks of queries, each with the list of the keys that it meets."""

    def rows(self, start: int, end: int) -> Features:
        assert self.active is not None
        blocks = self.queries.blocks.rows(start, end)
        n_blocks, size = blocks.members.shape
        lists, lengths = self.keys.blocks.rows(start, end).lists(self.active[start:end])
        first = (lengths.cumsum(0) - lengths).index_select(0, blocks.segment)
        # Blocks that meet about as many keys go together.
        lengths, order = lengths.index_select(0, blocks.segment).sort()
        first = first[order]
        n_idle = int((lengths == 0).sum())
        sums = [self.values.new_zeros(n_idle, size, self.values.shape[-1])]
        scales = [self.values.new_full((n_idle, size, 1), -torch.inf)]
        for some, least, most in _batches(lengths.tolist(), n_idle, size):
            slots = torch.arange(most, device=order.device)
            members = lists[(first[some].unsqueeze(-1) + slots).clamp_(max=len(lists) - 1)]
            k, v = (
                t.index_select(0, members.flatten()).view(*members.shape, -1) for t in (self.y, self.values)
            )
            logs = blocks.take(self.x, order[some]) @ k.mT
            absent = slots[least:] >= lengths[some].unsqueeze(-1)
            logs[..., least:].masked_fill_(absent.unsqueeze(-2), -torch.inf)
            scales.append(logs.detach().amax(-1, keepdim=True))
            sums.append(logs.sub_(scales[-1]).exp2_() @ v)
        rank = torch.empty_like(order).scatter_(0, order, torch.arange(n_blocks, device=order.device))
        place = rank[blocks.place // size] * size + blocks.place % size
        return Features(
            *(torch.cat(t).flatten(0, 1).index_select(0, place.flatten()) for t in (sums, scales))
        )


def _batches(lengths: list[int], start: int, size: int) -> Iterator[tuple[slice, int, int]]:
    """Blocks by number of keys, ascending, in products of at most `_FLOATS`; with the least and the most keys."""
    while start < len(lengths):
        end = start + 1
        while end < len(lengths) and lengths[end] * size * (end + 1 - start) <= _FLOATS:
            end += 1
        yield slice(start, end), lengths[start], lengths[end - 1]
        start = end


class _Pairs(_Engine):
    """For ``paper`` and ``moments``, a map a pair of clusters.

    Clusters are padded to the largest, and some places of all of them are mapped at a time.
    """

    def prepare(self) -> None:
        states, table = self._states()
        if self.active is not None:
            table = table.masked_fill(~self.active.view(table.shape), -torch.inf)
        groups = Groups.of(self.queries.labels, self.phi.n_q)
        sums, scales = [], []
        for some in self._places(groups.filled):
            tokens = gather_rows(self.queries.tokens, groups.members[..., some])
            features, logs = self._map(tokens.unsqueeze(-3), "query")
            logs = logs + table
            scale = logs.detach().amax(-3, keepdim=True)
            weighted = features * (logs - finite(scale)).exp()
            sums.append(weighted.transpose(-3, -2).flatten(-2) @ states)  # (..., n_q, places, c)
            scales.append(scale.squeeze(-3) * _LOG2E)
        index = self.queries.labels * groups.filled.shape[-1] + groups.place
        self.sums = [
            gather_rows(torch.cat(t, -2).flatten(-3, -2), index).flatten(0, -3) for t in (sums, scales)
        ]

    def rows(self, start: int, end: int) -> Features:
        return Features(*(t[start:end].flatten(0, 1) for t in self.sums))

    def _states(self) -> tuple[Tensor, Tensor]:
        """Sums of φ(y) v(y)ᵀ for all pairs, ``(..., n_q, n_k·D, c)``, and their scales ``(..., n_q, n_k, 1, 1)``."""
        phi, values = self.phi, self.values.view(*self.keys.labels.shape, -1)
        assert phi.feature_map is not None
        groups = Groups.of(self.keys.labels, phi.n_k + 1)  # the last are those left out
        groups = Groups(groups.members[..., :-1, :], groups.filled[..., :-1, :], groups.place)
        table = values.new_full((*values.shape[:-2], phi.n_q, phi.n_k, 1, 1), -torch.inf)
        states = values.new_zeros(*table.shape[:-2], phi.feature_map.feature_dim, values.shape[-1])
        for some in self._places(groups.filled):
            members, empty = groups.members[..., some], ~groups.filled[..., some].unsqueeze(-1)
            features, logs = self._map(gather_rows(self.keys.tokens, members).unsqueeze(-4), "key")
            logs = logs.masked_fill(empty.unsqueeze(-4), -torch.inf)
            scale = torch.maximum(table, logs.detach().amax(-2, keepdim=True))
            weighted = features * (logs - finite(scale)).exp()
            product = weighted.mT @ gather_rows(values, members).masked_fill(empty, 0).unsqueeze(-4)
            states = states * (table - finite(scale)).exp() + product
            table = scale
        return states.flatten(-3, -2), table

    def _map(self, u: Tensor, side: Side) -> Features:
        """Features of ``(..., H, n_q or 1, n_k or 1, places, d)`` by the map of every pair of clusters."""
        phi = self.phi
        assert phi.feature_map is not None
        every = u.expand(*u.shape[:-4], phi.n_q, phi.n_k, -1, -1)
        features = phi.feature_map._scaled(every.flatten(-4 if phi.heads is None else -5, -3), side)
        return Features(*(t.view(*every.shape[:-1], -1) for t in features))

    def _places(self, filled: Tensor) -> list[slice]:
        """Places of the clusters that hold tokens, so many at a time that their features stay small."""
        assert self.phi.feature_map is not None
        n_places = int(filled.sum(-1).max())
        n_rows = self.queries.centers.shape[0] * self.phi.n_q * self.phi.n_k
        step = max(1, _FLOATS // (n_rows * self.phi.feature_map.feature_dim))
        return [slice(start, min(start + step, n_places)) for start in range(0, n_places, step)]

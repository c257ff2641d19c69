"""Attention with a clustered hybrid, exactly: every token meets only the blocks of its own cluster.

For a query of cluster i and the keys of cluster j, K̂ = exp(xᵀrⱼ + rᵢᵀy') φ(x')ᵀφ(y') (``features/clustered.py``).
The keys of each cluster become states, one for every query cluster, on a scale of their own,

    U_ij = Σ_{y in j} exp(rᵢᵀy' − c_ij) φ(y') v(y)ᵀ,        c_ij = max_{y in j} rᵢᵀy',

and the query reads Σⱼ exp(xᵀrⱼ + c_ij) φ(x')ᵀ U_ij. Pairs of clusters that are exact are left out of it: there
a block of queries meets the list of all keys of its exact clusters, as in block-sparse softmax attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hrf.attention.segments import Blocks, finite
from hrf.features.base import Features, Side
from hrf.features.clustered import ClusteredHybrid
from hrf.features.grouping import Groups, gather_rows

__all__ = ["sums"]

_SIZE = (16, 64)  # least and most tokens of a block
_FLOATS = 1 << 20  # at a time: they stay in the cache


def sums(
    x: Tensor, y: Tensor, values: Tensor, feature_map: ClusteredHybrid, keep: Tensor | None = None
) -> Features:
    """Σ_y K̂(x, y) v(y) for all queries, over the keys to keep.

    Args:
        x: queries ``(..., H, L, d)``, scaled and checked.
        y: keys ``(..., H, S, d)``.
        values: ``(..., H, S, c)``.
        feature_map: the map.
        keep: booleans that broadcast to ``(..., H, S)``; ``None`` keeps all. Masked keys are not in the means
            of `ClusteredHybrid.recenter` either.
    """
    if not (x.shape[-2] and y.shape[-2]):
        return Features(x @ y.mT @ values, torch.zeros_like(x[..., :1]))
    queries = _Clusters.of(x, feature_map, "query", None)
    keys = _Clusters.of(y, feature_map, "key", keep)
    c = values.shape[-1]
    flat = values.reshape(-1, c)
    exact, served = (
        None if table is None else table.expand(*x.shape[:-2], -1, -1).flatten(0, -3)
        for table in (feature_map.exact, feature_map.served)
    )
    rest = exact if exact is None else ~exact
    by_base = rest if served is None else served if rest is None else served & rest
    base = _pair_sums if feature_map._per_pair else _residual_sums
    parts = [base(queries, keys, flat, feature_map, by_base)]
    if served is not None:
        unserved = ~served if rest is None else ~served & rest
        parts.append(_default_sums(queries, keys, flat, feature_map, unserved))
    if exact is not None:
        parts.append(_exact_sums(queries, keys, flat, exact))
    scale = finite(torch.stack([part.log_scale for part in parts]).detach().amax(0))
    scaled = [part.values * (part.log_scale - scale).exp() for part in parts]
    total = sum(scaled[1:], start=scaled[0])
    return Features(total.view(*x.shape[:-1], c), scale.view(*x.shape[:-1], 1))


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
            totals = (blocks.filled.unsqueeze(-2).to(u.dtype) @ members).squeeze(-2)
            counts = blocks.counts.view(-1, n, 1)
            means = blocks.add(totals).view(centers.shape) / counts.clamp(min=1)
            centers = torch.where(counts > 0, means, centers)
        return cls(u, labels, blocks, centers)

    @property
    def rows(self) -> Tensor:
        """Tokens ``(R, L, d)``."""
        return self.tokens.flatten(0, -3)

    def residuals(self) -> Tensor:
        """What a token is from its centre, ``(..., H, L, d)``; anything if it is left out."""
        lead, n = self.tokens.shape[:-2], self.centers.shape[-2]
        centers = self.centers.view(*lead, *self.centers.shape[-2:])
        return self.tokens - gather_rows(centers, self.labels.clamp(max=n - 1))


def _residual_sums(
    queries: _Clusters, keys: _Clusters, values: Tensor, phi: ClusteredHybrid, active: Tensor | None
) -> Features:
    """The sums for ``separable``, ``shifted`` and ``shrunk`` over the pairs of clusters ``active (R, n_q, n_k)``."""
    between = queries.centers @ keys.centers.mT
    logs_x, logs_y = queries.rows @ keys.centers.mT, keys.rows @ queries.centers.mT
    phi_x = phi_y = None
    extra = logs_x.new_zeros(())
    if phi.feature_map is not None:
        phi_x, scale_x = phi._of_residuals(queries.residuals(), "query")
        phi_y, scale_y = phi._of_residuals(keys.residuals(), "key")
        extra, logs_y = scale_x.flatten(0, -3), logs_y + scale_y.flatten(0, -3)
    states, scale = _write(keys.blocks, logs_y, phi_y, values)  # (R, n_k, n_q, D, c), (R, n_k, n_q)
    table = scale.mT - between
    if active is not None:
        table = table.masked_fill(~active, -torch.inf)
    states = states.transpose(1, 2).flatten(2, 3).flatten(0, 1)  # (R·n_q, n_k·D, c)
    sums = _read(queries.blocks, logs_x, table.flatten(0, 1), phi_x, states)
    return Features(sums.values, sums.log_scale + extra)


def _default_sums(
    queries: _Clusters, keys: _Clusters, values: Tensor, phi: ClusteredHybrid, active: Tensor
) -> Features:
    """The sums of the default map over the pairs of clusters ``active (R, n_q, n_k)``."""
    assert phi.default is not None
    phi_x, scale_x = phi.default._scaled(queries.tokens, "query")
    phi_y, scale_y = phi.default._scaled(keys.tokens, "key")
    states, scale = _write(
        keys.blocks, scale_y.flatten(0, -3), phi_y, values
    )  # (R, n_k, 1, D, c), (R, n_k, 1)
    logs = scale.mT.masked_fill(~active, -torch.inf)  # (R, n_q, n_k)
    largest = logs.amax(-1, keepdim=True)
    mixed = (logs - finite(largest)).exp() @ states.flatten(2)
    mixed = mixed.view(-1, *states.shape[-2:])  # (R·n_q, D, c)
    return _read(queries.blocks, scale_x.flatten(0, -3), largest.flatten(0, 1), phi_x, mixed)


def _write(blocks: Blocks, logs: Tensor, phi: Tensor | None, values: Tensor) -> tuple[Tensor, Tensor]:
    """States Σ exp(logs − c) φ(y) v(y)ᵀ of each cluster, ``(R, n, k, D, c)``, and their scales c ``(R, n, k)``.

    Args:
        blocks: keys by cluster.
        logs: k weights a key, ``(R, S, k)``.
        phi: ``(..., S, D)``; ``None`` is 1.
        values: ``(R·S, c)``.
    """
    k = logs.shape[-1]
    weights = blocks.take(logs.reshape(-1, k)).masked_fill_(~blocks.filled.unsqueeze(-1), -torch.inf)
    scale = blocks.largest(weights.detach().amax(1))
    weights = weights.sub_(finite(scale).index_select(0, blocks.segment).unsqueeze(1)).exp_()
    width = k * (1 if phi is None else phi.shape[-1])
    states = values.new_zeros(len(scale), width * values.shape[-1])
    for some in blocks.pieces(_FLOATS // (width * blocks.members.shape[-1])):
        wide = weights[some] if phi is None else _outer(weights[some], blocks.take(phi.flatten(0, -2), some))
        product = wide.mT @ blocks.take(values, some)
        states = states.index_add_(0, blocks.segment[some], product.flatten(1))
    n_rows = logs.shape[0]
    return states.view(n_rows, -1, k, width // k, values.shape[-1]), scale.view(n_rows, -1, k)


def _read(blocks: Blocks, logs: Tensor, table: Tensor, phi: Tensor | None, states: Tensor) -> Features:
    """Σ exp(logs + table) φ(x)ᵀ state for the states of each query's cluster: ``(R·L, c)``.

    Args:
        blocks: queries by cluster.
        logs: k weights a query, ``(R, L, k)``.
        table: what its cluster adds to them, ``(R·n, k)``.
        phi: ``(..., L, D)``; ``None`` is 1.
        states: ``(R·n, k·D, c)``.
    """
    weights = blocks.take(logs.reshape(-1, logs.shape[-1]))
    weights += table.index_select(0, blocks.segment).unsqueeze(1)
    scale = weights.detach().amax(-1, keepdim=True)
    weights = weights.sub_(finite(scale)).exp_()
    parts = []
    for some in blocks.pieces(_FLOATS // (states.shape[1] * blocks.members.shape[-1])):
        wide = weights[some] if phi is None else _outer(weights[some], blocks.take(phi.flatten(0, -2), some))
        parts.append(wide @ states.index_select(0, blocks.segment[some]))
    shape = (*logs.shape[:-1], -1)
    return Features(*(blocks.give(t).view(shape) for t in (torch.cat(parts), scale)))


def _outer(weights: Tensor, phi: Tensor) -> Tensor:
    """``(N, size, k), (N, size, D) -> (N, size, k·D)``."""
    return (weights.unsqueeze(-1) * phi.unsqueeze(-2)).flatten(-2)


def _exact_sums(queries: _Clusters, keys: _Clusters, values: Tensor, exact: Tensor) -> Features:
    """Σ exp(xᵀy) v(y) over the pairs of clusters ``exact (R, n_q, n_k)``."""
    blocks = queries.blocks
    size = blocks.members.shape[-1]
    x, y = queries.rows.flatten(0, 1), keys.rows.flatten(0, 1)
    lists, lengths = keys.blocks.lists(exact)
    first = (lengths.cumsum(0) - lengths).index_select(0, blocks.segment)
    # Blocks of queries that meet about as many keys go together.
    lengths, order = lengths.index_select(0, blocks.segment).sort()
    first = first[order]
    n_idle = int((lengths == 0).sum())
    sums = [values.new_zeros(n_idle, size, values.shape[-1])]
    scales = [values.new_full((n_idle, size, 1), -torch.inf)]
    for some, least, most in _batches(lengths.tolist(), n_idle, size):
        slots = torch.arange(most, device=x.device)
        members = lists[(first[some].unsqueeze(-1) + slots).clamp_(max=len(lists) - 1)]
        k, v = (t.index_select(0, members.flatten()).view(*members.shape, -1) for t in (y, values))
        logs = blocks.take(x, order[some]) @ k.mT
        over = slots[least:] >= lengths[some].unsqueeze(-1)
        logs[..., least:].masked_fill_(over.unsqueeze(-2), -torch.inf)
        scales.append(logs.detach().amax(-1, keepdim=True))
        sums.append(logs.sub_(scales[-1]).exp_() @ v)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    shape = (*queries.rows.shape[:-1], -1)
    return Features(*(blocks.give(torch.cat(t).index_select(0, place)).view(shape) for t in (sums, scales)))


def _batches(lengths: list[int], start: int, size: int) -> Iterator[tuple[slice, int, int]]:
    """Blocks by number of keys, ascending, that make a product of at most `_FLOATS`; the least and the most keys."""
    while start < len(lengths):
        end = start + 1
        while end < len(lengths) and lengths[end] * size * (end + 1 - start) <= _FLOATS:
            end += 1
        yield slice(start, end), lengths[start], lengths[end - 1]
        start = end


def _pair_sums(
    queries: _Clusters, keys: _Clusters, values: Tensor, phi: ClusteredHybrid, active: Tensor | None
) -> Features:
    """The sums for ``paper`` and ``moments``, one map a pair of clusters, over the pairs ``active (R, n_q, n_k)``.

    Clusters are padded to the largest, and some places of all of them are mapped at a time.
    """
    assert phi.feature_map is not None
    *lead, length, _ = queries.tokens.shape
    q, k = Groups.of(queries.labels, phi.n_q), Groups.of(keys.labels, phi.n_k + 1)
    table = values.new_full((*lead, phi.n_q, phi.n_k, 1, 1), -torch.inf)
    states = values.new_zeros(*table.shape[:-2], phi.feature_map.feature_dim, values.shape[-1])
    members, filled = k.members[..., : phi.n_k, :], k.filled[..., : phi.n_k, :]
    values = values.view(*keys.tokens.shape[:-1], -1)
    for some in _places(filled, phi):
        empty = ~filled[..., some].unsqueeze(-1)
        features, logs = _map_pairs(gather_rows(keys.tokens, members[..., some]).unsqueeze(-4), phi, "key")
        logs = logs.masked_fill(empty.unsqueeze(-4), -torch.inf)
        largest = torch.maximum(table, logs.detach().amax(-2, keepdim=True))
        weighted = features * (logs - finite(largest)).exp()
        v = gather_rows(values, members[..., some]).masked_fill(empty, 0)
        product = weighted.mT @ v.unsqueeze(-4)
        states = states * (table - finite(largest)).exp() + product
        table = largest
    if active is not None:
        table = table.masked_fill(~active.view(table.shape), -torch.inf)
    states = states.flatten(-3, -2)
    sums, scales = [], []
    for some in _places(q.filled, phi):
        features, logs = _map_pairs(
            gather_rows(queries.tokens, q.members[..., some]).unsqueeze(-3), phi, "query"
        )
        logs = logs + table
        scale = logs.detach().amax(-3, keepdim=True)
        weighted = features * (logs - finite(scale)).exp()
        sums.append(weighted.transpose(-3, -2).flatten(-2) @ states)  # (..., n_q, places, c)
        scales.append(scale.squeeze(-3))
    index = queries.labels * q.filled.shape[-1] + q.place
    shape = (-1, length)
    return Features(
        *(
            gather_rows(torch.cat(t, -2).flatten(-3, -2), index).reshape(*shape, t[0].shape[-1])
            for t in (sums, scales)
        )
    )


def _map_pairs(u: Tensor, phi: ClusteredHybrid, side: Side) -> Features:
    """Features of ``u (..., H, n_q or 1, n_k or 1, places, d)`` by the map of every pair of clusters."""
    assert phi.feature_map is not None
    every = u.expand(*u.shape[:-4], phi.n_q, phi.n_k, -1, -1)
    features = phi.feature_map._scaled(every.flatten(-4 if phi.heads is None else -5, -3), side)
    return Features(*(t.view(*every.shape[:-1], -1) for t in features))


def _places(filled: Tensor, phi: ClusteredHybrid) -> list[slice]:
    """Places of the clusters that hold tokens, so many at a time that their features stay small."""
    assert phi.feature_map is not None
    n_places = int(filled.sum(-1).max())
    rows = filled[..., 0].numel() * max(phi.n_q, phi.n_k)
    step = max(1, _FLOATS // (rows * phi.feature_map.feature_dim))
    return [slice(start, min(start + step, n_places)) for start in range(0, n_places, step)]

"""Attention with a clustered hybrid, exactly: every token meets only the blocks of its own cluster.

For a query of cluster i and the keys of cluster j, K̂ = exp(xᵀrⱼ + rᵢᵀy') φ(x')ᵀφ(y') (``features/clustered.py``).
The keys of each cluster become states, one for every query cluster, on a scale of their own,

    U_ij = Σ_{y in j} exp(rᵢᵀy' − c_ij) φ(y') v(y)ᵀ,        c_ij = max_{y in j} rᵢᵀy',

and the query reads Σⱼ exp(xᵀrⱼ + c_ij) φ(x')ᵀ U_ij. Pairs of clusters that are exact are left out of it: there
a block of queries meets the list of all keys of its exact clusters, as in block-sparse softmax attention.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hrf.attention.clusters import common
from hrf.attention.clusters.common import LOG2E, Clusters, Engine
from hrf.attention.clusters.exact import Exact
from hrf.attention.clusters.pairs import Pairs
from hrf.attention.clusters.wide import Wide
from hrf.attention.segments import Blocks, joined, nothing, with_ones
from hrf.features.base import Features, finite
from hrf.features.clustered import ClusteredHybrid

__all__ = ["stream", "sums"]

_TOKENS = 1 << 14  # tokens at a time: they stay in the cache


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
    if not (x.numel() and y.numel()):
        yield nothing(x, y, values)
        return
    x, y = x * root, y * root
    queries = Clusters.of(x, feature_map, "query", None)
    keys = Clusters.of(y, feature_map, "key", keep)
    exact, served = (
        None if table is None else table.expand(*x.shape[:-2], -1, -1).flatten(0, -3)
        for table in (feature_map.exact, feature_map.served)
    )
    estimated = None if exact is None else ~exact
    flat = values.flatten(0, -2)
    arguments = queries, keys, flat, feature_map
    base = Pairs if feature_map._per_pair else _Residuals
    engines: list[Engine] = [base(*arguments, _both(served, estimated))]
    if served is not None:
        engines.append(_Default(*arguments, _both(~served, estimated)))
    if exact is not None:
        engines.append(Exact(*arguments, exact))
    n_rows = queries.centers.shape[0]
    step = max(1, _TOKENS // max(x.shape[-2], y.shape[-2]))
    for start in range(0, n_rows, step):
        end = min(start + step, n_rows)
        total, scale = _merged([engine.rows(start, end) for engine in engines])
        yield Features(*(t.unflatten(0, (end - start, -1)) for t in (total, scale / LOG2E)))


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


class _Residuals(Engine):
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
        query_centers = query_centers * LOG2E
        states, scale = _write(keys, self._logs(keys, self.y, query_centers), phi_y, self.values)
        table = self._masked(scale.mT - query_centers @ key_centers.mT, start, end)
        states = states.transpose(1, 2).flatten(2, 3)  # (rows, n_q, n_k·D, c)
        return _read(queries, self._logs(queries, self.x, key_centers), table, phi_x, states)

    def _logs(self, blocks: Blocks, tokens: Tensor, centers: Tensor) -> Tensor:
        """Products with all centres of the other side, ``(N, size, n)``."""
        row = blocks.segment // blocks.counts.shape[-1]
        return blocks.take(tokens) @ centers.index_select(0, row).mT


class _Default(Engine):
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
        logs += blocks.take(phi.log_scale.flatten(0, -2) * LOG2E)
    scale = blocks.largest(logs.detach().amax(1))
    weights = logs.sub_(finite(scale).index_select(0, blocks.segment).unsqueeze(1)).exp2_()
    states = _wide(blocks, weights, phi).write(blocks.take_once(values), len(scale))
    states = states.view(n_rows, -1, k, states.shape[1] // k, values.shape[-1])
    return states, scale.view(n_rows, -1, k)


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
    sums = _wide(blocks, weights, phi).read(states.flatten(0, 1))
    if phi is not None:
        scale = scale + blocks.take(phi.log_scale.flatten(0, -2) * LOG2E)
    return Features(blocks.give(sums), blocks.give(scale))


def _wide(blocks: Blocks, weights: Tensor, phi: Features | None) -> Wide:
    """All products of a weight, ``(N, size, k)``, and a feature."""
    features = None if phi is None else blocks.take(phi.values.flatten(0, -2))
    width = weights.shape[1:].numel() * (1 if features is None else features.shape[-1])
    return Wide(weights, features, blocks.segment, blocks.pieces(common.FLOATS // width))

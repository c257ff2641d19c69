"""Attention with a clustered hybrid, exactly: every token meets only the blocks of its own cluster.

For a query of cluster i and the keys of cluster j, K̂ = exp(xᵀrⱼ + rᵢᵀy') φ(x')ᵀφ(y') (``features/clustered.py``).
The keys of each cluster become states, one for every query cluster, on a scale of their own,

    U_ij = Σ_{y in j} exp(rᵢᵀy' − c_ij) φ(y') v(y)ᵀ,        c_ij = max_{y in j} rᵢᵀy',

and the query reads Σⱼ exp(xᵀrⱼ + c_ij) φ(x')ᵀ U_ij. Pairs of clusters that are exact are left out of it: there
a block of queries meets the list of all keys of its exact clusters, as in block-sparse softmax attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from hrf._attention.clustered import common
from hrf._attention.clustered.common import LOG2E, Clusters, Engine, merged
from hrf._attention.clustered.exact import Exact
from hrf._attention.clustered.pairs import Pairs
from hrf._attention.clustered.wide import Wide
from hrf._attention.label_blocks import Blocks, joined, nothing, parts, with_ones
from hrf.features.base import Features, Side, finite
from hrf.features.clustered import ClusteredHybrid
from hrf.features.heads import of_heads

__all__ = ["stream", "sums"]


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
    if not (x.numel() and y.numel()):
        yield nothing(x, y, with_ones(values) if ones else values)
        return
    if keep is not None:
        keep = keep.expand(y.shape[:-1]).reshape(-1, *y.shape[-3:-1])
    x, y, values = (t.reshape(x.shape[:-3].numel(), *t.shape[-3:]) for t in (x, y, values))
    for part in parts(x, y, common.TOKENS):
        phi = of_heads(feature_map, part[1])
        queries = Clusters.of(x[part], root, phi, "query", None)
        keys = Clusters.of(y[part], root, phi, "key", None if keep is None else keep[part])
        engines = _engines(queries, keys, values[part], ones, phi)
        total, scale = merged(engine.sums() for engine in engines)
        yield Features(total, finite(scale) / LOG2E)


def sums(
    x: Tensor, y: Tensor, values: Tensor, feature_map: ClusteredHybrid, keep: Tensor | None = None
) -> Features:
    """What `stream` gives, for all queries at once: ``(..., H, L, c)``."""
    return joined(stream(x, y, values, feature_map, keep), x)


def _engines(
    queries: Clusters, keys: Clusters, values: Tensor, ones: bool, phi: ClusteredHybrid
) -> Iterator[Engine]:
    """Those whose sums add up to the whole."""
    exact, served = (
        None if table is None else table.expand(*values.shape[:-2], -1, -1).flatten(0, -3)
        for table in (phi.exact, phi.served)
    )
    estimated = None if exact is None else ~exact
    arguments = queries, keys, values, ones, phi
    yield (Pairs if phi.per_pair else _Residuals)(*arguments, _both(served, estimated))
    if served is not None:
        yield _Default(*arguments, _both(~served, estimated))
    if exact is not None:
        yield Exact(*arguments, exact)


def _both(pairs: Tensor | None, others: Tensor | None) -> Tensor | None:
    """Pairs of clusters that are in both tables; ``None`` has all."""
    return others if pairs is None else pairs if others is None else pairs & others


class _States(Engine):
    """Keys become states, and queries read them."""

    def sums(self) -> Features:
        """Those of all queries: some keys after others, and some queries after others."""
        x, y = self.queries.centers, self.keys.centers
        keys = zip(self.keys.spans(), self.values.split(common.TOKENS, -2), strict=True)
        states, table = self._meet(*merged(self._run(self._write, some, x, v) for some, v in keys))
        read = [self._run(self._read, some, y, states, table) for some in self.queries.spans()]
        return read[0] if len(read) == 1 else Features(*(torch.cat(t, 1) for t in zip(*read, strict=True)))

    def _run(self, function: Callable[..., Features], some: Clusters, *tensors: Tensor) -> Features:
        """What a function makes of some tokens; of its graph, nothing is kept unless they are all."""

        def run(tokens: Tensor, centers: Tensor, *tensors: Tensor) -> Features:
            return function(some._replace(tokens=tokens, centers=centers), *tensors)

        if some is self.queries or some is self.keys:
            return function(some, *tensors)
        return self._again(run, some.tokens, some.centers, *tensors)

    def _write(self, keys: Clusters, centers: Tensor, values: Tensor) -> Features:
        """States Σ 2^(logs − s) φ(y) v(y)ᵀ of each cluster, ``(R, n, k, D, c)``, and their scales s.

        Args:
            keys: some of them.
            centers: those of queries.
            values: of these keys, ``(..., H, S, c)``.
        """
        blocks = keys.blocks
        logs, features = self._weights(keys, centers, "key")
        scale = blocks.largest(logs.detach().amax(1))
        weights = logs.sub_(finite(scale).index_select(0, blocks.segment).unsqueeze(1)).exp2_()
        columns = blocks.take_once(self._columns(values).flatten(0, -2))
        states = _wide(blocks, weights, features).write(columns, len(scale))
        shape = *keys.centers.shape[:2], logs.shape[-1]
        return Features(
            states.unflatten(1, (shape[-1], -1)).unflatten(0, shape[:2]), scale.view(*shape, 1, 1)
        )

    def _read(self, queries: Clusters, centers: Tensor, states: Tensor, table: Tensor) -> Features:
        """Σ 2^(logs + table) φ(x)ᵀ state with the states of each query's cluster: ``(R, L, c)``.

        Args:
            queries: some of them.
            centers: those of keys.
            states: ``(R, n, k·D, c)``.
            table: what the cluster adds to the logs, ``(R, n, k)``.
        """
        blocks = queries.blocks
        logs, features = self._weights(queries, centers, "query")
        logs += table.flatten(0, 1).index_select(0, blocks.segment).unsqueeze(1)
        scale = logs.detach().amax(-1, keepdim=True)
        weights = logs.sub_(finite(scale)).exp2_()
        sums = _wide(blocks, weights, features).read(states.flatten(0, 1))
        return Features(*(blocks.give(t).unflatten(0, (len(states), -1)) for t in (sums, scale)))

    def _weights(self, some: Clusters, others: Tensor, side: Side) -> tuple[Tensor, Tensor | None]:
        """Logs of k weights for each place, ``(N, size, k)``, and features, ``(N, size, D)`` or ``None`` for 1."""
        raise NotImplementedError

    def _meet(self, states: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """States for each cluster of queries, and what they add to its logs."""
        raise NotImplementedError


class _Residuals(_States):
    """For ``separable``, ``shifted`` and ``shrunk``."""

    def _weights(self, some: Clusters, others: Tensor, side: Side) -> tuple[Tensor, Tensor | None]:
        logs = some.products(others)
        if self.phi.feature_map is None:
            return logs, None
        return _scaled(some.blocks, logs, self.phi.residual_features(some.residuals(), side))

    def _meet(self, states: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        between = self.queries.centers @ self.keys.centers.mT * LOG2E
        return states.transpose(1, 2).flatten(2, 3), self._masked(scale[..., 0, 0].mT - between)


class _Default(_States):
    """The default map."""

    def _weights(self, some: Clusters, others: Tensor, side: Side) -> tuple[Tensor, Tensor | None]:
        assert self.phi.default is not None
        logs = others.new_zeros(*some.blocks.members.shape, 1)
        return _scaled(some.blocks, logs, self.phi.default.scaled(some.tokens * some.root, side))

    def _meet(self, states: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        logs = self._masked(scale[..., 0, 0].mT.expand(-1, self.phi.n_q, -1))
        largest = logs.amax(-1, keepdim=True)
        mixed = (logs - finite(largest)).exp2() @ states.flatten(2)  # (R, n_q, D·c)
        return mixed.unflatten(-1, states.shape[-2:]), largest


def _scaled(blocks: Blocks, logs: Tensor, features: Features) -> tuple[Tensor, Tensor]:
    """Logs with the scales of features of all tokens, and the features, by block."""
    values, log_scale = (blocks.take(t.flatten(0, -2)) for t in features)
    return torch.add(logs, log_scale, alpha=LOG2E), values


def _wide(blocks: Blocks, weights: Tensor, features: Tensor | None) -> Wide:
    """All products of a weight, ``(N, size, k)``, and a feature, ``(N, size, D)``."""
    width = weights.shape[1:].numel() * (1 if features is None else features.shape[-1])
    return Wide(weights, features, blocks.segment, blocks.pieces(common.FLOATS // width))

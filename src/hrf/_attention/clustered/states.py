"""Keys become states by cluster, which queries read."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from hrf import tuning
from hrf._attention.clustered.outer_products import BlockProducts, OuterProducts
from hrf._attention.clustered.tokens import LOG2E, ClusteredTokens, PairEngine, added
from hrf._attention.label_blocks import LabelBlocks
from hrf.numerics import Features, finite

__all__ = ["ClusterStates", "Default", "Residuals"]


class ClusterStates(PairEngine):
    """Sums over pairs of clusters by states, a span of tokens at a time."""

    @property
    def span(self) -> int:
        """The tokens of a row that are mapped at a time."""
        return tuning.CLUSTER_TOKENS

    @override
    def sums(self) -> Features:
        x, y = self.queries.centers, self.keys.centers
        values = self.values.split(self.span, -2)
        total: Features | None = None
        for span, v in zip(self.keys.spans(self.span), values, strict=True):
            write = self.write if span is self.keys else self._recomputing(self.write)
            total = added(total, write(span, x, v))
        assert total is not None
        states, table = self.meet(*total)
        read = []
        for span in self.queries.spans(self.span):
            function = self.read if span is self.queries else self._recomputing(self.read)
            read.append(function(span, y, states, table))
        return read[0] if len(read) == 1 else Features(*(torch.cat(t, 1) for t in zip(*read, strict=True)))

    def _recomputing(self, function: Callable[..., Features]) -> Callable[..., Features]:
        """Keep nothing of the graph of ``function``, for rows of several spans."""

        def run(span: ClusteredTokens, *tensors: Tensor) -> Features:
            def on_tensors(tokens: Tensor, centers: Tensor, *tensors: Tensor) -> Features:
                return function(span._replace(tokens=tokens, centers=centers), *tensors)

            return self.recomputed(on_tensors, span.tokens, span.centers, *tensors)

        return run

    def write(self, keys: ClusteredTokens, centers: Tensor, values: Tensor) -> Features:
        """Return states Σ 2^(logs − s) φ(y) v(y)ᵀ per cluster, ``(R, n, k, D, c)``, and their scales s.

        Args:
            keys: a span of keys.
            centers: centres of the queries.
            values: values of these keys, ``(..., H, S, c)``.
        """
        raise NotImplementedError

    def read(self, queries: ClusteredTokens, centers: Tensor, states: Tensor, table: Tensor) -> Features:
        """Return Σ 2^(logs + table) φ(x)ᵀ state with the states of each query's cluster: ``(R, L, c)``.

        Args:
            queries: a span of queries.
            centers: centres of the keys.
            states: ``(R, n, k·D, c)``.
            table: what the cluster adds to the logs, ``(R, n, k)``.
        """
        raise NotImplementedError

    def meet(self, states: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states for each cluster of queries, and what they add to its logs."""
        raise NotImplementedError

    def products(self, blocks: LabelBlocks, weights: Tensor, features: Tensor | None) -> BlockProducts:
        """Return all products of a weight, ``(N, size, k)``, and a feature, ``(N, size, D)``, or ``None`` for 1."""
        width = weights.shape[1:].numel() * (1 if features is None else features.shape[-1])
        return OuterProducts(weights, features, blocks.segment, blocks.pieces(tuning.CLUSTER_FLOATS // width))

    def written(
        self, keys: ClusteredTokens, values: Tensor, logs: Tensor, features: Tensor | None
    ) -> Features:
        """Write with ``logs (N, size, k)`` of weights per place, and the features that `products` takes."""
        blocks = keys.blocks
        scale = blocks.largest(logs.detach().amax(1))
        weights = logs.sub_(finite(scale).index_select(0, blocks.segment).unsqueeze(1)).exp2_()
        columns = blocks.take_once(self.columns(values).flatten(0, -2))
        states = self.products(blocks, weights, features).write(columns, len(scale))
        shape = *keys.centers.shape[:2], logs.shape[-1]
        states = states.unflatten(1, (shape[-1], -1)).unflatten(0, shape[:2])
        return Features(states, scale.view(*shape, 1, 1))

    def summed(
        self, blocks: LabelBlocks, states: Tensor, table: Tensor, logs: Tensor, features: Tensor | None
    ) -> Features:
        """Read with weights and features as in `written`."""
        logs += table.flatten(0, 1).index_select(0, blocks.segment).unsqueeze(1)
        scale = logs.detach().amax(-1, keepdim=True)
        weights = logs.sub_(finite(scale)).exp2_()
        sums = self.products(blocks, weights, features).read(states.flatten(0, 1))
        return Features(*(blocks.give(t).unflatten(0, (len(states), -1)) for t in (sums, scale)))


class Residuals(ClusterStates):
    """Sums for ``separable``, ``shifted`` and ``shrunk``: weights by centre, one map of the residuals."""

    @override
    def write(self, keys: ClusteredTokens, centers: Tensor, values: Tensor) -> Features:
        logs = keys.products(centers)
        if self.phi.feature_map is None:
            return self.written(keys, values, logs, None)
        features = self.phi.residual_features(keys.residuals(), "key")
        return self.written(keys, values, *_with_scales(keys.blocks, logs, features))

    @override
    def read(self, queries: ClusteredTokens, centers: Tensor, states: Tensor, table: Tensor) -> Features:
        logs = queries.products(centers)
        if self.phi.feature_map is None:
            return self.summed(queries.blocks, states, table, logs, None)
        features = self.phi.residual_features(queries.residuals(), "query")
        return self.summed(queries.blocks, states, table, *_with_scales(queries.blocks, logs, features))

    @override
    def meet(self, states: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        between = self.queries.centers @ self.keys.centers.mT * LOG2E
        return states.transpose(1, 2).flatten(2, 3), self.masked(scale[..., 0, 0].mT - between)


class Default(ClusterStates):
    """Sums for the pairs of clusters that the default map serves."""

    @override
    def write(self, keys: ClusteredTokens, centers: Tensor, values: Tensor) -> Features:
        assert self.phi.default is not None
        features = self.phi.default.scaled(keys.tokens * keys.root, "key")
        return self.written(keys, values, *_with_scales(keys.blocks, _no_logs(keys, centers), features))

    @override
    def read(self, queries: ClusteredTokens, centers: Tensor, states: Tensor, table: Tensor) -> Features:
        assert self.phi.default is not None
        features = self.phi.default.scaled(queries.tokens * queries.root, "query")
        weights = _with_scales(queries.blocks, _no_logs(queries, centers), features)
        return self.summed(queries.blocks, states, table, *weights)

    @override
    def meet(self, states: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        logs = self.masked(scale[..., 0, 0].mT.expand(-1, self.phi.n_q, -1))
        largest = logs.amax(-1, keepdim=True)
        mixed = (logs - finite(largest)).exp2() @ states.flatten(2)  # (R, n_q, D·c)
        return mixed.unflatten(-1, states.shape[-2:]), largest


def _no_logs(span: ClusteredTokens, centers: Tensor) -> Tensor:
    """Return zeros: one weight per place, the same for all clusters of the other side."""
    return centers.new_zeros(*span.blocks.members.shape, 1)


def _with_scales(blocks: LabelBlocks, logs: Tensor, features: Features) -> tuple[Tensor, Tensor]:
    """Add the scales of features of all tokens to the logs, and sort the features into blocks."""
    values, log_scale = (blocks.take(t.flatten(0, -2)) for t in features)
    return torch.add(logs, log_scale, alpha=LOG2E), values

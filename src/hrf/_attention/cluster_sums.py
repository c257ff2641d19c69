"""Sums over clusters: tokens by cluster, states of clusters of keys, and what queries read of them.

With a map for the residual (bases separable, shifted, shrunk) a cluster of keys has one state, and a query reads all of
them. With a map per pair of clusters (bases paper, moments) each pair has features of its own. Logarithms are to the
base 2 in this file: where they underflow, exp is up to 100 times slower than exp2.

Sums with products W of weights and features, which are far wider than values: W exists for a few blocks only.

Writing adds Wᵀv to the states of segments, reading returns W times a state, and each is the other's gradient. The
gradient of W itself is an outer product, from which weights and features take their shares block by block.

Sums with features that each token has for every cluster of the other side, and weights beside them.

Weights are multiplied with the values, which are narrower than the features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from hrf import tuning
from hrf._attention.call import LabelBlocks, at_once, recompute, with_ones
from hrf.features.base import FeatureMap, Side, of_heads
from hrf.features.cluster_features import gather_rows
from hrf.features.clustered import ClusteredHybrid
from hrf.numerics import Features, finite

__all__ = [
    "LOG2E",
    "ClusteredTokens",
    "Default",
    "PairEngine",
    "Pairs",
    "Residuals",
    "added",
    "by_label",
    "pair_tokens",
]


LOG2E = math.log2(math.e)


def by_label(labels: Tensor, n_labels: int) -> LabelBlocks:
    """Sort tokens into blocks by ``labels (R, L)``."""
    length, (least, most) = labels.shape[-1], tuning.CLUSTER_BLOCK
    size = min(max(length // n_labels, least), most, max(1, length))
    return LabelBlocks.of(labels.unsqueeze(1), n_labels, size)


class ClusteredTokens(NamedTuple):
    """Queries or keys by cluster, n clusters in R rows.

    Attributes:
        tokens: as they were given, ``(..., H, L, d)``.
        root: √scale, which multiplies them.
        labels: their clusters, ``(..., H, L)``; n for tokens to leave out.
        blocks: tokens by cluster.
        centers: ``(R, n, d)``.
    """

    tokens: Tensor
    root: float
    labels: Tensor
    blocks: LabelBlocks
    centers: Tensor

    @classmethod
    def of(
        cls, u: Tensor, root: float, phi: ClusteredHybrid, side: Side, keep: Tensor | None
    ) -> ClusteredTokens:
        """Assign the tokens of one side to clusters, without those that are not to be kept."""
        centers = (phi.query_centers if side == "query" else phi.key_centers).to(u.dtype)
        n = centers.shape[-2]
        spans = u.detach().split(tuning.CLUSTER_TOKENS, -2)
        labels = torch.cat([phi.assign(span * root, side) for span in spans], -1)
        if keep is not None:
            labels = labels.where(keep, n)
        blocks = by_label(labels.flatten(0, -2), n)
        centers = centers.expand(*u.shape[:-2], -1, -1).flatten(0, -3)
        if side == "key" and phi.recenter:
            members = blocks.take(u.flatten(0, -2))
            totals = blocks.add((blocks.filled.unsqueeze(-2).to(u.dtype) @ members).squeeze(-2))
            means = totals.view(centers.shape) * root / blocks.counts.view(-1, n, 1).clamp(min=1)
            centers = torch.where(blocks.counts.view(-1, n, 1) > 0, means, centers)
        return cls(u, root, labels, blocks, centers)

    def spans(self, length: int) -> list[ClusteredTokens]:
        """Cut every row into spans of tokens, each by cluster."""
        if self.labels.shape[-1] <= length:
            return [self]
        tokens = self.tokens.split(length, -2)
        labels = self.labels.split(length, -1)
        n = self.centers.shape[-2]
        return [
            ClusteredTokens(u, self.root, own, by_label(own.flatten(0, -2), n), self.centers)
            for u, own in zip(tokens, labels, strict=True)
        ]

    def products(self, others: Tensor) -> Tensor:
        """Return logarithms to the base 2, xᵀr / ln 2 for other centres ``(R, n, d)``: ``(N, size, n)``."""
        row = self.blocks.segment // self.centers.shape[-2]
        tokens = self.blocks.take(self.tokens.flatten(0, -2))
        return tokens @ (others * (self.root * LOG2E)).index_select(0, row).mT

    def residuals(self) -> Tensor:
        """Subtract from each token its centre, ``(..., H, L, d)``; tokens that are left out get arbitrary values."""
        centers = self.centers.view(*self.tokens.shape[:-2], *self.centers.shape[-2:])
        own = gather_rows(-centers, self.labels.clamp(max=centers.shape[-2] - 1))
        return torch.add(own, self.tokens, alpha=self.root)


class PairEngine:
    """Sums over some pairs of clusters.

    Args:
        queries: by cluster.
        keys: by cluster.
        values: ``(..., H, S, c)``.
        ones: add a column of ones to the values.
        phi: the map.
        active: the pairs of clusters, ``(R, n_q, n_k)``; ``None`` for all.
    """

    def __init__(
        self,
        queries: ClusteredTokens,
        keys: ClusteredTokens,
        values: Tensor,
        ones: bool,
        phi: ClusteredHybrid,
        active: Tensor | None,
    ) -> None:
        self.queries, self.keys, self.values, self.ones = queries, keys, values, ones
        self.phi, self.active = phi, active

    def sums(self) -> Features:
        """Return the sums of all queries, ``(R, L, c)``; the scale is −∞ without terms, and has no gradient."""
        raise NotImplementedError

    def columns(self, values: Tensor) -> Tensor:
        """Return the values to sum up, with a column of ones if there is to be one."""
        return with_ones(values) if self.ones else values

    def recomputed(self, function: Callable[..., Features], *tensors: Tensor) -> Features:
        """Call a function, and keep nothing of its graph."""
        if not torch.is_grad_enabled():
            return function(*tensors)
        learned = [t for t in (*self.phi.parameters(), *self.phi.buffers()) if t.requires_grad]
        return Features(*recompute(function, *tensors, learned=learned))

    def masked(self, table: Tensor) -> Tensor:
        """Return scales of states, ``(R, n_q, n_k)``, −∞ for pairs that are not active."""
        return table if self.active is None else table.masked_fill(~self.active, -torch.inf)


def added(total: Features | None, part: Features) -> Features:
    """Add sums, on the larger of their scales (to the base 2); a scale of −∞ belongs to an empty sum."""
    if total is None:
        return part
    scale = torch.maximum(total.log_scale, part.log_scale)
    own, other = ((s - finite(scale)).exp2() for s in (total.log_scale, part.log_scale))
    return Features(torch.addcmul(total.values * own, part.values, other), scale)


class BlockProducts:
    """The products W ``(N, size, k·D)`` of N blocks.

    Args:
        weights: ``(N, size, k)``.
        features: what the kind of products has beside weights.
        segment: of each block, ``(N,)``.
        pieces: batches of blocks, each multiplied at once.
    """

    def __init__(
        self, weights: Tensor, features: Tensor | None, segment: Tensor, pieces: list[slice]
    ) -> None:
        self.weights, self.features, self.segment, self.pieces = weights, features, segment, pieces

    def write(self, values: Tensor, n_segments: int) -> Tensor:
        """Sum Wᵀv over the blocks of each segment: ``(N, size, c) -> (n_segments, k·D, c)``."""
        if not torch.is_grad_enabled():
            return self.sums(values, n_segments)
        return _Write.apply(
            values, n_segments, type(self), self.weights, self.features, self.segment, self.pieces
        )

    def read(self, states: Tensor) -> Tensor:
        """Return W times the state of the block's segment: ``(n_segments, k·D, c) -> (N, size, c)``."""
        if not torch.is_grad_enabled():
            return self.products(states)
        return _Read.apply(states, type(self), self.weights, self.features, self.segment, self.pieces)

    def sums(self, values: Tensor, n_segments: int) -> Tensor:
        """Run `write` without autograd."""
        raise NotImplementedError

    def products(self, states: Tensor) -> Tensor:
        """Run `read` without autograd."""
        raise NotImplementedError

    def pull(self, values: Tensor, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the gradients of weights and features if that of W is values · statesᵀ."""
        raise NotImplementedError


class OuterProducts(BlockProducts):
    """All products of a weight and a feature ``(N, size, D)``; ``None`` is 1."""

    @override
    def sums(self, values: Tensor, n_segments: int) -> Tensor:
        width = self.weights.shape[-1] * (1 if self.features is None else self.features.shape[-1])
        states = values.new_zeros(n_segments, width, values.shape[-1])
        for some in self.pieces:
            states.index_add_(0, self.segment[some], self._products(some).mT @ values[some])
        return states

    @override
    def products(self, states: Tensor) -> Tensor:
        out = states.new_empty(*self.weights.shape[:2], states.shape[-1])
        for some in self.pieces:
            torch.bmm(self._products(some), self._states(states, some), out=out[some])
        return out

    @override
    def pull(self, values: Tensor, states: Tensor) -> tuple[Tensor, Tensor | None]:
        weights = torch.empty_like(self.weights)
        features = None if self.features is None else torch.empty_like(self.features)
        for some in self.pieces:
            grad = values[some] @ self._states(states, some).mT
            if self.features is None or features is None:
                weights[some] = grad
                continue
            grad = grad.view(*weights[some].shape, -1)  # (n, size, k, D)
            weights[some] = (grad @ self.features[some].unsqueeze(-1)).squeeze(-1)
            features[some] = (self.weights[some].unsqueeze(-2) @ grad).squeeze(-2)
        return weights, features

    def _products(self, some: slice) -> Tensor:
        if self.features is None:
            return self.weights[some]
        return (self.weights[some].unsqueeze(-1) * self.features[some].unsqueeze(-2)).flatten(-2)

    def _states(self, states: Tensor, some: slice) -> Tensor:
        return states.index_select(0, self.segment[some])


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, n_segments: int, kind: type[BlockProducts], *wide: Any) -> Tensor:
        weights, features, segment, ctx.pieces = wide
        ctx.kind = kind
        ctx.save_for_backward(values, weights, features, segment)
        return kind(*wide).sums(values, n_segments)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        values, *wide = ctx.saved_tensors
        products = ctx.kind(*wide, ctx.pieces)
        return products.products(grad), None, None, *products.pull(values, grad), None, None


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, kind: type[BlockProducts], *wide: Any) -> Tensor:
        weights, features, segment, ctx.pieces = wide
        ctx.kind = kind
        ctx.save_for_backward(states, weights, features, segment)
        return kind(*wide).products(states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        states, *wide = ctx.saved_tensors
        products = ctx.kind(*wide, ctx.pieces)
        return products.sums(grad, len(states)), None, *products.pull(grad, states), None, None


class ClusterStates(PairEngine):
    """Sums over pairs of clusters by states, a span of tokens at a time."""

    @property
    def span(self) -> int:
        """The tokens of a row that are mapped at a time."""
        return at_once(self.values, tuning.CLUSTER_TOKENS)

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


class PairProducts(BlockProducts):
    """The products W ``(N, size, k·D)`` of N blocks, weights ``(N, size, k)`` and features ``(N, k, size, D)``."""

    features: Tensor

    @override
    def sums(self, values: Tensor, n_segments: int) -> Tensor:
        _, k, _, width = self.features.shape
        states = values.new_zeros(n_segments, k, width, values.shape[-1])
        for some in self.pieces:
            weighted = self._weights(some) * values[some].unsqueeze(1)
            states.index_add_(0, self.segment[some], self.features[some].mT @ weighted)
        return states.flatten(1, 2)

    @override
    def products(self, states: Tensor) -> Tensor:
        out = states.new_empty(*self.weights.shape[:2], states.shape[-1])
        for some in self.pieces:
            torch.sum(
                self._weights(some) * (self.features[some] @ self._states(states, some)), 1, out=out[some]
            )
        return out

    @override
    def pull(self, values: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        weights, features = torch.empty_like(self.weights), torch.empty_like(self.features)
        for some in self.pieces:
            own, v = self._states(states, some), values[some].unsqueeze(1)
            torch.sum((self.features[some] @ own) * v, -1, out=weights[some].mT)
            torch.matmul(self._weights(some) * v, own.mT, out=features[some])
        return weights, features

    def _weights(self, some: slice) -> Tensor:
        """Return weights ``(n, k, size, 1)``."""
        return self.weights[some].mT.unsqueeze(-1)

    def _states(self, states: Tensor, some: slice) -> Tensor:
        """Return the states of blocks, ``(n, k, D, c)``."""
        return states.index_select(0, self.segment[some]).unflatten(1, (self.weights.shape[-1], -1))


def pair_tokens(phi: ClusteredHybrid) -> int:
    """Return the tokens whose features for all pairs of their cluster exist at a time."""
    assert phi.feature_map is not None
    return max(1, tuning.PAIR_FLOATS // (max(phi.n_q, phi.n_k) * phi.feature_map.feature_dim))


class Pairs(ClusterStates):
    """Sums with a map per pair of clusters: a block of tokens meets the maps of all pairs of its cluster."""

    @property
    @override
    def span(self) -> int:
        return at_once(self.values, pair_tokens(self.phi))

    @override
    def write(self, keys: ClusteredTokens, centers: Tensor, values: Tensor) -> Features:
        return self.written(keys, values, *self._mapped(keys, "key"))

    @override
    def read(self, queries: ClusteredTokens, centers: Tensor, states: Tensor, table: Tensor) -> Features:
        return self.summed(queries.blocks, states, table, *self._mapped(queries, "query"))

    @override
    def meet(self, states: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        return states.transpose(1, 2).flatten(2, 3), self.masked(scale[..., 0, 0].mT)

    @override
    def products(self, blocks: LabelBlocks, weights: Tensor, features: Tensor | None) -> PairProducts:
        assert features is not None
        step = tuning.CLUSTER_FLOATS // features.shape[1:].numel()
        return PairProducts(weights, features, blocks.segment, blocks.pieces(step))

    def _mapped(self, tokens: ClusteredTokens, side: Side) -> tuple[Tensor, Tensor]:
        """Return the logarithms ``(N, size, k)`` of the weights and features ``(N, k, size, D)`` of all blocks."""
        phi, blocks = self.phi, tokens.blocks
        assert phi.feature_map is not None
        x = blocks.take(tokens.tokens.flatten(0, -2)) * tokens.root
        values, log_scale = _features(x, phi.feature_map, self._heads(blocks.segment, side), side)
        return log_scale.squeeze(-1).mT * LOG2E, values

    def _heads(self, segment: Tensor, side: Side) -> Tensor:
        """Return the heads of the map, pairs of clusters, that blocks of a segment meet: ``(N, k)``."""
        phi = self.phi
        every = torch.arange((phi.heads or 1) * phi.n_q * phi.n_k, device=segment.device)
        table = every.view(-1, phi.n_q, phi.n_k)
        rows = table if side == "query" else table.mT
        return rows.flatten(0, 1)[segment % rows[..., 0].numel()]  # rows of tokens go by head


def _features(x: Tensor, phi: FeatureMap, index: Tensor, side: Side) -> Features:
    """Map every block ``(N, size, d)`` by k heads of a map, ``index (N, k)``: ``(N, k, size, D)``."""
    every = of_heads(phi, index.flatten())
    if phi.has_pullback and not any(t.requires_grad for t in (*phi.parameters(), *phi.buffers())):
        return Features(*_Mapped.apply(x, every, index.shape[1], side))
    return Features(
        *(t[0].unflatten(0, index.shape) for t in every.scaled(_for_each(x, index.shape[1]), side))
    )


def _for_each(x: Tensor, n: int) -> Tensor:
    """Repeat blocks for each of their heads: ``(N, size, d) -> (1, N·n, size, d)``."""
    return x.unsqueeze(1).expand(-1, n, -1, -1).flatten(0, 1).unsqueeze(0)


class _Mapped(torch.autograd.Function):
    """Features by a map with n heads per block, a few blocks at a time; their gradient by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, phi: FeatureMap, n: int, side: Side) -> tuple[Tensor, Tensor]:
        shape = 1, len(x) * n, x.shape[1]
        values, logs = x.new_empty(*shape, phi.feature_dim), x.new_empty(*shape, 1)
        ctx.phi, ctx.n, ctx.side = phi, n, side
        for blocks, heads in _pieces(x, phi, n):
            out = values[:, heads]
            found = of_heads(phi, heads).scaled_into(_for_each(x[blocks], n), side, out)
            if found.values.data_ptr() != out.data_ptr():
                out.copy_(found.values)
            logs[:, heads] = found.log_scale
        ctx.save_for_backward(x, values)
        return values.view(len(x), n, *values.shape[2:]), logs.view(len(x), n, *logs.shape[2:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, values = ctx.saved_tensors
        grad = Features(*(g.reshape(1, values.shape[1], *g.shape[2:]) for g in grads))
        found = torch.empty_like(x)
        for blocks, heads in _pieces(x, ctx.phi, ctx.n):
            some = Features(*(g[:, heads] for g in grad))
            u = _for_each(x[blocks], ctx.n)
            pulled = of_heads(ctx.phi, heads).pullback(u, ctx.side, values[:, heads], some)
            torch.sum(pulled.view(-1, ctx.n, *x.shape[1:]), 1, out=found[blocks])
        return found, None, None, None


def _pieces(x: Tensor, phi: FeatureMap, n: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices of blocks and of their heads, few enough for their features to stay in the cache."""
    step = max(1, at_once(x, tuning.PAIR_FLOATS // 8) // (n * x.shape[1] * phi.feature_dim))
    for start in range(0, len(x), step):
        stop = min(start + step, len(x))
        yield slice(start, stop), slice(start * n, stop * n)

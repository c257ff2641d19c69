"""The plan of a call: groups of queries, clusters of keys, and the keys that each group computes exactly.

Balanced trees cut the vectors of each head into equal parts, near each other in a metric: at every node at the median
of the top principal direction. Part p of P of n vectors is ``order[p·n // P : (p + 1)·n // P]``: nested for powers of
two. A query of group i is x = rᵢ + δ. Σ_δ is the covariance of all δ, pooled over groups, so the variance of δᵀ(y₁ −
y₂) is the squared distance of two keys in the metric Σ_δ; γᵢ says how wide group i is, relative to the pool.

A plan is data, and constant to the gradient. Any plan gives a valid output, so the compiled core may make its own, and
is compared with ``read.py`` on the plan that it made.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from hrf import tuning

__all__ = [
    "Heads",
    "KeyClusters",
    "Parts",
    "Plan",
    "QueryGroups",
    "balanced_parts",
    "blocks_of_groups",
    "clusters_of",
    "covariance",
    "exact_plan",
    "groups_of",
    "log_errors",
    "log_limits",
    "log_weights",
    "make_trees",
    "opening_limits",
    "parts_of",
    "root_of_metric",
]


class Heads(NamedTuple):
    """Queries, keys and values of N heads (batch and heads in one axis); once `scaled`, a weight is exp(xᵀy).

    Attributes:
        x: queries ``(N, L, d)``.
        y: keys ``(N, S, d)``.
        v: values ``(N, S, d_v)``.
        queries: booleans ``(N, L)``, False for padding.
        keys: booleans ``(N, S)``, False for padding. Padding may hold anything finite.
    """

    x: Tensor
    y: Tensor
    v: Tensor
    queries: Tensor
    keys: Tensor

    def scaled(self, root: float) -> Heads:
        """Multiply queries and keys by √scale."""
        return self._replace(x=self.x * root, y=self.y * root)


POWER_ITERATIONS = 6
JITTER = 1e-5  # of the trace, added to a metric so that it has a root


class Parts(NamedTuple):
    """Equal parts of the vectors of N heads, padded to the same width.

    Part p of head n holds the tokens ``tokens[n, p][filled[n, p]]``.

    Attributes:
        tokens: token at each place, ``(N, P, width)``; a place without token holds some token of the head.
        filled: whether a place holds a token, ``(N, P, width)``; the filled places of a part come first.
    """

    tokens: Tensor
    filled: Tensor

    def take(self, u: Tensor) -> Tensor:
        """Gather rows of ``u (N, L, d)`` into parts: ``(N, P, width, d)``, zeros at places without token."""
        flat = self.tokens.flatten(1)[..., None].expand(-1, -1, u.shape[-1])
        return u.gather(1, flat).unflatten(1, self.tokens.shape[1:]) * self.filled[..., None]

    def put(self, parts: Tensor, length: int) -> Tensor:
        """Bring ``(N, P, width, d)`` back to the order of the tokens ``(N, length, d)``; zeros for padding."""
        heads = torch.arange(len(parts), device=parts.device)[:, None, None].expand_as(self.tokens)
        out = parts.new_zeros(len(parts), length, parts.shape[-1])
        return out.index_put((heads[self.filled], self.tokens[self.filled]), parts[self.filled])


def parts_of(order: Tensor, bounds: Tensor) -> Parts:
    """Return the parts ``order[bounds[p] : bounds[p + 1]]`` of each head."""
    sizes = bounds.diff()
    place = torch.arange(int(sizes.max()))
    filled = place < sizes[..., None]
    rows = (bounds[:, :-1, None] + place).where(filled, 0)
    return Parts(order.long().gather(1, rows.flatten(1)).view(rows.shape), filled)


def root_of_metric(metric: Tensor) -> Tensor:
    """Return R with R Rᵀ = metric, up to a jitter: ``|u R|²`` is uᵀ metric u; ``(N, d, d)``."""
    size = metric.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    eye = torch.eye(metric.shape[-1], dtype=metric.dtype, device=metric.device)
    return torch.linalg.cholesky(metric + (JITTER * size + torch.finfo(metric.dtype).tiny) * eye)


@torch.no_grad()
def balanced_parts(u: Tensor, real: Tensor, n_parts: int) -> Parts:
    """Cut the real rows of ``u (N, L, d)``, ``real (N, L)``, into ``n_parts`` parts, a power of two."""
    count = real.sum(-1)
    # Real rows first, in their order.
    index = (~real).to(torch.uint8).argsort(dim=-1, stable=True)[:, None]
    index = index[..., : int(count.max())]
    filled = torch.arange(index.shape[-1], device=u.device) < count[:, None, None]
    parts = Parts(index, filled)
    nodes = 1
    while nodes < n_parts:
        parts = _halved(u, parts, count, nodes)
        nodes *= 2
    return parts


def _halved(u: Tensor, parts: Parts, count: Tensor, nodes: int) -> Parts:
    """Cut every part in two."""
    by_projection = _projections(parts.take(u), parts.filled).argsort(dim=-1, stable=True)
    index = parts.tokens.gather(-1, by_projection)
    bounds = torch.arange(2 * nodes + 1, device=u.device) * count[:, None] // (2 * nodes)  # (N, 2·nodes + 1)
    sizes = bounds.diff()
    left = sizes[:, ::2]
    first = torch.stack([torch.zeros_like(left), left], -1).flatten(1)  # 0, left, 0, left, …
    width = -(-parts.tokens.shape[-1] // 2)
    place = torch.arange(width, device=u.device)
    filled = place < sizes[..., None]
    source = (first[..., None] + place).where(filled, 0)
    index = index.repeat_interleave(2, 1).gather(-1, source)
    return Parts(index, filled)


def _projections(rows: Tensor, filled: Tensor) -> Tensor:
    """Project each part on its top principal direction: ``(N, P, width, d) -> (N, P, width)``, ∞ without token."""
    some = filled[..., None]
    centred = (rows - rows.sum(-2, keepdim=True) / some.sum(-2, keepdim=True).clamp(min=1)) * some
    farthest = centred.square().sum(-1).argmax(-1)[..., None, None].expand(-1, -1, 1, rows.shape[-1])
    direction = centred.gather(-2, farthest).mT  # (N, P, d, 1)
    for _ in range(POWER_ITERATIONS):
        direction = centred.mT @ (centred @ direction)
        direction = direction / direction.norm(dim=-2, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
    return (centred @ direction)[..., 0].masked_fill(~filled, torch.inf)


class QueryGroups(NamedTuple):
    """Groups of queries.

    Attributes:
        mean: rᵢ, ``(N, G, d)``.
        residual: δ, ``(N, G, width, d)``, zeros at places without query.
        width: γᵢ = mean of δᵀ Σ_y δ over the group, over the same mean of all queries; ``(N, G)``.
        query_width: γ(x) = δᵀ Σ_y δ of each query, over the same mean; ``(N, G, width)``.
        metric: Σ_δ, ``(N, d, d)``.
    """

    mean: Tensor
    residual: Tensor
    width: Tensor
    query_width: Tensor
    metric: Tensor


class KeyClusters(NamedTuple):
    """Clusters of keys.

    Attributes:
        keys: ``(N, C, width, d)``, zeros at places without key.
        values: ``(N, C, width, d_v)``, likewise.
        spread: d², the squared distance of a key from the mean of its cluster in the metric Σ_δ; ``(N, C, width)``.
        mean: ȳ of each cluster, ``(N, C, d)``.
    """

    keys: Tensor
    values: Tensor
    spread: Tensor
    mean: Tensor


def covariance(u: Tensor, real: Tensor) -> Tensor:
    """Return the covariance of the real rows of ``u (N, L, d)``: ``(N, d, d)``."""
    some = real[..., None].to(u.dtype)
    count = some.sum(1, keepdim=True).clamp(min=1)
    centred = (u - (u * some).sum(1, keepdim=True) / count) * some
    return centred.mT @ centred / count


def groups_of(heads: Heads, parts: Parts) -> QueryGroups:
    """Compute the statistics of groups of queries."""
    rows, some = parts.take(heads.x), parts.filled[..., None]
    sizes = some.sum(-2).clamp(min=1)  # (N, G, 1)
    mean = rows.sum(-2) / sizes
    residual = (rows - mean[..., None, :]) * some
    flat = residual.flatten(1, 2)
    count = some.sum((1, 2)).clamp(min=1)[..., None]
    metric = flat.mT @ flat / count
    lengths = ((residual @ covariance(heads.y, heads.keys)[:, None]) * residual).sum(-1)  # (N, G, width)
    pooled = lengths.sum((1, 2))[:, None, None] / count
    query_width = lengths / pooled.clamp(min=torch.finfo(pooled.dtype).tiny)
    width = query_width.sum(-1) / sizes[..., 0]
    return QueryGroups(mean, residual, width, query_width, metric)


def clusters_of(heads: Heads, parts: Parts, metric: Tensor) -> KeyClusters:
    """Compute the statistics of clusters of keys in the metric Σ_δ."""
    keys, some = parts.take(heads.y), parts.filled[..., None]
    mean = keys.sum(-2) / some.sum(-2).clamp(min=1)
    centred = (keys - mean[..., None, :]) * some
    spread = ((centred @ metric[:, None]) * centred).sum(-1).clamp(min=0)
    return KeyClusters(keys, parts.take(heads.v), spread, mean)


USUAL = 512  # keys for which a tolerance of 1 allows 1/512 per key
OPENING = 16  # a tolerance of 1 allows a cluster to be wrong by 1/16 of a query's mass


class Plan(NamedTuple):
    """Groups, clusters and exact pairs of N heads.

    Group i of head n meets the keys ``exact[starts[n·G + i] : starts[n·G + i + 1]]`` exactly. A query of ``opened``
    also meets the other keys of that cluster.

    Attributes:
        groups: parts of the queries, ``(N, G, ·)``.
        clusters: parts of the keys, ``(N, C, ·)``.
        starts: ``(N·G + 1,)``.
        exact: places of keys among the clusters, ``(pairs,)``: place c·width + k is key ``clusters.tokens[n, c, k]``;
            ascending within a group.
        opened: places of queries among the groups of all heads, and clusters that they open, ``(·, 2)``: place
            (n·G + i)·width + k is query ``groups.tokens[n, i, k]``.
    """

    groups: Parts
    clusters: Parts
    starts: Tensor
    exact: Tensor
    opened: Tensor

    def is_exact(self, block: slice) -> Tensor:
        """Booleans ``(N, groups of the block, C, width)``: which keys the groups meet exactly."""
        n, n_groups, _ = self.groups.tokens.shape
        shape = self.clusters.tokens.shape[1:]
        rows = torch.arange(n * n_groups, device=self.exact.device).reshape(n, n_groups)[:, block].flatten()
        sizes = self.starts.diff()[rows]
        row = torch.arange(len(rows), device=rows.device).repeat_interleave(sizes)
        first = sizes.cumsum(0) - sizes
        pair = torch.arange(len(row), device=rows.device) + (self.starts[rows] - first).repeat_interleave(
            sizes
        )
        mask = torch.zeros(len(rows), shape.numel(), dtype=torch.bool, device=rows.device)
        mask[row, self.exact[pair]] = True
        return mask.reshape(n, -1, *shape)

    def is_opened(self, block: slice) -> Tensor:
        """Booleans ``(N, groups of the block, queries, C)``: which clusters the queries open."""
        n, n_groups, width = self.groups.tokens.shape
        row, place = self.opened[:, 0] // width, self.opened[:, 0] % width
        head, group = row // n_groups, row % n_groups
        first, last, _ = block.indices(n_groups)
        own = (group >= first) & (group < last)
        shape = n, last - first, width, self.clusters.tokens.shape[1]
        mask = torch.zeros(shape, dtype=torch.bool, device=row.device)
        mask[head[own], group[own] - first, place[own], self.opened[own, 1]] = True
        return mask

    def unmet(self, some: slice) -> Tensor:
        """Booleans ``(openings, width)``: which keys of some opened clusters the group does not meet already."""
        place, cluster = self.opened[some].unbind(-1)
        _, n_clusters, width = self.clusters.tokens.shape
        row, n_groups = place // self.groups.tokens.shape[2], self.groups.tokens.shape[1]
        per_head = n_clusters * width
        every = torch.arange(len(self.starts) - 1, device=row.device).repeat_interleave(self.starts.diff())
        codes = every * per_head + self.exact  # ascending
        wanted = (row * per_head + cluster * width)[:, None] + torch.arange(width, device=row.device)
        at = torch.searchsorted(codes, wanted)
        met = codes[at.clamp(max=max(len(codes) - 1, 0))] == wanted if len(codes) else wanted < 0
        return self.clusters.filled[row // n_groups, cluster] & ~met


def blocks_of_groups(n_groups: int, floats_per_group: int) -> list[slice]:
    """Cut the groups of all heads into blocks whose weights of keys fit `tuning.SUMMARY_FLOATS`."""
    step = max(1, tuning.SUMMARY_FLOATS // max(1, floats_per_group))
    return [slice(i, min(i + step, n_groups)) for i in range(0, n_groups, step)]


def log_weights(mean: Tensor, clusters: KeyClusters, filled: Tensor) -> Tensor:
    """Return sᵢⱼ = rᵢᵀyⱼ for the means of some groups, −∞ at places without key: ``(N, g, C, width)``."""
    scores = (mean @ clusters.keys.flatten(1, 2).mT).unflatten(-1, filled.shape[1:])
    return scores.masked_fill(~filled[:, None], -torch.inf)


def log_errors(weights: Tensor, width: Tensor, clusters: KeyClusters) -> Tensor:
    """Return log(share of the mass · √expm1(γd²)), the relative error of a summary by the log-normal model.

    Args:
        weights: of `log_weights`, ``(N, g, C, width)``.
        width: γ of the groups, ``(N, g)``.
        clusters: of the keys.
    """
    variance = width[..., None, None] * clusters.spread[:, None]
    # log expm1(t) = t + log(1 − exp(−t)) cannot overflow.
    deviation = (variance + (-torch.expm1(-variance)).log()) / 2
    return weights - weights.flatten(2).logsumexp(-1)[..., None, None] + deviation


def log_limits(tolerance: Tensor, n_keys: Tensor) -> Tensor:
    """Return log(τ/S · ⁴√(S/512)), the largest relative error that the summary of one of S keys may have.

    Errors of S keys add up to √S times the error of one, or less: at τ/S the output would get better with the length,
    and the share of exact pairs would stay. The root, found by trial on text, lets that share fall for little error.
    """
    count = n_keys.clamp(min=1).to(tolerance.dtype)
    return tolerance.log() - 0.75 * count.log() - 0.25 * math.log(USUAL)


def opening_limits(tolerance: Tensor) -> Tensor:
    """Return τ/16, the share of a query's mass by which the summary of a cluster may be wrong."""
    return tolerance / OPENING


def make_trees(heads: Heads, n_groups: int, n_clusters: int) -> tuple[Parts, Parts, QueryGroups, KeyClusters]:
    """Group the queries in the metric of the keys, and cluster the keys in the metric of the residuals."""
    root = root_of_metric(covariance(heads.y, heads.keys))
    of_queries = balanced_parts(heads.x @ root, heads.queries, n_groups)
    groups = groups_of(heads, of_queries)
    of_keys = balanced_parts(heads.y @ root_of_metric(groups.metric), heads.keys, n_clusters)
    return of_queries, of_keys, groups, clusters_of(heads, of_keys, groups.metric)


@torch.no_grad()
def exact_plan(
    trees: tuple[Parts, Parts], groups: QueryGroups, clusters: KeyClusters, tolerance: Tensor
) -> Plan:
    """Choose the exact keys of each group; ``tolerance (N,)`` is τ per head. No query opens a cluster yet.

    Key j is exact for group i where the share of the mass times √expm1(γᵢd²ⱼ) is at least the limit.
    """
    of_queries, of_keys = trees
    n, n_groups, _ = of_queries.tokens.shape
    bound = log_limits(tolerance, of_keys.filled.sum((1, 2)))[:, None, None, None]
    rows, places = [], []
    for block in blocks_of_groups(n_groups, of_keys.tokens.numel()):
        weights = log_weights(groups.mean[:, block], clusters, of_keys.filled)
        errors = log_errors(weights, groups.width[:, block], clusters)
        chosen = (errors >= bound) & of_keys.filled[:, None] & (bound < torch.inf)
        head, group, place = chosen.flatten(2).nonzero(as_tuple=True)
        rows.append(head * n_groups + block.start + group)
        places.append(place)
    row, order = torch.cat(rows).sort(stable=True)
    sizes = torch.bincount(row, minlength=n * n_groups)
    starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    nothing = torch.empty(0, 2, dtype=torch.long, device=starts.device)
    return Plan(of_queries, of_keys, starts, torch.cat(places)[order], nothing)

"""Causal summarised attention of one query, one block and one node at a time, as its definition reads."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hrf._attention.summarised.causal.blocks import Blocks, make_blocks
from hrf._attention.summarised.causal.levels import Tokens
from hrf._attention.summarised.causal.sizes import CHUNK, MEMBERS, WIDTH, blocks_of, n_cells, node_counts


def block_at(tokens: Tokens, head: int, first: int, size: int) -> Blocks:
    """Make one block of one head, with its cells and clusters."""
    own, some = slice(first, first + size), slice(max(first, first + size - MEMBERS), first + size)
    groups = tokens.x.shape[2]
    members = (tokens.queries & tokens.keys)[head : head + 1, some].repeat_interleave(groups, 1)
    x = tokens.x[head : head + 1, some].flatten(1, 2)
    y, v, real = (u[head : head + 1, own] for u in (tokens.y, tokens.v, tokens.keys))
    return make_blocks(x, members, y, v, real, n_cells(groups))


def naive(tokens: Tokens, head: int, position: int, group: int, tolerance: float) -> tuple[Tensor, int]:
    """Return the output of a query, and the number of keys that it meets exactly."""
    x = tokens.x[head, position, group]
    start = position // CHUNK * CHUNK
    own = [j for j in range(start, position + 1) if tokens.keys[head, j]]
    pairs = [(x @ tokens.y[head, j], tokens.v[head, j]) for j in own]
    trees = [_Tree(block_at(tokens, head, *span), x) for span in blocks_of(position)]
    lowest = [logit for logit, _ in pairs] + [tree.lowest(0, j) for tree in trees for j in tree.roots()]
    n_exact = len(pairs)
    if lowest:
        seen = int(tokens.keys[head, : position + 1].sum())
        bound = float(torch.stack(lowest).logsumexp(0).exp()) * tolerance / seen * math.sqrt(WIDTH)
        for tree in trees:
            for j in tree.roots():
                n_exact += tree.descend(0, j, bound, pairs)
    if not pairs:
        return torch.zeros_like(tokens.v[head, 0]), 0
    logits, values = (torch.stack(u) for u in zip(*pairs, strict=True))
    return logits.softmax(0) @ values, n_exact


class _Tree:
    """The tree of a block as the cell of a query sees it."""

    def __init__(self, block: Blocks, x: Tensor) -> None:
        centre, root, metric_root = (u[0] for u in block.cells)
        distances = ((x - centre) @ root).square().sum(-1)
        self.x, self.width, self.centre = x, distances.min(), centre[distances.argmin()]
        self.metric = metric_root @ metric_root.T
        filled = block.clusters.filled[0]
        self.clusters = [(k[f], v[f]) for k, v, f in zip(block.keys[0], block.values[0], filled, strict=True)]
        self.counts = node_counts(len(self.clusters) * WIDTH)

    def roots(self) -> list[int]:
        return [j for j in range(self.counts[0]) if len(self._keys(0, j)[0])]

    def _keys(self, level: int, node: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a node."""
        span = len(self.clusters) // self.counts[level]
        y, v = zip(*self.clusters[node * span : (node + 1) * span], strict=True)
        return torch.cat(y), torch.cat(v)

    def lowest(self, level: int, node: int) -> Tensor:
        y, _ = self._keys(level, node)
        scores = y @ self.centre
        return scores.logsumexp(0) + (self.x - self.centre) @ (scores.softmax(0) @ y)

    def descend(self, level: int, node: int, bound: float, pairs: list[tuple[Tensor, Tensor]]) -> int:
        """Add logits and values of a node to the pairs; return the number of keys that were met exactly."""
        y, v = self._keys(level, node)
        if not len(y):
            return 0
        p = (y @ self.centre).softmax(0)
        off = y - p @ y
        variance = self.width * (p * torch.einsum("kd,de,ke->k", off, self.metric, off)).sum()
        logit = self.lowest(level, node) + (variance / 2).clamp(max=10)
        if float(logit.exp() * (p.square().sum() * torch.expm1(variance)).sqrt()) < bound:
            pairs.append((logit, p @ v))
            return 0
        if level + 1 == len(self.counts):
            pairs.extend((key @ self.x, value) for key, value in zip(y, v, strict=True))
            return len(y)
        children = range(node * WIDTH, (node + 1) * WIDTH)
        return sum(self.descend(level + 1, child, bound, pairs) for child in children)

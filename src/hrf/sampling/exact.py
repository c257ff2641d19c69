"""Exact draws from the softmax, at a cost that grows with the number of classes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from hrf import tuning
from hrf.sampling.base import EmbeddingSampler, Samples
from hrf.sampling.choice import choose

__all__ = ["ExactSoftmaxSampler"]


class ExactSoftmaxSampler(EmbeddingSampler):
    """q(c | x) = exp(xᵀy_c) / Σ exp(xᵀy): the reference for all other samplers. Draws are independent.

    Args:
        class_embeddings: y, ``(C, d)``; a copy is kept.
    """

    def __init__(self, class_embeddings: Tensor) -> None:
        super().__init__(class_embeddings, torch.float32)

    def _sample(self, queries: Tensor, k: int, generator: Generator | None) -> Samples:
        # First one of √C groups, then one of its √C classes: a running sum over all classes would lose small ones.
        size = math.isqrt(self.n_classes - 1) + 1
        drawn = [self._sample_block(logits, size, k, generator) for logits in self._logits(queries, size)]
        return Samples(*map(torch.cat, zip(*drawn, strict=True)))

    def _sample_block(self, logits: Tensor, size: int, k: int, generator: Generator | None) -> Samples:
        largest = logits.amax(-1, keepdim=True)
        weights = logits.sub_(largest).exp_().unflatten(-1, (-1, size))  # (n, groups, size)
        sums = weights.sum(-1)
        group = choose(sums, k, generator)
        inside = weights.gather(1, group.unsqueeze(-1).expand(-1, -1, size))  # (n, k, size)
        place = choose(inside, 1, generator)
        log_probs = inside.gather(-1, place).squeeze(-1).log() - sums.sum(-1, keepdim=True).log()
        return Samples(group * size + place.squeeze(-1), log_probs)

    def _log_prob(self, queries: Tensor, ids: Tensor) -> Tensor:
        blocks = zip(self._logits(queries), ids.split(self._rows_at_once()), strict=True)
        return torch.cat([logits.log_softmax(-1).gather(-1, block) for logits, block in blocks])

    def _logits(self, queries: Tensor, multiple: int = 1) -> Iterator[Tensor]:
        """Yield logits block by block, ``(n, ·)``, padded with −inf to a multiple of ``multiple``."""
        y = self.embeddings.to(torch.promote_types(self.embeddings.dtype, queries.dtype))
        for x in queries.to(y.dtype).split(self._rows_at_once()):
            logits = x.new_empty(len(x), math.ceil(len(y) / multiple) * multiple)
            logits[:, len(y) :] = -torch.inf
            torch.matmul(x, y.mT, out=logits[:, : len(y)])
            yield logits

    def _rows_at_once(self) -> int:
        return max(1, tuning.EXACT_LOGITS // self.n_classes)

"""Samplers whose draws do not depend on the query."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from hrf.checks import own_constructor
from hrf.sampling.base import Sampler, Samples

__all__ = ["LogUniformSampler", "UniformSampler"]


@own_constructor
class UniformSampler(Sampler):
    """Distinct classes, all sets of k equally likely: q = 1/C; with k = C every class is drawn once.

    >>> import torch, hrf
    >>> ids, log_probs = hrf.sampling.UniformSampler(1000).sample(torch.zeros(7, 20), k=40)
    >>> ids.shape
    torch.Size([7, 40])
    """

    def _sample(self, queries: Tensor, k: int, generator: Generator | None) -> Samples:
        # Floyd's algorithm: each draw may take one class more than the draw before, and takes that newest class if
        # it hits a class drawn already.
        ids = queries.new_empty(len(queries), k, dtype=torch.long)
        for j, newest in enumerate(range(self.n_classes - k, self.n_classes)):
            drawn = torch.randint(newest + 1, (len(queries),), generator=generator, device=queries.device)
            met = (ids[:, :j] == drawn[:, None]).any(-1)
            ids[:, j] = torch.where(met, newest, drawn)
        return Samples(ids, self._log_prob(queries, ids))

    def _log_prob(self, queries: Tensor, ids: Tensor) -> Tensor:
        return queries.new_full(ids.shape, -math.log(self.n_classes))


@own_constructor
class LogUniformSampler(Sampler):
    """Zipf's law for classes sorted by falling frequency: q(c) = log((c + 2)/(c + 1)) / log(C + 1).

    Draws are independent, so a class may be drawn twice.
    """

    def _sample(self, queries: Tensor, k: int, generator: Generator | None) -> Samples:
        # The probability of a class below c is log(c + 1)/log(C + 1); float64 tells a million of them apart.
        shape, device = (len(queries), k), queries.device
        u = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
        ids = (u * math.log(self.n_classes + 1)).exp().long() - 1
        ids = ids.clamp(max=self.n_classes - 1)  # rounding
        return Samples(ids, self._log_prob(queries, ids))

    def _log_prob(self, queries: Tensor, ids: Tensor) -> Tensor:
        share = torch.log1p(1 / (ids.double() + 1)) / math.log(self.n_classes + 1)
        return share.log().to(queries.dtype)

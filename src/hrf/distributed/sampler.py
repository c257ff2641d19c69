"""Softmax sampling with the classes of a tree on different ranks.

Each rank holds a tree of its own classes. The masses that the ranks' trees see at their tops, one number per query and
rank, are gathered; all ranks choose the same rank per draw, in proportion to them, and the chosen rank walks down. The
probability of a draw is that of its rank times that of its way.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Generator, Tensor
from typing_extensions import Self, override

from hrf import tuning
from hrf.checks import check_tensor, check_tensors
from hrf.choice import choose, mixed, uniform_ids
from hrf.distributed.ranks import Description, Group, Ranks, digest, fingerprint, raw_bytes, together
from hrf.features.base import FeatureMap
from hrf.sampling import Sampler, Samples, SoftmaxSampler

__all__ = ["ShardedSoftmaxSampler"]


class ShardedSoftmaxSampler(Sampler):
    """`hrf.sampling.SoftmaxSampler` with the classes split over ranks, in order: memory and work divide.

    All ranks of the group build it, each from its own classes, and call `sample` and `log_prob` with the same queries;
    all get the same draws. Classes are numbered through all ranks.

    For a map without negative estimates the distribution equals that of one sampler of all classes. For other maps it
    does if each rank's first class is the first of a node at the top of that sampler's tree: any class while classes
    fit the top (`hrf.tuning.TREE_TOP` leaves), or else multiples of a power of 4. Elsewhere branches with estimates
    below 0 are cut off in slightly different places; the stated probabilities are exact in any case.

    Args:
        class_embeddings: embeddings of this rank's classes, ``(C_r, d)``, at least one; a copy is kept.
        feature_map: as in `hrf.sampling.SoftmaxSampler`, the same on every rank.
        group: a process group, a `DeviceMesh` with one axis, or ``None`` for the default group.
        radius: as in `hrf.sampling.SoftmaxSampler`.
        uniform_share: likewise.
        leaf_size: likewise; the default depends on the number of all classes.

    Attributes:
        first: number of the first class of this rank.
    """

    dim: int

    def __init__(
        self,
        class_embeddings: Tensor,
        feature_map: FeatureMap,
        *,
        group: Group = None,
        radius: float | None = None,
        uniform_share: float = 0.1,
        leaf_size: int | None = None,
    ) -> None:
        ranks, options = (
            Ranks(group),
            {"radius": radius, "uniform_share": uniform_share, "leaf_size": leaf_size},
        )

        def counted() -> int:
            check_tensors(class_embeddings=class_embeddings)
            return len(class_embeddings)

        _, told = together(ranks, counted, lambda count: Description(length=count))
        ends = list(accumulate(other.length for other in told))
        tree, _ = together(
            ranks,
            lambda: _ShardTree(class_embeddings, feature_map, of_classes=ends[-1], **options),
            lambda tree: Description(_claims(tree) | {name: str(value) for name, value in options.items()}),
        )
        super().__init__(ends[-1])
        self.tree, self.dim, self._ranks, self._ends = tree, tree.dim, ranks, ends
        self.first = ends[ranks.rank] - len(class_embeddings)

    @override
    def sample(
        self, queries: Tensor, k: int, generator: Generator | None = None, *, seed: int | None = None
    ) -> Samples:
        """Draw as `hrf.sampling.SoftmaxSampler.sample` does; all ranks use the randomness of the first."""
        self._agree(lambda: self.checked_queries(queries, k), f"k = {k}")
        return super().sample(queries, k, generator, seed=seed)

    @override
    def log_prob(self, queries: Tensor, ids: Tensor) -> Tensor:
        self._agree(lambda: self.checked_pairs(queries, ids), lambda: _described(ids))
        return super().log_prob(queries, ids)

    @override
    def update_(self, ids: Tensor, embeddings: Tensor) -> Self:
        """Replace the embeddings of classes of this rank; classes of other ranks are left to these."""
        self.check_ids(ids)
        check_tensor("embeddings", embeddings, [(len(ids), self.dim)])
        own = (ids >= self.first) & (ids < self.first + self.tree.n_classes)
        self.tree.update_(ids[own] - self.first, embeddings[own])
        return self

    @override
    def rebuild_(self, embeddings: Tensor | None = None) -> Self:
        """Recompute this rank's tree, from new embeddings of its classes if there are any."""
        self.tree.rebuild_(embeddings)
        return self

    def _agree(self, work: Any, pairs: Any) -> None:
        def described(flat: Tensor) -> Description:
            asked = pairs if isinstance(pairs, str) else pairs()
            return Description(_claims(self.tree) | {"queries": _described(flat), "what is asked": asked})

        together(self._ranks, work, described)

    def _sample(self, queries: Tensor, k: int, generator: Generator | None) -> Samples:
        shared, own = self._generators(generator, queries.device)
        x = self.tree.query_features(queries)
        log_shares = self._log_shares(x)
        rank, forced = choose(log_shares.exp(), k, shared), torch.full((len(x), k), -1, device=x.device)
        if share := self.tree.uniform_share:
            forced = uniform_ids((len(x), k), self.n_classes, share, shared, x.device)
            rank = torch.where(forced < 0, rank, self._rank_of(forced))
        ids, log_q = self._walked(x, rank, forced, own)
        return Samples(ids, mixed(log_q + log_shares.gather(1, rank), share, self.n_classes))

    def _log_prob(self, queries: Tensor, ids: Tensor) -> Tensor:
        x, rank = self.tree.query_features(queries), self._rank_of(ids)
        _, log_q = self._walked(x, rank, ids, None)
        log_q += self._log_shares(x).gather(1, rank)
        return mixed(log_q, self.tree.uniform_share, self.n_classes)

    def _generators(self, generator: Generator | None, device: torch.device) -> tuple[Generator, Generator]:
        """Return a generator that is the same on all ranks, and one that is this rank's own."""
        seed = torch.randint(2**62, (1,), generator=generator, device=device).to(self._ranks.device)
        shared = Generator(device).manual_seed(int(self._ranks.broadcast_(seed, "the seed of draws")))
        seeds = torch.randint(2**62, (self._ranks.size,), generator=shared, device=device)
        return shared, Generator(device).manual_seed(int(seeds[self._ranks.rank]))

    def _log_shares(self, x: Tensor) -> Tensor:
        """Return the log of each rank's share of the mass, ``(N, ranks)``; without mass, of the number of classes."""
        masses = self._ranks.gather(self.tree.log_mass(x), "the masses of classes").mT
        counts = torch.tensor(self._ends, device=x.device).diff(prepend=x.new_zeros(1, dtype=torch.long))
        hopeless = masses.isneginf().all(1, keepdim=True)
        return torch.where(hopeless, counts.to(masses.dtype).log(), masses).log_softmax(1)

    def _rank_of(self, ids: Tensor) -> Tensor:
        """Return the rank that has each class; anything for negative numbers."""
        return torch.bucketize(ids.contiguous(), torch.tensor(self._ends, device=ids.device), right=True)

    def _walked(
        self, x: Tensor, rank: Tensor, forced: Tensor, generator: Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Let each rank walk to its classes; return these and the logs of their probabilities within the rank."""
        ids, log_q, mine = torch.zeros_like(forced), x.new_zeros(forced.shape), rank == self._ranks.rank
        if most := int(mine.sum(1).max()):
            # The draws of this rank come first in each row, so that few columns are walked.
            order = mine.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
            here, drawn = mine.gather(1, order), generator is not None
            given = (forced.gather(1, order) - self.first).masked_fill_(~here, -1 if drawn else 0)
            blocks = zip(x.split(tuning.TREE_QUERIES), given.split(tuning.TREE_QUERIES), strict=True)
            found = [self.tree.walk(u, most, way, drawn=drawn, generator=generator) for u, way in blocks]
            node, log_p = map(torch.cat, zip(*found, strict=True))
            ids.scatter_(1, order, (node + self.first).masked_fill_(~here, 0))
            log_q.scatter_(1, order, log_p.masked_fill_(~here, 0))
        return self._ranks.add_(ids, "drawn classes"), self._ranks.add_(log_q, "probabilities of classes")


class _ShardTree(SoftmaxSampler):
    """A tree with the levels of a tree of more classes."""

    def __init__(self, *arguments: Any, of_classes: int, **options: Any) -> None:
        self._of_classes = of_classes
        super().__init__(*arguments, **options)

    @property
    @override
    def tree_classes(self) -> int:
        return self._of_classes


def _claims(tree: SoftmaxSampler) -> dict[str, str]:
    phi = tree.feature_map
    return {
        "the feature map": f"{type(phi).__name__} with fingerprint {fingerprint(phi):x}",
        "embeddings": f"{tree.dim} columns of {tree.embeddings.dtype}",
    }


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} with hash {digest(raw_bytes(tensor)):x}"

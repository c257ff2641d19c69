"""Draw classes for a query with exactly known probabilities: by random features, uniformly, by rank, or exactly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from typing_extensions import Self, override

from hrf import tuning
from hrf.checks import check_count, check_positive, check_tensor, check_tensors, generator_of, own_constructor
from hrf.choice import branch_weights, choose, chosen_products, mixed, step_down, uniform_ids
from hrf.features.base import FeatureMap
from hrf.numerics import Features, can_look, check_finite, finite, without_autocast

__all__ = [
    "ExactSoftmaxSampler",
    "LogUniformSampler",
    "Sampler",
    "Samples",
    "SoftmaxSampler",
    "UniformSampler",
]

# The interface of all samplers: checks of arguments, and queries flattened to ``(N, d)``.


class Samples(NamedTuple):
    """Drawn classes.

    Attributes:
        ids: ``(..., k)``, whole numbers below the number of classes.
        log_probs: log q of each class, ``(..., k)``: class c is drawn k·q(c | x) times on average.
    """

    ids: Tensor
    log_probs: Tensor


class Sampler(nn.Module):
    """Sampler of classes for queries, from a distribution q(c | x) that it knows.

    Subclasses define `_sample` and `_log_prob` for queries ``(N, d)``.

    Attributes:
        n_classes: number C of classes.
        dim: length d of a query; ``None`` if draws do not depend on queries.
    """

    dim: int | None = None

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.n_classes = check_count("n_classes", n_classes)

    @torch.no_grad()
    def sample(
        self, queries: Tensor, k: int, generator: Generator | None = None, *, seed: int | None = None
    ) -> Samples:
        """Draw k classes for each query: ``(..., d) -> (..., k)``.

        Args:
            queries: at least one query; no gradient flows through them.
            k: number of draws, at most the number of classes.
            generator: the source of randomness, on the device of the queries; PyTorch's global generator by default.
            seed: seed of a new generator, in place of ``generator``.
        """
        flat = self.checked_queries(queries, k)
        generator = generator_of(generator, seed, queries.device)
        with without_autocast(queries.device):  # half precision cannot carry an exponential
            ids, log_probs = self._sample(flat, k, generator)
        return Samples(ids.view(*queries.shape[:-1], k), log_probs.view(*queries.shape[:-1], k))

    @torch.no_grad()
    def log_prob(self, queries: Tensor, ids: Tensor) -> Tensor:
        """Return log q(id | x) for any classes: ``(..., d), (..., n) -> (..., n)``."""
        flat = self.checked_pairs(queries, ids)
        with without_autocast(queries.device):
            return self._log_prob(flat, ids.reshape(len(flat), -1)).view(ids.shape)

    def update_(self, ids: Tensor, embeddings: Tensor) -> Self:
        """Replace the embeddings of a few classes; a sampler without embeddings stays as it is.

        Args:
            ids: distinct classes, ``(n,)``.
            embeddings: ``(n, d)``.
        """
        return self

    def rebuild_(self, embeddings: Tensor | None = None) -> Self:
        """Recompute everything, from new embeddings ``(C, d)`` if there are any."""
        return self

    def checked_queries(self, queries: Tensor, k: int) -> Tensor:
        """Check the arguments of `sample`, and return the queries as ``(N, d)``, in float32 or wider."""
        if check_count("k", k) > self.n_classes:
            raise ValueError(f"k is {k}; expected at most the number of classes, {self.n_classes}")
        return self._flat(queries)

    def checked_pairs(self, queries: Tensor, ids: Tensor) -> Tensor:
        """Check the arguments of `log_prob`, and return the queries as ``(N, d)``, in float32 or wider."""
        flat = self._flat(queries)
        check_tensors(ids=ids)
        if ids.ndim != queries.ndim or ids.shape[:-1] != queries.shape[:-1] or not ids.shape[-1]:
            raise ValueError(
                f"ids has shape {tuple(ids.shape)}; expected ({', '.join(map(str, queries.shape[:-1]))}, n), n ≥ 1"
            )
        self.check_ids(ids)
        return flat

    def check_ids(self, ids: Tensor, name: str = "ids") -> None:
        """Refuse a tensor of anything but classes, calling it ``name``."""
        check_tensors(**{name: ids})
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise TypeError(f"{name} is a tensor of {ids.dtype}; expected whole numbers")
        if not ids.numel() or not can_look(ids):
            return
        low, high = (int(bound) for bound in ids.aminmax())
        if low < 0 or high >= self.n_classes:
            raise ValueError(
                f"{name} run from {low} to {high}; expected classes from 0 to {self.n_classes - 1}"
            )

    @override
    def extra_repr(self) -> str:
        return f"n_classes={self.n_classes}"

    def _sample(self, queries: Tensor, k: int, generator: Generator | None) -> Samples:
        raise NotImplementedError(f"{type(self).__name__} does not define its draws")

    def _log_prob(self, queries: Tensor, ids: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not define its probabilities")

    def _flat(self, queries: Tensor) -> Tensor:
        """Check queries and flatten them to ``(N, d)``, in float32 or wider."""
        check_tensors(queries=queries)
        if not queries.is_floating_point():
            raise TypeError(f"queries is a tensor of {queries.dtype}; expected a real floating-point tensor")
        width = "d" if self.dim is None else self.dim
        if not queries.ndim or not queries.numel() or self.dim not in (None, queries.shape[-1]):
            raise ValueError(
                f"queries has shape {tuple(queries.shape)}; expected (..., {width}) with at least one query"
            )
        check_finite(queries, queries, "queries")
        return queries.reshape(-1, queries.shape[-1]).to(torch.promote_types(queries.dtype, torch.float32))


class EmbeddingSampler(Sampler):
    """Sampler that compares queries with embeddings of the classes, of which it holds a copy.

    Args:
        class_embeddings: ``(C, d)``, finite.
        dtype: dtype of the copy, or else the wider one of the embeddings.
    """

    dim: int
    embeddings: Tensor

    def __init__(self, class_embeddings: Tensor, dtype: torch.dtype) -> None:
        check_tensors(class_embeddings=class_embeddings)
        if class_embeddings.ndim != 2:
            shape = tuple(class_embeddings.shape)
            raise ValueError(f"class_embeddings is a tensor of shape {shape}; expected a tensor (C, d)")
        super().__init__(len(class_embeddings))
        self.dim = class_embeddings.shape[1]
        rows = self._rows(class_embeddings, self.n_classes)
        dtype = torch.promote_types(class_embeddings.dtype, dtype)
        self.register_buffer("embeddings", rows.to(dtype, copy=True))

    @override
    def update_(self, ids: Tensor, embeddings: Tensor) -> Self:
        self.check_ids(ids)
        if ids.ndim != 1 or ids.unique().numel() != ids.numel():
            raise ValueError(
                f"ids has shape {tuple(ids.shape)} or repeats a class; expected distinct classes, (n,)"
            )
        self.embeddings[ids] = self._rows(embeddings, len(ids)).to(self.embeddings.dtype)
        if len(ids):
            self._refreshed(ids)
        return self

    @override
    def rebuild_(self, embeddings: Tensor | None = None) -> Self:
        if embeddings is not None:
            self.embeddings.copy_(self._rows(embeddings, self.n_classes))
        self._refreshed(None)
        return self

    @override
    def extra_repr(self) -> str:
        return f"n_classes={self.n_classes}, dim={self.dim}"

    def _rows(self, embeddings: Tensor, n: int) -> Tensor:
        """Check embeddings and bring them to the form in which they are held."""
        check_tensor("class_embeddings", embeddings, [(n, self.dim)])
        return embeddings.detach()

    @torch.no_grad()
    def _refreshed(self, ids: Tensor | None) -> None:
        with without_autocast(self.embeddings.device):
            self._refresh(ids)

    def _refresh(self, ids: Tensor | None) -> None:
        """Recompute what depends on the embeddings of these classes, or of all classes."""


# Samplers whose draws do not depend on the query.


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


# Exact draws from the softmax, at a cost that grows with the number of classes.


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


# Softmax sampling by random features: K̂(x, c) = φ(x)·ψ(y_c), so a sum over classes is one product per query.
#
# A tree over the classes holds in each node the sum of ψ(y_c) below it: φ(x) times a node is the estimated mass of all
# its classes. A draw walks down, choosing branches in proportion to their masses, and its probability is the product of
# the probabilities of these branches: known exactly, however good or bad the estimates are.
#
# Each node has length 1 and a log scale of its own, so that a long class cannot push the sums of others below the range
# of the dtype, and a sum depends on nothing but the classes below it.
#
# Levels, from the top: at most `tuning.TREE_TOP` nodes, which every query multiplies at once; then `tuning.TREE_FAN`
# children per node; at the bottom ``leaf_size`` classes per node, whose features are computed when a draw gets there,
# since the features of all classes would take ``leaf_size`` times the memory of the nodes.


_SMALLEST = 1e-20  # features of queries below this become 0; each query has length 1
_NOISE = (
    4  # units of rounding, relative to the lengths of query and node, at which a signed estimate counts as 0
)


class SoftmaxSampler(EmbeddingSampler):
    """Independent draws in proportion to the estimated kernel, in O(features · log C) per draw.

    A share ε of the draws is uniform, q = (1 − ε) q_tree + ε/C, so that every class can be drawn: estimates for long
    vectors underflow to 0 where the kernel does not, and a loss on draws that leave classes out is biased. For a map
    without negative estimates q_tree(c | x) = K̂(x, c) / Σ K̂(x, c'). Other maps can estimate a mass below 0: such a
    branch is not taken, nor is a branch whose mass is rounding noise; if all branches of a node are like that, one is
    drawn in proportion to its number of classes.

    Memory: the copy of the embeddings, C·d numbers, and up to 4/3 · C/leaf_size · features for the nodes. A million
    classes of length 200 and 256 features take 0.80 GB and 0.34 GB in float32, with leaves of 4.

    An update recomputes the nodes above a class from their children, so no error accumulates, and an update equals a
    rebuild. Embeddings that changed elsewhere and were not handed in make draws less good, never their probabilities
    wrong. Call `rebuild_` for new embeddings of all classes, and after ``feature_map.redraw_()``.

    Args:
        class_embeddings: y, ``(C, d)``; a copy is kept.
        feature_map: any map for vectors of length d, without heads, for the softmax or the Gaussian kernel.
        radius: give queries and embeddings this length r before they are mapped, so that the kernel is exp(r² cos θ);
            ``None`` leaves them as they are.
        uniform_share: ε. With 0, draws are in proportion to the estimates alone, and classes may be left out.
        leaf_size: classes per leaf; larger leaves save memory and cost time. With 1 the features of all classes are
            held: the default if they take at most 256 MB, and else 4.

    >>> import torch, hrf
    >>> _ = torch.manual_seed(0)
    >>> classes = 0.3 * torch.randn(50_000, 16)
    >>> sampler = hrf.sampling.SoftmaxSampler(classes, hrf.Positive(16, n_projections=32))
    >>> ids, log_probs = sampler.sample(torch.randn(7, 16), k=40)
    >>> ids.shape, log_probs.shape
    (torch.Size([7, 40]), torch.Size([7, 40]))
    >>> _ = sampler.update_(torch.tensor([3, 5]), torch.randn(2, 16))
    """

    def __init__(
        self,
        class_embeddings: Tensor,
        feature_map: FeatureMap,
        *,
        radius: float | None = None,
        uniform_share: float = 0.1,
        leaf_size: int | None = None,
    ) -> None:
        if radius is not None:
            check_positive("radius", radius)
        if not isinstance(feature_map, FeatureMap):
            raise TypeError(f"feature_map is of type {type(feature_map).__name__}; expected a FeatureMap")
        if feature_map.heads is not None or not feature_map.factorised:
            raise ValueError(
                f"the feature map has heads={feature_map.heads}, factorised={feature_map.factorised}; expected a "
                "map without heads whose estimates are products of features"
            )
        if not 0 <= uniform_share < 1:
            raise ValueError(f"uniform_share is {uniform_share}; expected 0 ≤ uniform_share < 1")
        self._radius = radius  # set before the embeddings, which are scaled to it
        super().__init__(class_embeddings, torch.promote_types(feature_map.dtype, torch.float32))
        if feature_map.dim != self.dim:
            raise ValueError(
                f"class_embeddings has {self.dim} columns, the map was built for {feature_map.dim}"
            )
        self.feature_map = feature_map.to(self.embeddings.device)
        self.uniform_share = uniform_share
        if leaf_size is None:
            held = self.tree_classes * feature_map.feature_dim * self.embeddings.itemsize
            leaf_size = 1 if held <= tuning.TREE_HELD_BYTES else tuning.TREE_LEAF
        self.leaf_size = check_count("leaf_size", leaf_size)
        self._spans = _spans(self.tree_classes, self.leaf_size)
        count = math.ceil(self.n_classes / self._spans[0])
        for level, _ in enumerate(self._spans):
            nodes = self.embeddings.new_zeros(count * tuning.TREE_FAN**level, feature_map.feature_dim)
            self.register_buffer(f"level_{level}", nodes)
            self.register_buffer(f"log_scale_{level}", nodes.new_full((len(nodes),), -torch.inf))
        self.rebuild_()

    @property
    def tree_classes(self) -> int:
        """Number of classes that decides on the levels of the tree."""
        return self.n_classes

    @property
    def levels(self) -> list[Tensor]:
        """Nodes from the top to the bottom, ``(nodes, features)`` per level, divided by exp of `log_scales`."""
        return [self.get_buffer(f"level_{level}") for level in range(len(self._spans))]

    @property
    def log_scales(self) -> list[Tensor]:
        """Logarithms of the lengths of nodes, ``(nodes,)`` per level; −∞ for a node without classes."""
        return [self.get_buffer(f"log_scale_{level}") for level in range(len(self._spans))]

    @override
    def extra_repr(self) -> str:
        sizes = f"radius={self._radius}, uniform_share={self.uniform_share}, leaf_size={self.leaf_size}"
        return f"{super().extra_repr()}, {sizes}"

    # Embeddings and the nodes above them.

    def _rows(self, embeddings: Tensor, n: int) -> Tensor:
        return self._at_radius(super()._rows(embeddings, n))

    def _at_radius(self, x: Tensor) -> Tensor:
        return x if self._radius is None else self._radius * F.normalize(x, dim=-1)

    def _refresh(self, ids: Tensor | None) -> None:
        everything = torch.arange(math.ceil(self.n_classes / self.leaf_size), device=self.embeddings.device)
        nodes = everything if ids is None else (ids // self.leaf_size).unique()
        for block in nodes.split(self._leaves_at_once()):
            self._put(-1, block, self._leaf_features(block))
        for level in range(len(self._spans) - 2, -1, -1):
            nodes = (nodes // tuning.TREE_FAN).unique()
            below = Features(self.levels[level + 1], self.log_scales[level + 1])
            children = [u.unflatten(0, (-1, tuning.TREE_FAN)) for u in below]
            for block in nodes.split(max(1, self._leaves_at_once() * self.leaf_size // tuning.TREE_FAN)):
                self._put(level, block, Features(*(u[block] for u in children)))

    def _put(self, level: int, nodes: Tensor, children: Features) -> None:
        """Make nodes the sums of their children, ``(n, j, features)`` with log scales ``(n, j)``."""
        values, log_scale = children
        top = log_scale.amax(-1, keepdim=True)
        weights = (log_scale - finite(top)).exp()
        sums = (weights.unsqueeze(-2) @ values).squeeze(-2)
        length = torch.linalg.vector_norm(sums, dim=-1, keepdim=True)
        self.levels[level][nodes] = sums.div_(length.clamp(min=torch.finfo(sums.dtype).tiny))
        self.log_scales[level][nodes] = (length.log() + top).squeeze(-1)

    def _leaf_features(self, leaves: Tensor) -> Features:
        """Compute features of the classes in leaves, ``(n, leaf_size, ·)``, and one scale each: −∞ past the last."""
        ids = _children(leaves, self.leaf_size)
        y = self.embeddings.index_select(0, ids.clamp(max=self.n_classes - 1).flatten()).unsqueeze(0)
        place = y.new_empty(1, y.shape[1], self.feature_map.feature_dim)
        values, log_scale = self.feature_map.scaled_into(y, "key", place)
        log_scale = log_scale.view(ids.shape).masked_fill(ids >= self.n_classes, -torch.inf)
        return Features(values.view(*ids.shape, -1), log_scale)

    def _leaves_at_once(self) -> int:
        return max(1, tuning.TREE_FLOATS // (self.leaf_size * self.feature_map.feature_dim))

    # The walk down.

    def _sample(self, queries: Tensor, k: int, generator: Generator | None) -> Samples:
        drawn = []
        for x in self.query_features(queries).split(tuning.TREE_QUERIES):
            drawn.append(self.walk(x, k, self._uniform(len(x), k, generator), generator=generator))
        ids, log_q = map(torch.cat, zip(*drawn, strict=True))
        return Samples(ids, self._mixed(log_q))

    def _log_prob(self, queries: Tensor, ids: Tensor) -> Tensor:
        blocks = zip(
            self.query_features(queries).split(tuning.TREE_QUERIES),
            ids.split(tuning.TREE_QUERIES),
            strict=True,
        )
        return self._mixed(
            torch.cat([self.walk(x, ids.shape[1], block, drawn=False).log_probs for x, block in blocks])
        )

    def query_features(self, queries: Tensor) -> Tensor:
        """Compute features of the queries, ``(N, features)``; the scale of a row cancels."""
        values, _ = self.feature_map.scaled_queries(self._at_radius(queries.to(self.embeddings.dtype)))
        values = F.normalize(values, dim=-1)
        # Products with tiny features would be subnormal numbers, on which processors are slow.
        return values.masked_fill_(values.abs() < _SMALLEST, 0)

    def log_mass(self, x: Tensor) -> Tensor:
        """Return the log of the mass of all classes for features of queries, as a walk sees it: ``(N, ·) -> (N,)``."""
        products = x @ self.levels[0].mT
        logs = products.clamp(min=0).log().masked_fill(products <= self._floor(), -torch.inf)
        return torch.logsumexp(logs + self.log_scales[0], -1)

    def walk(
        self,
        x: Tensor,
        k: int,
        forced: Tensor | None = None,
        *,
        drawn: bool = True,
        generator: Generator | None = None,
    ) -> Samples:
        """Draw by the tree alone, without the share of uniform draws, or follow the way to given classes.

        Args:
            x: features of queries, ``(n, features)``.
            k: number of draws.
            forced: classes whose way is given, ``(n, k)``; negative where a class is drawn.
            drawn: whether there is anything to draw.
            generator: the source of randomness.
        """
        step = partial(step_down, n_classes=self.n_classes, forced=forced, drawn=drawn, generator=generator)
        weigh = partial(branch_weights, floor=self._floor())
        (top, *levels), (top_scale, *scales) = self.levels, self.log_scales
        nodes = torch.arange(len(top), device=x.device).view(1, 1, -1)
        node, log_q = step(weigh((x @ top.mT).unsqueeze(1), top_scale), nodes, self._spans[0], k)
        for level, scale, span in zip(levels, scales, self._spans[1:], strict=True):
            nodes = _children(node, tuning.TREE_FAN)
            products = chosen_products(x, level, nodes.flatten(1)).view(nodes.shape)
            node, log_p = step(weigh(products, scale[nodes]), nodes, span, 1)
            log_q += log_p
        if self.leaf_size > 1:
            nodes = _children(node, self.leaf_size)
            node, log_p = step(weigh(*self._leaf_products(x, node)), nodes, 1, 1)
            log_q += log_p
        return Samples(node, log_q)

    def _floor(self) -> float:
        """Return the cosine of query and node up to which a mass is rounding noise; sums without signs have none."""
        return 0.0 if self.feature_map.nonnegative else _NOISE * torch.finfo(self.embeddings.dtype).eps

    def _leaf_products(self, x: Tensor, leaves: Tensor) -> Features:
        """Multiply queries and classes of leaves: ``(n, features), (n, k) -> (n, k, leaf_size)``, with log scales."""
        n = max(1, self._leaves_at_once() // leaves.shape[1])
        blocks = [self._leaf_block(*block) for block in zip(x.split(n), leaves.split(n), strict=True)]
        return Features(*map(torch.cat, zip(*blocks, strict=True)))

    def _leaf_block(self, x: Tensor, leaves: Tensor) -> Features:
        values, log_scale = self._leaf_features(leaves.flatten())
        products = (values.view(len(x), -1, values.shape[-1]) @ x.unsqueeze(-1)).view(log_scale.shape)
        if not self.feature_map.nonnegative:
            length = torch.linalg.vector_norm(values, dim=-1)
            products, log_scale = products / length.clamp(min=_SMALLEST), log_scale + length.log()
        return Features(products.unflatten(0, leaves.shape), log_scale.unflatten(0, leaves.shape))

    def _uniform(self, n: int, k: int, generator: Generator | None) -> Tensor | None:
        if not self.uniform_share:
            return None
        return uniform_ids((n, k), self.n_classes, self.uniform_share, generator, self.embeddings.device)

    def _mixed(self, log_q: Tensor) -> Tensor:
        return mixed(log_q, self.uniform_share, self.n_classes)


def _children(nodes: Tensor, n: int) -> Tensor:
    """Number the n children of nodes: ``(...) -> (..., n)``."""
    return nodes.unsqueeze(-1) * n + torch.arange(n, device=nodes.device)


def _spans(n_classes: int, leaf_size: int) -> list[int]:
    """Count the classes per node, level by level from the top."""
    spans = [leaf_size]
    while n_classes > tuning.TREE_TOP * spans[0]:
        spans.insert(0, spans[0] * tuning.TREE_FAN)
    return spans

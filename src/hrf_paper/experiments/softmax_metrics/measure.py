"""How near the estimated softmax distributions of a trained language model are to the true ones.

For a query q the true distribution over the words is p ∝ exp(τ qᵀk). Estimates of the kernel below 0 are set to 0 and
the row is divided by its sum; a row without any estimate above 0 counts as uniform. With distribution functions F and
F̂ over the words in the order of their first appearance in the text, as in the authors' programs,

    Wasserstein = Σ |F − F̂|,   Kolmogorov–Smirnov = max |F − F̂|,   negative fraction = share of estimates < 0.

Queries are scaled by √τ and keys too, for every estimator alike: kernel and estimates see exp(τ qᵀk). (The
published WikiText-2 numbers come from hybrids on inputs scaled by d^{−1/4} and bases on inputs that were not.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Generator, Tensor

import hrf
from hrf.advice.cost import active_width
from hrf.features.base import Features
from hrf_paper import datasets
from hrf_paper.datasets import Corpus, batches
from hrf_paper.experiments.shared.estimators import BASES, HYBRIDS, MATCHINGS, Estimator, matched
from hrf_paper.experiments.experiment import Part
from hrf_paper.experiments.shared.language_model import Training
from hrf_paper.experiments.softmax_metrics.printed import SIZES
from hrf_paper.experiments.shared.training import Trainer

__all__ = ["FITTED", "UNIFORM", "Settings", "distances", "epoch_key", "key", "metric_means", "parts"]

FITTED = ("FAVOR++", "FAVOR#", "fitted", "clustered", "separable")
UNIFORM = "uniform"
_KEYS = 2048  # at a time
_BINS = 40


@dataclass(frozen=True)
class Settings:
    """``features`` are the D of the maps; fitted maps see other queries than they are judged on.

    Attributes:
        training: of the model; its seed is the one here.
        features: projections of bases and fitted maps, and the size that hybrids are matched to.
        n_coefficient_projections: n of hybrids.
        queries: of the test text, judged on.
        fitted: queries of the validation text, and keys, that maps are fitted to.
        clusters: of queries and of keys in the clustered map; the separable one has D of them.
        redraws: of every map.
        seed: of everything random.
    """

    training: Training
    features: tuple[int, ...] = SIZES
    n_coefficient_projections: int = 8
    queries: int = 256
    fitted: int = 4096
    clusters: int = 8
    redraws: int = 10
    seed: int = 0


def key(name: str, features: int, matching: str = "") -> str:
    """The name of an estimator's part."""
    return f"{name}, D = {features}" + (f", {matching}" if name in HYBRIDS else "")


def epoch_key(epoch: int) -> str:
    """The name of an epoch's part."""
    return f"epoch {epoch}"


def parts(settings: Settings) -> dict[str, Part]:
    """One an epoch of training, then the model's lengths, then one an estimator and size."""
    lab = _Lab(settings, getattr(datasets, settings.training.text)())
    work: dict[str, Part] = {
        epoch_key(epoch): partial(lab.epoch, epoch) for epoch in range(1, settings.training.epochs + 1)
    }
    work["model"] = lab.lengths
    work[UNIFORM] = lab.uniform
    for features in settings.features:
        for name in BASES:
            work[key(name, features)] = partial(lab.part, partial(lab.base, name, features))
        for matching in MATCHINGS:
            for name in HYBRIDS:
                build = partial(lab.hybrid, name, features, matching)
                work[key(name, features, matching)] = partial(lab.part, build)
        for name in FITTED:
            work[key(name, features)] = partial(lab.part, partial(lab.fitted, name, features))
    return work


class _Lab:
    """What all parts share; made when a part needs it, so that kept ones cost nothing."""

    def __init__(self, settings: Settings, corpus: Corpus) -> None:
        self.settings, self.corpus = settings, corpus
        self.training = replace(settings.training, seed=settings.seed)

    @cached_property
    def trainer(self) -> Trainer:
        """From its last checkpoint."""
        return Trainer(self.training, self.corpus)

    @cached_property
    def _model(self) -> Trainer:
        self.trainer.trained(self.training.epochs)
        return self.trainer

    @cached_property
    def keys(self) -> Tensor:
        """Times √τ, in the order of first appearance: ``(V, d)``."""
        weight = self._model.model.words.weight.detach()
        order = _first_appearance(self.corpus.train, len(weight))
        return math.sqrt(self.training.temperature) * weight[order]

    @cached_property
    def queries(self) -> Tensor:
        """Of the test text, times √τ."""
        return self._queries(self.corpus.test, self.settings.queries)

    @cached_property
    def other_queries(self) -> Tensor:
        """Of the validation text, to fit to."""
        return self._queries(self.corpus.valid, self.settings.fitted)

    @cached_property
    def other_keys(self) -> Tensor:
        """Some of them, to fit to."""
        chosen = torch.randperm(len(self.keys), generator=self._generator())[: self.settings.fitted]
        return self.keys[chosen]

    @torch.no_grad()
    def _queries(self, ids: Tensor, count: int) -> Tensor:
        """At random places of the text: ``(count, d)``."""
        model = self._model.model.eval()
        text = batches(ids[: self.training.judged_words], self.training.batch_size, self.training.length)
        found, state = [], None
        for words, _ in text:
            queries, state = model(words, state)
            found.append(queries.flatten(0, 1))
        everything = torch.cat(found)
        if len(everything) < count:
            raise ValueError(f"{count} queries are wanted, but the text has {len(everything)}")
        chosen = torch.randperm(len(everything), generator=self._generator())[:count]
        return math.sqrt(self.training.temperature) * everything[chosen]

    @cached_property
    def exact(self) -> Tensor:
        """The true distributions, ``(N, V)``."""
        return hrf.kernels.log_softmax_kernel(self.queries.double(), self.keys.double()).softmax(-1)

    @cached_property
    def length(self) -> float:
        """The root of the mean square of all lengths."""
        squares = [u.square().sum(-1).mean() for u in (self.other_queries, self.keys)]
        return float(((squares[0] + squares[1]) / 2).sqrt())

    def _generator(self) -> Generator:
        return Generator().manual_seed(self.settings.seed)

    # Maps.

    def base(self, name: str, features: int, generator: Generator) -> hrf.FeatureMap:
        """With D projections."""
        return Estimator(name, self.training.width, features, projection="orthogonal")(None, generator)

    def hybrid(self, name: str, features: int, matching: str, generator: Generator) -> hrf.FeatureMap:
        """Of the size that one of `MATCHINGS` gives it."""
        hybrid = Estimator(
            name,
            self.training.width,
            1,
            self.settings.n_coefficient_projections,
            "orthogonal",
            sigma=1 / self.length,
            radius=self.length,
        )
        return matched(hybrid, matching, features)(None, generator)

    def fitted(self, name: str, features: int, generator: Generator) -> hrf.FeatureMap:
        """With D projections, or D clusters a side."""
        x, y = self.other_queries, self.other_keys
        drawn: dict[str, Any] = {"n_projections": features, "generator": generator}
        if name == "FAVOR++":
            return hrf.OptimalPositive(self.training.width, **drawn).fit(x, y)
        if name == "FAVOR#":
            return hrf.DenseExponential(self.training.width, **drawn).fit(x, y)
        if name == "fitted":
            return hrf.Exponential.fit(x, y, matrix="real-full", **drawn)
        common: dict[str, Any] = {"matrix": "real-full", "seed": self.settings.seed}
        if name == "separable":
            return hrf.ClusteredHybrid.fit(x, y, n_clusters=(features,) * 2, base="separable", **common)
        clusters = (self.settings.clusters,) * 2
        return hrf.ClusteredHybrid.fit(
            x, y, n_clusters=clusters, base="shifted", features="dense", **common, **drawn
        )

    # Parts.

    def epoch(self, number: int) -> dict[str, Any]:
        """Train to the end of an epoch."""
        return {"perplexity": self.trainer.trained(number)}

    def lengths(self) -> dict[str, Any]:
        """Of queries and keys, without √τ; the perplexity of the test text, and the mean largest probability."""
        found: dict[str, Any] = {
            "test perplexity": self._model.test_perplexity(),
            "largest": float(self.exact.amax(-1).mean()),
        }
        factor = math.sqrt(self.training.temperature)
        for name, vectors in (("queries", self.other_queries), ("keys", self.keys)):
            norms = vectors.norm(dim=-1) / factor
            counts, edges = torch.histogram(norms, _BINS)
            found[name] = {"mean": float(norms.mean()), "counts": counts.tolist(), "edges": edges.tolist()}
        return found

    def uniform(self) -> dict[str, Any]:
        """All words alike."""
        ones = torch.ones_like(self.exact)
        return {name: [value] for name, value in distances(Features(ones, ones), self.exact).items()}

    @torch.no_grad()
    def part(self, build: Callable[[Generator], hrf.FeatureMap]) -> dict[str, Any]:
        """An estimator, over redraws; a map without randomness is met once."""
        generator = self._generator()
        phi = build(generator)
        found: dict[str, Any] = {"width": active_width(phi), "flops": phi.flops()}
        random = any(True for _ in phi.all_projections())
        for k in range(self.settings.redraws if random else 1):
            if k:
                phi.redraw_(generator)
            blocks = [phi.scaled_estimate(self.queries, some) for some in self.keys.split(_KEYS)]
            values, log_scale = (torch.cat([*columns], -1) for columns in zip(*blocks, strict=True))
            for name, value in distances(Features(values, log_scale), self.exact).items():
                found.setdefault(name, []).append(value)
        return found


def distances(estimate: Features, exact: Tensor) -> dict[str, float]:
    """Wasserstein, KS, negative fraction and the largest probability, means over rows, and the share of hopeless rows.

    Those have no positive estimate, and count as uniform.

    Args:
        estimate: of the kernel, ``(N, V)``, at any scale.
        exact: distributions, ``(N, V)`` in float64.
    """
    values = estimate.values.double()
    # The largest scale is looked for where it counts.
    scale = estimate.log_scale.double().expand_as(values).masked_fill(values <= 0, -torch.inf)
    weights = values.clamp(min=0) * (scale - scale.amax(-1, keepdim=True)).exp().nan_to_num(0.0)
    hopeless = weights.sum(-1, keepdim=True) == 0
    weights = torch.where(hopeless, 1.0, weights)
    distribution = weights / weights.sum(-1, keepdim=True)
    gap = (distribution - exact).cumsum(-1).abs()
    return {
        "wasserstein": float(gap.sum(-1).mean()),
        "ks": float(gap.amax(-1).mean()),
        "negative": float((values < 0).double().mean()),
        "largest": float(distribution.amax(-1).mean()),
        "hopeless": float(hopeless.double().mean()),
    }


def metric_means(part: dict[str, Any]) -> dict[str, float]:
    """Means over redraws."""
    names = "wasserstein", "ks", "negative", "largest", "hopeless"
    return {name: sum(part[name]) / len(part[name]) for name in names}


def _first_appearance(ids: Tensor, n_words: int) -> Tensor:
    """All words in the order in which a text has them; those that it does not have come last."""
    places = torch.full((n_words,), len(ids))
    places.scatter_reduce_(0, ids, torch.arange(len(ids)), "amin")
    return places.argsort(stable=True)

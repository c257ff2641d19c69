"""Train a language model, estimate its softmax distributions, and measure how near they are to the true ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Generator, Tensor

import hrf
from hrf import catalogue
from hrf_paper import datasets
from hrf_paper.datasets import Corpus, batches
from hrf_paper.experiments.estimators import BASES, HYBRIDS, MATCHINGS, Estimator, matched
from hrf_paper.experiments.experiment import Part
from hrf_paper.experiments.language_model import Trainer, Training

# Tables of the paper on softmax distributions of language models: mean and deviation over 10 runs.

SIZES = (64, 128, 256, 512)
METRICS = {"wasserstein": "1-d Wasserstein", "ks": "Kolmogorov–Smirnov", "negative": "negative fraction"}

Row = tuple[tuple[float, float], ...]  # one pair per size

PRINTED: dict[str, dict[str, dict[str, Row]]] = {
    "penn_treebank": {
        "wasserstein": {
            "FAVOR+": ((3171.35, 69.04), (3142.65, 85.55), (3050.58, 108.25), (2985.18, 73.15)),
            "trigonometric": ((1577.44, 13.59), (1582.50, 13.42), (1574.22, 7.01), (1576.50, 5.83)),
            "Gaussian hybrid": ((1520.32, 11.65), (1521.10, 8.79), (1516.50, 6.66), (1515.41, 5.96)),
            "angular hybrid": ((1395.03, 79.91), (1445.24, 58.27), (1394.97, 62.73), (1425.88, 65.82)),
        },
        "ks": {
            "FAVOR+": ((0.573, 0.0073), (0.569, 0.0098), (0.558, 0.013), (0.551, 0.0092)),
            "trigonometric": ((0.424, 0.0040), (0.427, 0.0041), (0.425, 0.0024), (0.424, 0.0023)),
            "Gaussian hybrid": ((0.411, 0.0029), (0.410, 0.0019), (0.410, 0.0013), (0.410, 0.0014)),
            "angular hybrid": ((0.404, 0.017), (0.419, 0.010), (0.418, 0.0089), (0.414, 0.0093)),
        },
        "negative": {
            "trigonometric": ((0.257, 0.0057), (0.258, 0.0039), (0.258, 0.0021), (0.257, 0.0017)),
            "Gaussian hybrid": ((0.155, 0.0039), (0.159, 0.0019), (0.157, 0.0011), (0.151, 0.0009)),
            "angular hybrid": ((0.152, 0.0041), (0.158, 0.0027), (0.153, 0.0018), (0.157, 0.0013)),
        },
    },
    "wikitext2": {
        "wasserstein": {
            "FAVOR+": ((12970.38, 119.49), (12971.67, 108.79), (12965.82, 89.62), (12954.17, 83.95)),
            "trigonometric": ((12913.66, 59.22), (12912.65, 57.42), (12910.91, 37.23), (12913.25, 35.12)),
            "Gaussian hybrid": ((12809.03, 97.2), (12805.71, 78.91), (12808.02, 84.57), (12809.40, 65.88)),
            "angular hybrid": ((12833.56, 41.87), (12765.44, 38.91), (12561.26, 26.48), (12534.48, 25.88)),
        },
        "ks": {
            "FAVOR+": ((0.687, 0.0043), (0.687, 0.0051), (0.687, 0.0019), (0.686, 0.0067)),
            "trigonometric": ((0.685, 0.0071), (0.685, 0.0053), (0.685, 0.0029), (0.685, 0.0014)),
            "Gaussian hybrid": ((0.683, 0.0092), (0.683, 0.0073), (0.683, 0.0049), (0.682, 0.0089)),
            "angular hybrid": ((0.682, 0.0079), (0.682, 0.0066), (0.682, 0.0037), (0.678, 0.0064)),
        },
    },
}

PRINTED_PERPLEXITY = {"wikitext2": 105.35}  # on the test text, after 50 epochs


# Distances between estimated and true softmax distributions.


def distances(estimate: hrf.Features, exact: Tensor) -> dict[str, float]:
    """Return Wasserstein, KS, negative fraction, the largest probability and the share of hopeless rows.

    All are means over rows. Hopeless rows have no positive estimate, and count as uniform.

    Args:
        estimate: estimates of the kernel, ``(N, V)``, at any scale.
        exact: true distributions, ``(N, V)`` in float64.
    """
    values = estimate.values.double()
    # Only positive estimates take part in the search for the largest scale.
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
    """Return the means over redraws."""
    names = "wasserstein", "ks", "negative", "largest", "hopeless"
    return {name: sum(part[name]) / len(part[name]) for name in names}


FITTED = ("FAVOR++", "FAVOR#", "fitted", "clustered", "separable")
UNIFORM = "uniform"
_KEYS = 2048  # at a time
_BINS = 40


@dataclass(frozen=True)
class SoftmaxMetricsSettings:
    """``features`` are the D of the maps; maps are fitted to other queries than they are judged on.

    Attributes:
        training: the model and its training, whose seed is replaced by ``seed``.
        features: projections of bases and fitted maps, and the size that hybrids are matched to.
        n_coefficient_projections: n of hybrids.
        queries: the number of queries of the test text that maps are judged on.
        fitted: the number of queries of the validation text, and of keys, that maps are fitted to.
        clusters: clusters of queries and of keys in the clustered map; the separable map has D of each.
        redraws: draws of every map.
        seed: the seed of everything random.
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
    """Return the name of an estimator's part."""
    return f"{name}, D = {features}" + (f", {matching}" if name in HYBRIDS else "")


def epoch_key(epoch: int) -> str:
    """Return the name of an epoch's part."""
    return f"epoch {epoch}"


def parts(settings: SoftmaxMetricsSettings) -> dict[str, Part]:
    """Return one part per epoch of training, then the model's lengths, then one part per estimator and size."""
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
    """State that parts share, made when a part needs it, so that finished parts cost nothing."""

    def __init__(self, settings: SoftmaxMetricsSettings, corpus: Corpus) -> None:
        self.settings, self.corpus = settings, corpus
        self.training = replace(settings.training, seed=settings.seed)

    @cached_property
    def trainer(self) -> Trainer:
        """The trainer, at its last checkpoint."""
        return Trainer(self.training, self.corpus)

    @cached_property
    def _model(self) -> Trainer:
        self.trainer.trained(self.training.epochs)
        return self.trainer

    @cached_property
    def keys(self) -> Tensor:
        """Keys times √τ, in the order of first appearance: ``(V, d)``."""
        weight = self._model.model.words.weight.detach()
        order = _first_appearance(self.corpus.train, len(weight))
        return math.sqrt(self.training.temperature) * weight[order]

    @cached_property
    def queries(self) -> Tensor:
        """Queries of the test text, times √τ."""
        return self._queries(self.corpus.test, self.settings.queries)

    @cached_property
    def other_queries(self) -> Tensor:
        """Queries of the validation text, to fit to."""
        return self._queries(self.corpus.valid, self.settings.fitted)

    @cached_property
    def other_keys(self) -> Tensor:
        """A random choice of keys, to fit to."""
        chosen = torch.randperm(len(self.keys), generator=self._generator())[: self.settings.fitted]
        return self.keys[chosen]

    @torch.no_grad()
    def _queries(self, ids: Tensor, count: int) -> Tensor:
        """Return queries at random places of the text: ``(count, d)``."""
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
        """True distributions, ``(N, V)``."""
        return hrf.kernels.log_softmax_kernel(self.queries.double(), self.keys.double()).softmax(-1)

    @cached_property
    def length(self) -> float:
        """Root mean square length of queries and keys."""
        squares = [u.square().sum(-1).mean() for u in (self.other_queries, self.keys)]
        return float(((squares[0] + squares[1]) / 2).sqrt())

    def _generator(self) -> Generator:
        return Generator().manual_seed(self.settings.seed)

    # Maps.

    def base(self, name: str, features: int, generator: Generator) -> hrf.FeatureMap:
        """Build a base with D projections."""
        return Estimator(name, self.training.width, features, projection="orthogonal")(None, generator)

    def hybrid(self, name: str, features: int, matching: str, generator: Generator) -> hrf.FeatureMap:
        """Build a hybrid at the size that one of `MATCHINGS` gives it."""
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
        """Build a fitted map with D projections, or D clusters per side."""
        x, y = self.other_queries, self.other_keys
        if name == "fitted":
            return hrf.Exponential.fit(x, y, matrix="real-full", n_projections=features, generator=generator)
        c = self.settings.clusters
        common: dict[str, Any] = {"matrix": "real-full", "seed": self.settings.seed}
        named, options = {
            "FAVOR++": (f"FAVOR++ {features}", {}),
            "FAVOR#": (f"FAVOR# {features}", {}),
            "clustered": (f"shifted ({c}, {c}) {features}", common | {"features": "dense"}),
            "separable": (f"separable ({features}, {features})", common),
        }[name]
        return catalogue.build(named, self.training.width, queries=x, keys=y, generator=generator, **options)

    # Parts.

    def epoch(self, number: int) -> dict[str, Any]:
        """Train to the end of an epoch."""
        return {"perplexity": self.trainer.trained(number)}

    def lengths(self) -> dict[str, Any]:
        """Measure lengths without √τ, the perplexity of the test text, and the mean largest probability."""
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
        """Measure the uniform distribution."""
        ones = torch.ones_like(self.exact)
        return {name: [value] for name, value in distances(hrf.Features(ones, ones), self.exact).items()}

    @torch.no_grad()
    def part(self, build: Callable[[Generator], hrf.FeatureMap]) -> dict[str, Any]:
        """Measure an estimator over redraws; a map without randomness is measured once."""
        generator = self._generator()
        phi = build(generator)
        found: dict[str, Any] = {"width": phi.active_width, "flops": phi.flops()}
        for k in range(self.settings.redraws if phi.is_random else 1):
            if k:
                phi.redraw_(generator)
            blocks = [phi.scaled_estimate(self.queries, keys) for keys in self.keys.split(_KEYS)]
            values, log_scale = (torch.cat([*columns], -1) for columns in zip(*blocks, strict=True))
            for name, value in distances(hrf.Features(values, log_scale), self.exact).items():
                found.setdefault(name, []).append(value)
        return found


def _first_appearance(ids: Tensor, n_words: int) -> Tensor:
    """Return all words in the order of their first appearance in a text; words that it lacks come last."""
    places = torch.full((n_words,), len(ids))
    places.scatter_reduce_(0, ids, torch.arange(len(ids)), "amin")
    return places.argsort(stable=True)

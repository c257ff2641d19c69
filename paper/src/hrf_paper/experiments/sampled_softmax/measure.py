"""Train language models with drawn words: validation perplexity by epoch, sampler and seed.

Samplers of random features draw with queries and embeddings of one length r: the paper's 1, and 2. The distances of
such draws from uniform draws and from the softmax are known without any features: q ∝ exp(r² cos θ).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hrf_paper import datasets
from hrf_paper.datasets import Corpus, batches
from hrf_paper.experiments.experiment import Part, Results
from hrf_paper.experiments.shared.language_model import Draws, Training
from hrf_paper.experiments.shared.training import Trainer

__all__ = [
    "DISTANCES",
    "FULL",
    "LONGER",
    "MAPS",
    "RADIUS",
    "SAMPLERS",
    "WIDE",
    "Settings",
    "key",
    "last_perplexities",
    "mean_perplexity",
    "parts",
    "perplexities",
]

RADIUS, WIDE = 1.0, 2.0
MAPS = ("trigonometric", "FAVOR+", "angular hybrid", "Gaussian hybrid")
LONGER = f"FAVOR+, r = {WIDE:g}"
SAMPLERS: dict[str, tuple[str, float]] = {
    "uniform": ("uniform", RADIUS),
    "exact": ("exact", RADIUS),
    **{name: (name, RADIUS) for name in MAPS},
    LONGER: ("FAVOR+", WIDE),
}
DISTANCES = "draws"  # the part with distances of proposals
_QUERIES = 256


@dataclass(frozen=True)
class Settings:
    """``training`` is common to all runs; its draws and seed are replaced by the fields below.

    Attributes:
        training: the models and their training.
        seeds: runs per sampler.
        k: words drawn per target.
        features: D of bases; hybrids get m·n = D.
        n_coefficient_projections: n of hybrids.
        rebuild_every: steps after which a sampler is rebuilt from the current embeddings.
        seed: the seed of the first run; the other runs follow.
    """

    training: Training
    seeds: int
    k: int = 40
    features: int = 1024
    n_coefficient_projections: int = 8
    rebuild_every: int = 20
    seed: int = 0


# The paper's figure was drawn with these settings.
FULL = Settings(Training("penn_treebank", width=200, epochs=80), seeds=25, rebuild_every=1)


def key(sampler: str, run: int, epoch: int) -> str:
    """Return the name of an epoch's part."""
    return f"{sampler}, run {run}, epoch {epoch}"


def parts(settings: Settings) -> dict[str, Part]:
    """Return one part per sampler, run and epoch, and at last the distances of proposals."""
    runs = _Runs(settings, getattr(datasets, settings.training.text)())
    work: dict[str, Part] = {
        key(sampler, run, epoch): partial(runs.epoch, sampler, run, epoch)
        for sampler in SAMPLERS
        for run in range(settings.seeds)
        for epoch in range(1, settings.training.epochs + 1)
    }
    return work | {DISTANCES: runs.distances}


class _Runs:
    """All trainings, one of them in memory at a time."""

    def __init__(self, settings: Settings, corpus: Corpus) -> None:
        self.settings, self.corpus = settings, corpus
        self._held: Trainer | None = None

    def _trainer(self, sampler: str, run: int) -> Trainer:
        name, radius = SAMPLERS[sampler]
        s = self.settings
        draws = Draws(name, s.k, s.features, s.n_coefficient_projections, radius, s.rebuild_every)
        training = replace(s.training, draws=draws, seed=s.seed + run)
        if self._held is None or self._held.training != training:
            self._held = Trainer(training, self.corpus)
        return self._held

    def epoch(self, sampler: str, run: int, epoch: int) -> dict[str, Any]:
        """Train to the end of an epoch."""
        return {"perplexity": self._trainer(sampler, run).trained(epoch)}

    @torch.no_grad()
    def distances(self) -> dict[str, Any]:
        """Measure the total variation from exp(r² cos θ) to the uniform distribution and to the softmax."""
        trainer = self._trainer("exact", 0)
        trainer.trained(self.settings.training.epochs)
        model, training = trainer.model.eval(), self.settings.training
        first = batches(self.corpus.valid[: training.judged_words], training.batch_size, training.length)[0]
        queries = model(first.inputs)[0].flatten(0, 1)[:_QUERIES]
        keys = model.words.weight
        softmax = (queries @ keys.mT).softmax(-1)
        cosines = F.normalize(queries, dim=-1) @ F.normalize(keys, dim=-1).mT
        uniform = torch.full_like(softmax, 1 / len(keys))
        found = {"uniform": {"softmax": _variation(uniform, softmax)}}
        for radius in (RADIUS, WIDE):
            proposal = (radius**2 * cosines).softmax(-1)
            found[f"r = {radius:g}"] = {
                "uniform": _variation(proposal, uniform),
                "softmax": _variation(proposal, softmax),
            }
        return found


def _variation(p: Tensor, q: Tensor) -> float:
    """Return ½ Σ |p − q|, the mean over rows."""
    return float((p - q).abs().sum(-1).mean() / 2)


def perplexities(settings: Settings, results: Results, sampler: str, epoch: int) -> list[float]:
    """Return the perplexities after an epoch, one per run."""
    return [results[key(sampler, run, epoch)]["perplexity"] for run in range(settings.seeds)]


def last_perplexities(settings: Settings, results: Results, sampler: str) -> list[float]:
    """Return the perplexities after the last epoch, one per run."""
    return perplexities(settings, results, sampler, settings.training.epochs)


def mean_perplexity(settings: Settings, results: Results, sampler: str) -> float:
    """Return the mean perplexity after the last epoch."""
    return statistics.fmean(last_perplexities(settings, results, sampler))

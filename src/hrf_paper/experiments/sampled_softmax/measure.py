"""Language models trained with drawn words (paper, Appendix): validation perplexity by epoch, sampler and seed.

Samplers of random features draw with queries and embeddings of one length r, the paper's 1 and another. How near
such draws are to uniform ones, and how far from the softmax, is known without any features: q ∝ exp(r² cos θ).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hrf_paper import datasets
from hrf_paper.datasets import Corpus, batches
from hrf_paper.experiments.experiment import Part
from hrf_paper.experiments.shared.language_model import Draws, Training
from hrf_paper.experiments.shared.training import Trainer

__all__ = ["DISTANCES", "MAPS", "RADIUS", "SAMPLERS", "WIDE", "Settings", "key", "parts"]

RADIUS, WIDE = 1.0, 2.0
MAPS = ("trigonometric", "FAVOR+", "angular hybrid", "Gaussian hybrid")
_LONGER = f"FAVOR+, r = {WIDE:g}"
SAMPLERS: dict[str, tuple[str, float]] = {
    "uniform": ("uniform", RADIUS),
    "exact": ("exact", RADIUS),
    **{name: (name, RADIUS) for name in MAPS},
    _LONGER: ("FAVOR+", WIDE),
}
DISTANCES = "draws"  # the part about them
_QUERIES = 256


@dataclass(frozen=True)
class Settings:
    """``training`` is what all runs share; its draws and seeds are the ones here.

    Attributes:
        training: of the models.
        seeds: how many runs a sampler.
        k: words drawn for a target.
        features: D of bases; hybrids get m·n = D.
        n_coefficient_projections: n of hybrids.
        rebuild_every: steps after which a sampler learns new embeddings.
        seed: the first one.
    """

    training: Training
    seeds: int
    k: int = 40
    features: int = 1024
    n_coefficient_projections: int = 8
    rebuild_every: int = 20
    seed: int = 0


def key(sampler: str, run: int, epoch: int) -> str:
    """The name of an epoch's part."""
    return f"{sampler}, run {run}, epoch {epoch}"


def parts(settings: Settings) -> dict[str, Part]:
    """One a sampler, run and epoch; the distances of proposals last."""
    runs = _Runs(settings, getattr(datasets, settings.training.text)())
    work: dict[str, Part] = {
        key(sampler, run, epoch): partial(runs.epoch, sampler, run, epoch)
        for sampler in SAMPLERS
        for run in range(settings.seeds)
        for epoch in range(1, settings.training.epochs + 1)
    }
    return work | {DISTANCES: runs.distances}


class _Runs:
    """Trainings, of which one is held at a time."""

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
        """Total variation between exp(r² cos θ) and the uniform distribution, and the softmax: means over queries."""
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
    """½ Σ |p − q|."""
    return float((p - q).abs().sum(-1).mean() / 2)

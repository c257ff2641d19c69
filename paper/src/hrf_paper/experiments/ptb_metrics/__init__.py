"""Softmax distributions of a language model on Penn Treebank, beside the paper's table."""

from __future__ import annotations

from hrf_paper.experiments.shared.language_model import Training
from hrf_paper.experiments.softmax_metrics import experiment
from hrf_paper.experiments.softmax_metrics.measure import Settings

__all__ = ["EXPERIMENT"]

_QUICK = Training(
    "penn_treebank",
    width=32,
    epochs=2,
    learning_rate=3e-3,
    words=10_000,
    judged_words=2_000,
    dropout=0.2,
)

EXPERIMENT = experiment(
    name="ptb-metrics",
    title="Softmax distributions of a language model on Penn Treebank",
    source="Section 4.3, Appendix on language modelling",
    # The paper does not say how long it trained on this text: as long as on WikiText-2.
    full=Settings(Training("penn_treebank", width=200, epochs=50), queries=1024),
    scaled=Settings(Training("penn_treebank", width=200, epochs=8, learning_rate=2e-3)),
    quick=Settings(_QUICK, features=(64, 128), queries=32, fitted=256, redraws=3),
)

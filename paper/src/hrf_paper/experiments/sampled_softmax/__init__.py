"""Language models trained on drawn words: uniform draws, the softmax itself, or random features (paper, Appendix)."""

from __future__ import annotations

from hrf_paper.experiments.experiment import Experiment
from hrf_paper.experiments.sampled_softmax.claims import claims
from hrf_paper.experiments.sampled_softmax.figure import figure
from hrf_paper.experiments.sampled_softmax.measure import FULL, Settings, parts
from hrf_paper.experiments.sampled_softmax.tables import tables
from hrf_paper.experiments.shared.language_model import Training

__all__ = ["EXPERIMENT"]

_SCALED = Training(
    "penn_treebank", width=200, epochs=5, learning_rate=2e-3, words=150_000, judged_words=20_000
)
_QUICK = Training(
    "penn_treebank",
    width=32,
    epochs=2,
    learning_rate=1e-2,
    dropout=0.2,
    words=5_000,
    judged_words=2_000,
)

EXPERIMENT = Experiment(
    name="sampled-softmax",
    title="Language models trained with drawn words",
    source="Appendix on language modelling with hybrids",
    full=FULL,
    scaled=Settings(_SCALED, seeds=3, features=256),
    quick=Settings(_QUICK, seeds=2, features=64),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
)

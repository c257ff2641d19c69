"""Softmax distributions of a language model on WikiText-2 with lengths near 1, beside the paper's table.

The full softmax over 33,278 words takes hours per epoch on a CPU, so the scaled-down training draws words.
"""

from __future__ import annotations

from typing import Any

from hrf_paper.experiments.shared.language_model import Draws, Training
from hrf_paper.experiments.softmax_metrics import experiment
from hrf_paper.experiments.softmax_metrics.measure import Settings

__all__ = ["EXPERIMENT"]

_COMMON: dict[str, Any] = {"temperature": 6.0, "length_penalty": 2.0}
_SCALED = Training(
    "wikitext2",
    width=650,
    epochs=2,
    words=1_000_000,
    judged_words=20_000,
    draws=Draws("log-uniform", k=100),
    **_COMMON,
)
_QUICK = Training(
    "wikitext2",
    width=32,
    epochs=2,
    learning_rate=3e-3,
    words=10_000,
    judged_words=2_000,
    dropout=0.2,
    draws=Draws("log-uniform"),
    **_COMMON,
)

EXPERIMENT = experiment(
    name="wikitext2-metrics",
    title="Softmax distributions of a language model on WikiText-2",
    source="Appendix on language modelling",
    full=Settings(Training("wikitext2", width=650, epochs=50, **_COMMON), queries=1024),
    scaled=Settings(_SCALED, queries=128),
    quick=Settings(_QUICK, features=(64, 128), queries=16, fitted=256, redraws=3),
)

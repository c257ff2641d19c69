"""Softmax distributions of a language model, estimated: shared by ptb-metrics and wikitext2-metrics.

For a query q the true distribution over the words is p ∝ exp(τ qᵀk). Estimates of the kernel below 0 are set to 0 and
the row is divided by its sum; a row without any estimate above 0 counts as uniform. With distribution functions F and
F̂ over the words in the order of their first appearance in the text, as in the authors' programs,

    Wasserstein = Σ |F − F̂|,   Kolmogorov–Smirnov = max |F − F̂|,   negative fraction = share of estimates < 0.

Queries and keys are scaled by √τ for every estimator alike: kernel and estimates see exp(τ qᵀk). (The published
WikiText-2 numbers compare hybrids on inputs scaled by d^{−1/4} with bases on unscaled inputs.)
"""

from __future__ import annotations

from hrf_paper.experiments.experiment import Experiment, Results, Table
from hrf_paper.experiments.shared.scaled_down import scaled_down
from hrf_paper.experiments.softmax_metrics.claims import claims
from hrf_paper.experiments.softmax_metrics.figure import figure
from hrf_paper.experiments.softmax_metrics.measure import Settings, parts
from hrf_paper.experiments.softmax_metrics.tables import tables

__all__ = ["experiment"]


def experiment(
    name: str, title: str, source: str, *, full: Settings, scaled: Settings, quick: Settings
) -> Experiment[Settings]:
    """Return the experiment on one text."""

    def all_tables(settings: Settings, results: Results) -> list[Table]:
        return [*tables(settings, results), *scaled_down(settings, full)]

    return Experiment(
        name=name,
        title=title,
        source=source,
        full=full,
        scaled=scaled,
        quick=quick,
        parts=parts,
        tables=all_tables,
        claims=claims,
        figure=figure,
        needs=("sklearn",),
    )

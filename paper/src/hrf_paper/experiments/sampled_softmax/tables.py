"""Perplexities by epoch, and distances of proposals."""

from __future__ import annotations

import statistics

from hrf.report import number
from hrf_paper.experiments.experiment import Results, Table
from hrf_paper.experiments.sampled_softmax.measure import DISTANCES, FULL, SAMPLERS, Settings, perplexities
from hrf_paper.experiments.shared.scaled_down import scaled_down

__all__ = ["tables"]


def tables(settings: Settings, results: Results) -> list[Table]:
    """Show perplexities by epoch, distances of proposals, and the settings that are scaled down."""
    epochs = range(1, settings.training.epochs + 1)
    rows = [
        (name, *(_with_spread(perplexities(settings, results, name, epoch)) for epoch in epochs))
        for name in SAMPLERS
    ]
    near = [
        (name, *(_text(found[side]) if side in found else "" for side in ("uniform", "softmax")))
        for name, found in results[DISTANCES].items()
        if name != "timings"
    ]
    return [
        Table(
            "Validation perplexity by epoch, e to the cross-entropy (the paper's is 2 to it)",
            ("drawn by", *(f"epoch {e}" for e in epochs)),
            rows,
            long=len(epochs) > 8,
        ),
        Table(
            "Total variation between proposals and two distributions",
            ("proposal", "uniform", "softmax"),
            near,
        ),
        *scaled_down(settings, FULL),
    ]


def _with_spread(values: list[float]) -> str:
    return f"{_text(statistics.fmean(values))} ± {_text(statistics.stdev(values))}"


def _text(value: float) -> str:
    return number(value, grouped=True)

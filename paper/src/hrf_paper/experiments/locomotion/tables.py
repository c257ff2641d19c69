"""Returns, crossed fields and FLOPs of all methods."""

from __future__ import annotations

import statistics

from hrf.report import number
from hrf_paper.experiments.experiment import Results, Table
from hrf_paper.experiments.locomotion.measure import FULL, Settings, key
from hrf_paper.experiments.locomotion.outcomes import outcome
from hrf_paper.experiments.shared.scaled_down import scaled_down

__all__ = ["tables"]


def tables(settings: Settings, results: Results) -> list[Table]:
    """Show what each method reaches, and what a decision costs."""
    return [_reached(settings, results), *scaled_down(settings, FULL)]


def _reached(settings: Settings, results: Results) -> Table:
    rows = []
    for method in settings.methods:
        found = outcome(settings, results, method)
        seconds = [
            part["timings"].get("training CPU seconds", 0.0)
            for part in (results[key(method, run)] for run in range(settings.runs))
        ]
        rows.append(
            (
                method,
                number(found.flops, grouped=True),
                number(found.ranking_flops, grouped=True),
                found.text,
                found.share,
                f"{found.diverged} of {settings.runs}",
                f"{statistics.fmean(seconds):.0f}",
            )
        )
    return Table(
        f"{settings.fields} unseen fields of 4 m per run, {settings.runs} runs",
        ("attention", "FLOPs", "ranking alone", "return", "crossed", "diverged", "CPU seconds"),
        rows,
        caption="FLOPs per decision. A return of about 4 is a field that is crossed without a step beside the stones; "
        '± is the 95 % interval of the mean over runs. "uniform" reads all patches, "blind" none. "FAVOR+ small" and '
        '"Trig small" have as many features as the FLOPs of HRF-A (8,8) allow. CPU seconds are those of one training.',
    )

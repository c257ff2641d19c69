"""Table 1 of the paper beside ours."""

from __future__ import annotations

from hrf.report import number
from hrf_paper.experiments.experiment import Results, Table
from hrf_paper.experiments.shared.estimators import MATCHINGS
from hrf_paper.experiments.uci.measure import (
    BASELINES,
    HYBRIDS,
    KINDS,
    Settings,
    all_cases,
    case_key,
    closest,
    table_row,
)
from hrf_paper.experiments.uci.printed import PRINTED

__all__ = ["tables"]


def tables(settings: Settings, results: Results) -> list[Table]:
    """Show Table 1 beside the nearest of our rows, then all rows."""
    header = ("data", "", *HYBRIDS, *BASELINES)
    nearest: list[tuple[str, ...]] = []
    for name, printed in PRINTED.items():
        scaling, radius, kind = closest(settings, results, name)
        ours = table_row(results, case_key(name, scaling, radius), kind)
        nearest.append((name, "paper", *(f"{value:.2f} ± {error:.2f}" for value, error in printed.values())))
        nearest.append((name, f"ours: {scaling}, r = {radius:g}, {kind}", *map(number, ours.values())))
    rows = [
        (name, scaling, f"{radius:g}", kind, matching, *map(number, row.values()))
        for name, scaling, radius in all_cases(settings)
        for kind in KINDS
        for matching in MATCHINGS
        for row in [table_row(results, case_key(name, scaling, radius), kind, matching)]
    ]
    long = ("data", "scaling", "r", "baselines", "matching", *HYBRIDS, *BASELINES)
    return [
        Table("Table 1 beside the nearest of our settings, MSE in 10⁻³", header, nearest),
        Table("All settings, MSE in 10⁻³", long, rows, long=True),
    ]

"""Shares of the bases' error, and where the printed bound fails."""

from __future__ import annotations

from typing import Any

from hrf.report import number
from hrf_paper.experiments.experiment import Results, Table
from hrf_paper.experiments.max_relative_error.measure import BOUNDS, Settings, radii

__all__ = ["tables"]


def tables(settings: Settings, results: Results) -> list[Table]:
    """Show shares at three radii, and where the printed bound fails."""
    grid = radii(settings)
    rows = []
    for n in settings.n_coefficient_projections:
        part = results[f"n = {n}"]
        for wanted in (1.0, 5.0, 20.0):
            k = min(range(len(grid)), key=lambda k: abs(grid[k] - wanted))
            shares = [part[name][k] for name in ("exact", *BOUNDS)]
            rows.append((f"{n}", f"{grid[k]:.1f}", *(number(share) for share in shares)))
    crossings = [(f"{n}", _crossing_text(results[f"n = {n}"])) for n in settings.n_coefficient_projections]
    return [
        Table("Largest error as a share of W(r)/√(2m)", ("n", "r", "exact", *BOUNDS), rows),
        Table("Where Theorem 3.5 fails", ("n", "from r ="), crossings),
    ]


def _crossing_text(part: dict[str, Any]) -> str:
    return "—" if part["crossing"] is None else f"{part['crossing']:.3f}"

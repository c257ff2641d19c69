"""Largest errors by radius, matching and estimator."""

from __future__ import annotations

from collections.abc import Iterator

from hrf.report import number
from hrf_paper.experiments.experiment import Results, Table
from hrf_paper.experiments.pointwise.measure import Settings, at, share_of_wins
from hrf_paper.experiments.shared.estimators import BASES, HYBRIDS, MATCHINGS

__all__ = ["tables"]

_HEADER = ("estimator", "r", "matching", "m", "width", "FLOPs", "largest ε", "in draws", "best at")


def tables(settings: Settings, results: Results) -> list[Table]:
    """Show largest errors, exact and seen; bases once, hybrids once per matching."""
    rows = [
        row
        for radius in settings.radii
        for matching in MATCHINGS
        for row in _rows(settings, results, radius, matching)
    ]
    return [Table("Largest relative error over the angle", _HEADER, rows)]


def _rows(settings: Settings, results: Results, radius: float, matching: str) -> Iterator[tuple[str, ...]]:
    found = at(results, radius, matching)
    for name, part in found.items():
        if name in BASES and matching != MATCHINGS[0]:
            continue
        yield (
            name,
            f"{radius:g}",
            matching if name in HYBRIDS else f"D = {settings.features}",
            f"{part['m']}",
            f"{part['width']}",
            f"{part['flops']:,}",
            number(max(part["exact"])),
            number(max(part["seen"])),
            f"{share_of_wins(found, name):.0%}" if name in HYBRIDS else "",
        )

"""Operations and microseconds per vector."""

from __future__ import annotations

from hrf_paper.experiments.cost.measure import Settings, by_size
from hrf_paper.experiments.experiment import Results, Table

__all__ = ["tables"]

_HEADER = ("d", "m = n", "width", "FLOPs", "base", "ratio", "µs", "base", "ratio")


def tables(settings: Settings, results: Results) -> list[Table]:
    """Show operations and microseconds per vector, hybrid and base side by side."""
    rows = []
    for (dim, size), part in by_size(settings, results).items():
        flops, times = part["flops"], part["timings"]
        rows.append(
            (
                f"{dim}",
                f"{size}",
                f"{part['width']:,}",
                f"{flops['hybrid']:,}",
                f"{flops['base']:,}",
                f"{flops['base'] / flops['hybrid']:.1f}",
                f"{1e6 * times['hybrid']:.2f}",
                f"{1e6 * times['base']:.2f}",
                f"{times['base'] / times['hybrid']:.1f}",
            )
        )
    return [Table("To map one vector: angular hybrid and base of the same width", _HEADER, rows)]

"""Sizes, costs and exact errors at five angles."""

from __future__ import annotations

from hrf.report import count, number
from hrf_paper.experiments.angles.curves import ROUNDING, TIE, Curves, angle_text, curves
from hrf_paper.experiments.angles.measure import Settings
from hrf_paper.experiments.experiment import Results, Table
from hrf_paper.experiments.shared.plotting import COLOURS

__all__ = ["tables"]

_ANGLES = {0.0: "0", 0.25: "π/4", 0.5: "π/2", 0.75: "3π/4", 1.0: "π"}
_HEADER = ("estimator", "width", "FLOPs", *(f"{angle} " for angle in _ANGLES.values()), "max ", "at θ")
# Black does not show on a dark terminal.
_STYLES = {name: "bold" if name == "FAVOR#" else f"bold {colour}" for name, colour in COLOURS.items()}


def tables(settings: Settings, results: Results) -> list[Table]:
    """Show size, cost, errors at five angles, and the maximum with its angle, one row per estimator."""
    return [errors_table(curves(settings, results))]


def errors_table(found: Curves) -> Table:
    """Show the curves; an asterisk marks the smallest error of each column."""
    s = found.settings
    places = [found.angles.index(angle) for angle in _ANGLES]
    errors = [[*(curve.exact[k] for k in places), curve.largest] for curve in found.curves]
    smallest = [max(min(column) * (1 + TIE), ROUNDING) for column in zip(*errors, strict=True)]
    rows = [
        (
            curve.name,
            f"{curve.width}",
            count(curve.flops),
            *(_marked(value, value <= best) for value, best in zip(row, smallest, strict=True)),
            angle_text(found.peak(curve)),
        )
        for curve, row in zip(found.curves, errors, strict=True)
    ]
    return Table(
        f"Relative error ε = √MSE/K at radius {s.radius:g}, d = {s.dim}, feature width ≈ {s.features}",
        _HEADER,
        rows,
        caption=f"exact, for independent projections (iid); * smallest of its column; seed {s.seed}",
        styles=_STYLES,
        padding=0,
    )


def _marked(value: float, best: bool) -> str:
    return f"{number(value)}*" if best else f"{number(value)} "

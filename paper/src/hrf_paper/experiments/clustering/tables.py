"""Exact errors, and the paper's table beside ours."""

from __future__ import annotations

from typing import NamedTuple

from hrf.report import number
from hrf_paper.experiments.clustering.measure import Settings
from hrf_paper.experiments.clustering.printed import ESTIMATORS, PRINTED, SETS
from hrf_paper.experiments.experiment import Results, Table

__all__ = ["ALL_ESTIMATORS", "Cell", "cells", "inside", "tables"]

ALL_ESTIMATORS = (*ESTIMATORS, "second moments", "complex", "shifted")


class Cell(NamedTuple):
    """One cell of the paper's table beside ours."""

    data: str
    m: int
    estimator: str
    printed: tuple[float, float]
    ours: dict[str, float]

    @property
    def holds(self) -> bool:
        """Whether our mean lies in the printed range."""
        return inside(self.printed, self.ours["mean"])


def cells(settings: Settings, results: Results) -> list[Cell]:
    """Return all cells of the paper's table that this run has."""
    return [
        Cell(name, m, key, printed, results[f"{name}, m = {m}"][key])
        for name in SETS
        for m in settings.sizes
        for key, printed in zip(ESTIMATORS, PRINTED[name][m], strict=True)
    ]


def inside(printed: tuple[float, float], value: float) -> bool:
    """Return whether a value lies in a printed range, to the four decimals of the table."""
    return printed[0] - 5e-5 <= value <= printed[1] + 5e-5


def tables(settings: Settings, results: Results) -> list[Table]:
    """Show m · MSE of all estimators, then the whole table of the paper beside ours."""
    summary = [
        (
            name,
            " ".join(f"{value:.2f}".lstrip("0") for value in results[f"{name}, exact"]["s"]),
            *(number(results[f"{name}, exact"]["m · MSE"][key]) for key in ALL_ESTIMATORS),
        )
        for name in SETS
    ]
    rows = [
        (
            cell.data,
            f"{cell.m}",
            cell.estimator,
            f"[{cell.printed[0]:.4f}, {cell.printed[1]:.4f}]",
            f"[{cell.ours['low']:.4f}, {cell.ours['high']:.4f}]",
            f"{cell.ours['mean']:.4f}",
            "yes" if cell.holds else "no",
        )
        for cell in cells(settings, results)
    ]
    header = ("data", "m", "estimator", "paper [min, max]", "ours [min, max]", "our mean", "mean inside")
    return [
        Table("m · MSE, exact, mean over pairs", ("data", "s", *ALL_ESTIMATORS), summary),
        Table(f"MSE over {settings.repetitions} repetitions", header, rows, long=True),
    ]

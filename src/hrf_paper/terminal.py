"""What a run says on the terminal: tables, verdicts, files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

from hrf_paper.experiments.experiment import VERDICTS, Claim, Experiment, Table

__all__ = ["listing", "show"]

_STYLES = {"holds": "bold green", "partly": "bold yellow", "fails": "bold red", "beyond": "bold"}


def show(
    experiment: Experiment[Any], claims: Sequence[Claim], tables: Sequence[Table], files: Iterable[Path]
) -> None:
    """Print everything about one experiment."""
    console = Console(highlight=False)
    console.rule(f"[bold]{experiment.name}[/bold]: {experiment.title}", align="left")
    for table in (table for table in tables if not table.long):
        console.print(_grid(table), "")
    for claim in claims:
        matching = f" ({claim.matching})" if claim.matching else ""
        console.print(f"[{_STYLES[claim.verdict]}]{VERDICTS[claim.verdict]}[/]: {claim.claim}{matching}")
        console.print(f"  {claim.sentence}", markup=False)
    console.print()
    for path in files:
        console.print(f"  {path}", soft_wrap=True, markup=False)
    console.print()


def listing(experiments: Iterable[Experiment[Any]]) -> None:
    """Print names, titles and where they stand in the paper."""
    rows = [(e.name, e.title, e.source) for e in experiments]
    Console(highlight=False).print(_grid(Table("", ("experiment", "what it shows", "in the paper"), rows)))


def _grid(table: Table) -> Grid:
    grid = Grid(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), title=table.title or None
    )
    for place, name in enumerate(table.header):
        grid.add_column(name, justify="left" if _has_words(table, place) else "right")
    for row in table.rows:
        grid.add_row(*row)
    return grid


def _has_words(table: Table, place: int) -> bool:
    return any(row[place][:1].isalpha() for row in table.rows)

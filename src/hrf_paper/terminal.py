"""Output of a run on the terminal: tables, verdicts, paths of files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from hrf_paper.experiments.experiment import Experiment, Table
from hrf_paper.experiments.verdicts import RULE, Claim
from hrf_paper.requirements import INSTALL, missing

__all__ = ["grid", "listing", "show"]

_STYLES = {"holds": "bold green", "partly": "bold yellow", "fails": "bold red", "beyond": "bold"}


def show(
    experiment: Experiment[Any], claims: Sequence[Claim], tables: Sequence[Table], files: Iterable[Path]
) -> None:
    """Print tables, claims and paths of one experiment."""
    console = Console(highlight=False)
    console.rule(f"[bold]{experiment.name}[/bold]: {experiment.title}", align="left")
    for table in (table for table in tables if not table.long):
        console.print(grid(table), "")
    for claim in claims:
        matching = f" ({claim.matching})" if claim.matching else ""
        console.print(f"[{_STYLES[claim.verdict]}]{claim.text}[/]: {claim.claim}{matching}")
        console.print(f"  {claim.sentence}", markup=False)
    console.print()
    console.print(RULE, style="dim", markup=False)
    console.print()
    for path in files:
        console.print(f"  {path}", soft_wrap=True, markup=False)
    console.print()


def listing(experiments: Iterable[Experiment[Any]]) -> None:
    """Print names, titles and places in the paper, and the libraries that are missing."""
    chosen = list(experiments)
    absent = [", ".join(missing(e.needs)) for e in chosen]
    header: tuple[str, ...] = ("experiment", "what it shows", "in the paper")
    rows: list[tuple[str, ...]] = [(e.name, e.title, e.source) for e in chosen]
    if any(absent):
        header = (*header, "missing")
        rows = [(*row, names) for row, names in zip(rows, absent, strict=True)]
    console = Console(highlight=False)
    console.print(grid(Table("", header, rows)))
    if any(absent):
        console.print(f"\nMissing libraries: {INSTALL}", markup=False)


def grid(table: Table) -> Grid:
    """Build a table of rich."""
    built = Grid(
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, table.padding, 0, 0),
        title=table.title or None,
        caption=table.caption or None,
    )
    for place, name in enumerate(table.header):
        if _has_words(table, place):
            built.add_column(name, justify="left")
        else:  # on a narrow terminal names are broken, numbers never
            width = max(len(name), *(len(row[place]) for row in table.rows))
            built.add_column(name, justify="right", no_wrap=True, min_width=width)
    for first, *rest in table.rows:
        built.add_row(Text(first, style=table.styles.get(first, "")), *map(_cell, rest))
    return built


def _cell(text: str) -> Text:
    return Text(text, style="bold green" if text.endswith("*") else "")


def _has_words(table: Table, place: int) -> bool:
    return any(row[place][:1].isalpha() for row in table.rows)

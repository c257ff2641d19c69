"""Output of a run on the terminal: tables, verdicts, paths of files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from hrf.report import table
from hrf_paper.experiments.experiment import RULE, Claim, Experiment, Table
from hrf_paper.requirements import INSTALL, missing

__all__ = ["grid", "listing", "show", "show_reused"]

_STYLES = {"holds": "bold green", "partly": "bold yellow", "fails": "bold red", "beyond": "bold"}


def show(
    experiment: Experiment[Any], claims: Sequence[Claim], tables: Sequence[Table], files: Iterable[Path]
) -> None:
    """Print tables, claims and paths of one experiment."""
    console = Console(highlight=False)
    console.rule(f"[bold]{experiment.name}[/bold]: {experiment.title}", align="left")
    for shown in (shown for shown in tables if not shown.long):
        console.print(grid(shown), "")
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


def show_reused(name: str, parts: Sequence[str], total: int) -> None:
    """Print which parts of an experiment come from an earlier run."""
    text = f"{name}: reused from an earlier run, {len(parts)} of {total} parts: {'; '.join(parts)}"
    Console(highlight=False).print(text, soft_wrap=True, markup=False)


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


def grid(shown: Table) -> Grid:
    """Build a table of rich."""
    rows = [
        (Text(first, style=shown.styles.get(first, "")), *map(_cell, rest)) for first, *rest in shown.rows
    ]
    return table(
        shown.header,
        rows,
        title=shown.title or None,
        caption=shown.caption or None,
        padding=shown.padding,
    )


def _cell(text: str) -> Text:
    return Text(text, style="bold green" if text.endswith("*") else "")

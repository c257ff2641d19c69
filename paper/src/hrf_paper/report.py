"""Findings of a run: tables and verdicts on the terminal, pages in HTML."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from hrf.report import pages, table
from hrf_paper.experiments.experiment import MARKS, RULE, VERDICTS, Claim, Experiment, Table, verdict_text
from hrf_paper.experiments.registry import EXPERIMENTS
from hrf_paper.requirements import INSTALL, missing

# Output of a run on the terminal: tables, verdicts, paths of files.

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


# Pages about experiments: claims of the paper beside ours with verdicts, and an index of all in a directory.

_HEADER = ("the paper's claim", "paper", "ours", "matching", "verdict")


def experiment_page(data: dict[str, Any], tables: Sequence[Table], drawing: bytes) -> str:
    """Return the page of one experiment: verdicts, the figure, tables, settings.

    Args:
        data: the record stored as JSON.
        tables: tables of the results.
        drawing: the figure as PNG.
    """
    sentences = "".join(f"<p>{escape(claim['sentence'])}</p>\n" for claim in _claims(data))
    grids = "".join(_grid(table) for table in tables)
    settings = json.dumps(data["settings"], indent=1)
    versions = ", ".join(f"{name} {number}" for name, number in data["versions"].items())
    seconds = sum(part["seconds"] for part in data["timings"]["parts"].values())
    body = f"""<p><a href="index.html">All experiments</a></p>
<h1>{escape(data["title"])}</h1>
<p class="about">{escape(data["source"])} of the paper. Made by <code>{escape(data["command"])}</code>.</p>
{_verdicts(data)}{_rule()}{sentences}
{pages.image(drawing, data["title"])}
{grids}
<h2>Settings</h2>
<pre>{escape(settings)}</pre>
<p><small>{escape(versions)}; {seconds:.0f} seconds.</small></p>
"""
    return pages.page(f"hrf reproduce: {data['experiment']}", body)


def index_page(place: Path) -> str:
    """Return the page of all experiments whose results are in a directory, with every verdict."""
    found = [place / f"{name}.json" for name in EXPERIMENTS]
    stored = [json.loads(path.read_text(encoding="utf-8")) for path in found if path.exists()]
    sections = "".join(
        f"""<h2><a href="{data["experiment"]}.html">{escape(data["title"])}</a></h2>
<p class="about">{escape(data["source"])}. <code>{escape(data["command"])}</code></p>
{_verdicts(data)}"""
        for data in stored
    )
    count = [claim["verdict"] for data in stored for claim in _claims(data)]
    summary = ", ".join(
        f"{MARKS[verdict]} {text}: {count.count(verdict)}" for verdict, text in VERDICTS.items()
    )
    body = f"""<h1>Hybrid Random Features: the paper's evaluation, reproduced</h1>
<p class="about">{len(count)} claims. {summary}.</p>
{_rule()}{sections}"""
    return pages.page("hrf reproduce", body)


def _rule() -> str:
    return f'<p class="rule"><small>{escape(RULE)}</small></p>\n'


def _claims(data: dict[str, Any]) -> list[dict[str, Any]]:
    return [*data["claims"], *data["timings"]["claims"]]


def _verdicts(data: dict[str, Any]) -> str:
    rows = []
    for claim in _claims(data):
        texts = [claim[key] for key in ("claim", "paper", "ours", "matching")]
        verdict = verdict_text(*(claim[key] for key in ("matched", "total", "cases", "criterion")))
        cells = [*texts, verdict]
        rows.append(pages.row(cells, classes=["verdict"], style=claim["verdict"], names=_HEADER))
    return pages.table(_HEADER, rows, style="claims") + "\n"


def _grid(table: Table) -> str:
    caption = f"<p><small>{escape(table.caption)}.</small></p>\n" if table.caption else ""
    grid = pages.table(table.header, map(pages.row, table.rows))
    return f'<h2>{escape(table.title)}</h2>\n<div class="wide">{grid}</div>\n{caption}'

"""Advice for people: a table on the terminal, a figure, JSON, the best map, and one page with all of it."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hrf.advice import Advice, Candidate
from hrf.advice.figure import figure
from hrf.advice.result import HEADER, cells, uniform_cells
from hrf.report import pages, png, write

__all__ = ["page", "publish", "table", "to_json"]

_BEST = "best.safetensors"


def publish(advice: Advice, out: Path) -> None:
    """Save everything in the directory ``out``; print the table and what it says."""
    drawing = png(figure(advice))
    files = {
        "advice.png": drawing,
        "advice.json": to_json(advice).encode(),
        _BEST: _stored(advice),
        "report.html": page(advice, drawing).encode(),
    }
    for name, content in files.items():
        write(out / name, content)
    console = Console(highlight=False)
    console.print(table(advice), "")
    for sentence in advice.sentences():
        console.print(sentence, markup=False)
    if advice.warning:
        console.print(f"Warning: {advice.warning}", style="bold", markup=False)
    for name, why in advice.left_out.items():
        console.print(f"Left out: {name}: {why}", markup=False)
    console.print()
    for name in files:
        console.print(f"  {out / name}", soft_wrap=True, markup=False)


def table(advice: Advice) -> Table:
    """A row a map, best first, then uniform attention and what stands apart."""
    s = advice.settings
    grid = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title=f"{s.n_queries:,} queries, {s.n_keys:,} keys, d = {s.dim}, budget {s.budget} by {s.unit}",
        caption=advice.legend,
    )
    ranked, others = [cells(c) for c in advice.ranking], [cells(c) for c in advice.beyond]
    reference = uniform_cells(advice.uniform)
    for name, column in zip(HEADER, zip(HEADER, *ranked, reference, *others, strict=True), strict=True):
        first = name == HEADER[0]
        # On a narrow terminal names are broken, numbers never.
        least = None if first else max(map(len, column))
        grid.add_column(name, justify="left" if first else "right", no_wrap=not first, min_width=least)
    for place, row in enumerate(ranked):
        grid.add_row(*row, style="bold green" if place == 0 else None)
    grid.add_row(*reference, style="dim", end_section=True)
    for row in others:
        grid.add_row(*row)
    return grid


def to_json(advice: Advice) -> str:
    """Settings and candidates, without times: a seed gives one text."""
    return json.dumps(advice.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _stored(advice: Advice) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / _BEST
        advice.best.save(path)
        return path.read_bytes()


# The page.


def page(advice: Advice, drawing: bytes) -> str:
    """One self-contained page: what to use, the figure ``drawing`` (PNG), how to use the map, the table."""
    s = advice.settings
    sentences = "".join(f"<p>{escape(sentence)}</p>\n" for sentence in advice.sentences())
    warning = f'<p class="warning">Warning: {escape(advice.warning)}</p>\n' if advice.warning else ""
    rows = [_row(c, "best" if place == 0 else "") for place, c in enumerate(advice.ranking)]
    rows.append(_html_row(uniform_cells(advice.uniform), "ignores queries and keys", "uniform"))
    rows += [_row(c, "") for c in advice.beyond]
    left_out = "".join(f"<li>{escape(name)}: {escape(why)}</li>" for name, why in advice.left_out.items())
    missing = f"<h2>Left out</h2>\n<ul>{left_out}</ul>\n" if left_out else ""
    body = f"""<h1>Use {escape(advice.ranking[0].name)}</h1>
<p class="about">
{s.n_queries:,} queries (norm {s.query_norm:.2f}) and {s.n_keys:,} keys (norm {s.key_norm:.2f}), d = {s.dim}.
Budget {s.budget} by {s.unit}, objective {s.objective}, scale {s.scale:g}, seed {s.seed}.
Half of the data was fitted to; errors are of {s.held_out[0]:,} queries and {s.held_out[1]:,} keys of the
other half, 95 % intervals from {s.n_redraws} draws.</p>
{warning}{sentences}
{pages.image(drawing, "Errors and costs of all maps")}
<h2>How to use it</h2>
<pre>{escape(_usage(advice))}</pre>
<p><small>queries, keys and values are tensors with one row a token; output is linear-time attention.
phi.estimate(queries, keys) gives the kernel itself.</small></p>
<h2>All maps</h2>
<div class="wide"><table>
<thead>{pages.row([*HEADER, "note"], "th", ["note"])}</thead>
<tbody>
{chr(10).join(rows)}
</tbody>
</table></div>
<p><small>{escape(advice.legend)}.</small></p>
{missing}"""
    return pages.page(f"hrf advise: {advice.ranking[0].name}", body)


def _usage(advice: Advice) -> str:
    """Four lines of Python; inputs are scaled as the advice was asked to."""
    root = advice.settings.scale**0.5
    factor = "" if root == 1 else f"{root:.9g} * "
    return "\n".join(
        [
            "import hrf",
            f'phi = hrf.load("{_BEST}")',
            f"q, k = phi.queries({factor}queries), phi.keys({factor}keys)",
            "output = q @ (k.mT @ values) / (q @ k.sum(-2, keepdim=True).mT)",
        ]
    )


def _row(candidate: Candidate, style: str) -> str:
    return _html_row(cells(candidate), candidate.note, style)


def _html_row(texts: tuple[str, ...], note: str, style: str) -> str:
    return pages.row([*texts, note], classes=["note"], style=style)

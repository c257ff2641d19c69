"""Advice for people: a table on the terminal, a figure, JSON, the best map, and one page with all of it."""

from __future__ import annotations

import base64
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
from hrf.report import png, write

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

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, sans-serif; color: #222; background: #fff; margin: 2.5rem auto;
  max-width: 68rem; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.about { color: #666; margin: 0 0 1.4rem; }
.warning { border-left: 4px solid #D55E00; background: #fdf3ec; padding: .7rem 1rem; }
img { width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; width: 100%; }
th, td { padding: .28rem .6rem; text-align: right; border-bottom: 1px solid #eee; white-space: nowrap; }
th:first-child, td:first-child, th:last-child, td.note { text-align: left; }
td.note { white-space: normal; color: #666; }
tr.best td { font-weight: 650; background: #eef8f4; }
tr.uniform td { color: #666; font-style: italic; }
pre { background: #f6f6f6; padding: .9rem 1.1rem; overflow-x: auto; font-size: .9rem; border-radius: 4px; }
small { color: #666; }
"""


def page(advice: Advice, drawing: bytes) -> str:
    """One self-contained page: what to use, the figure ``drawing`` (PNG), how to use the map, the table."""
    s = advice.settings
    sentences = "".join(f"<p>{escape(sentence)}</p>\n" for sentence in advice.sentences())
    warning = f'<p class="warning">Warning: {escape(advice.warning)}</p>\n' if advice.warning else ""
    head = "".join(f"<th>{escape(name)}</th>" for name in HEADER)
    rows = [_row(c, "best" if place == 0 else "") for place, c in enumerate(advice.ranking)]
    rows.append(_html_row(uniform_cells(advice.uniform), "ignores queries and keys", "uniform"))
    rows += [_row(c, "") for c in advice.beyond]
    left_out = "".join(f"<li>{escape(name)}: {escape(why)}</li>" for name, why in advice.left_out.items())
    missing = f"<h2>Left out</h2>\n<ul>{left_out}</ul>\n" if left_out else ""
    image = base64.b64encode(drawing).decode()
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>hrf advise: {escape(advice.ranking[0].name)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Use {escape(advice.ranking[0].name)}</h1>
<p class="about">
{s.n_queries:,} queries (norm {s.query_norm:.2f}) and {s.n_keys:,} keys (norm {s.key_norm:.2f}), d = {s.dim}.
Budget {s.budget} by {s.unit}, objective {s.objective}, scale {s.scale:g}, seed {s.seed}.
Half of the data was fitted to; errors are of {s.held_out[0]:,} queries and {s.held_out[1]:,} keys of the
other half, 95 % intervals from {s.n_redraws} draws.</p>
{warning}{sentences}
<img alt="Errors and costs of all maps" src="data:image/png;base64,{image}">
<h2>How to use it</h2>
<pre>{escape(_usage(advice))}</pre>
<p><small>queries, keys and values are tensors with one row a token; output is linear-time attention.
phi.estimate(queries, keys) gives the kernel itself.</small></p>
<h2>All maps</h2>
<div class="wide"><table>
<thead><tr>{head}<th>note</th></tr></thead>
<tbody>
{chr(10).join(rows)}
</tbody>
</table></div>
<p><small>{escape(advice.legend)}.</small></p>
{missing}</body>
</html>
"""


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
    inner = "".join(f"<td>{escape(text)}</td>" for text in texts)
    mark = f' class="{style}"' if style else ""
    return f'<tr{mark}>{inner}<td class="note">{escape(note)}</td></tr>'

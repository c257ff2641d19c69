"""Self-contained HTML pages: style and images are inside."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["image", "page", "row", "table"]

_NARROW = "max-width: 44rem"
_STYLE = f"""
:root {{ color-scheme: light; }}
body {{ font: 16px/1.55 system-ui, sans-serif; color: #222; background: #fff; margin: 2.5rem auto;
  max-width: 68rem; padding: 0 1.25rem; }}
h1 {{ font-size: 1.7rem; line-height: 1.25; margin: 0 0 .3rem; }}
h2 {{ font-size: 1.15rem; margin: 2.2rem 0 .6rem; }}
.about {{ color: #666; margin: 0 0 1.4rem; }}
.warning {{ border-left: 4px solid #D55E00; background: #fdf3ec; padding: .7rem 1rem; }}
img {{ width: 100%; height: auto; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; width: 100%; }}
th, td {{ padding: .28rem .6rem; text-align: right; border-bottom: 1px solid #eee; white-space: nowrap; }}
th:first-child, td:first-child, th.note, td.note {{ text-align: left; }}
td.note {{ white-space: normal; color: #666; }}
tr.best td {{ font-weight: 650; background: #eef8f4; }}
tr.uniform td {{ color: #666; font-style: italic; }}
table.claims td, table.claims th {{ text-align: left; white-space: normal; vertical-align: top; }}
td.verdict {{ font-weight: 650; white-space: nowrap !important; }}
.holds td.verdict {{ color: #00694d; }}
.partly td.verdict {{ color: #8a5a00; }}
.fails td.verdict {{ color: #a83a00; }}
pre {{ background: #f6f6f6; padding: .9rem 1.1rem; overflow-x: auto; font-size: .9rem; border-radius: 4px; }}
small {{ color: #666; }}
@media ({_NARROW}) {{
  body {{ margin: 1.2rem auto; padding: 0 .8rem; }}
  h1 {{ font-size: 1.3rem; }}
  code {{ overflow-wrap: anywhere; }}
  table.claims, table.claims tbody, table.claims tr, table.claims td {{ display: block; }}
  table.claims thead {{ display: none; }}
  table.claims tr {{ border-bottom: 2px solid #ddd; padding: .5rem 0; }}
  table.claims td {{ border: 0; padding: .1rem 0; }}
  table.claims td:empty {{ display: none; }}
  table.claims td[data-name]::before {{ content: attr(data-name) ": "; color: #666; font-weight: 400; }}
  td.verdict {{ white-space: normal !important; }}
}}
"""


def page(title: str, body: str) -> str:
    """Return a whole document; ``body`` is HTML, ``title`` is text."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
{body}</body>
</html>
"""


def image(drawing: bytes, description: str, narrow: bytes | None = None) -> str:
    """Embed a PNG in the page, and another one for narrow screens, if there is one."""
    wide = f'<img alt="{escape(description)}" src="{_data(drawing)}">'
    if narrow is None:
        return wide
    return f'<picture><source media="({_NARROW})" srcset="{_data(narrow)}">{wide}</picture>'


def _data(drawing: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(drawing).decode()}"


def table(header: Iterable[str], rows: Iterable[str], classes: Sequence[str] = (), style: str = "") -> str:
    """Format a table from texts of the header, with ``classes`` as in `row`, and rows that `row` formatted."""
    body, attribute = "\n".join(rows), f' class="{style}"' if style else ""
    return f"<table{attribute}>\n<thead>{row(header, 'th', classes)}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def row(
    texts: Iterable[str],
    cell: str = "td",
    classes: Sequence[str] = (),
    style: str = "",
    names: Sequence[str] = (),
) -> str:
    """Format one row of a table from texts.

    Args:
        texts: the text of each cell, not yet escaped.
        cell: tag of a cell, ``"td"`` or ``"th"``.
        classes: CSS classes of the last cells.
        style: CSS class of the row.
        names: headings that stand before the texts where a narrow screen stacks the cells.
    """
    cells = list(texts)
    marks = ["" for _ in cells[len(classes) :]] + [f' class="{name}"' for name in classes]
    if names:
        marks = [f'{mark} data-name="{escape(name)}"' for mark, name in zip(marks, names, strict=True)]
    inner = "".join(f"<{cell}{mark}>{escape(text)}</{cell}>" for mark, text in zip(marks, cells, strict=True))
    return f'<tr class="{style}">{inner}</tr>' if style else f"<tr>{inner}</tr>"

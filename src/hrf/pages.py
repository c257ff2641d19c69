"""Self-contained HTML pages: style, images, scripts and their data are inside.

Style and scripts are in ``assets/``, compiled from ``web/src``. Without scripts, pages show their tables.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from hrf.atomic_write import write

__all__ = ["as_json", "heads_page", "image", "page", "row", "save", "table"]


_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"  # no network
)


@cache
def _asset(name: str) -> str:
    return (files("hrf") / "assets" / name).read_text(encoding="utf-8")


def page(title: str, body: str, data: Mapping[str, Any] | None = None) -> str:
    """Return a whole document.

    Args:
        title: a text.
        body: HTML. With data, parts of class ``plain`` are hidden from readers with scripts.
        data: what the script of reports draws in the element ``live`` of the body.
    """
    script = (
        ""
        if data is None
        else f"""<script type="application/json" id="data">{as_json(data)}</script>
<script>{_asset("pages.js")}</script>
"""
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{_asset("pages.css")}</style>
</head>
<body>
<main>
{body}</main>
{script}</body>
</html>
"""


def as_json(data: Any) -> str:
    """Write JSON that may stand in a page: no text ends its element, and what is not finite is ``null``."""
    plain = json.dumps(_finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return plain.replace("<", "\\u003c")


def _finite(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {name: _finite(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def heads_page(
    title: str,
    sentences: Iterable[str],
    layers: Sequence[str],
    errors: Sequence[Sequence[float]],
    shares: Sequence[Sequence[float]],
    *,
    row_name: str = "layer",
) -> str:
    """Return the page of a model's attention: a heat map over layers and heads, and all heads, worst first.

    Args:
        title: the headline.
        sentences: what was found.
        layers: names of the rows.
        errors: relative error of the output, by layer and head.
        shares: share of pairs that were computed exactly, by layer and head.
        row_name: what a row is.
    """
    heads = [
        (layer, head, error, share)
        for layer, *numbers in zip(layers, errors, shares, strict=True)
        for head, (error, share) in enumerate(zip(*numbers, strict=True))
    ]
    heads.sort(key=lambda one: -one[2] if math.isfinite(one[2]) else -math.inf)
    rows = (row([layer, f"{head}", f"{error:.3g}", f"{share:.1%}"]) for layer, head, error, share in heads)
    plain = table([row_name, "head", "error", "exact pairs"], rows)
    words = "".join(f"<p>{escape(sentence)}</p>\n" for sentence in sentences)
    body = f"""<h1>{escape(title)}</h1>
{words}<div id="live"></div>
<div class="plain wide">{plain}</div>
"""
    found = {"kind": "heads", "row": row_name, "layers": layers, "errors": errors, "shares": shares}
    return page(title, body, found)


def save(text: str, path: Any) -> None:
    """Write a page to a file."""
    write(path, text.encode())


def image(drawing: bytes, description: str) -> str:
    """Embed a PNG in the page."""
    data = base64.b64encode(drawing).decode()
    return f'<img alt="{escape(description)}" src="data:image/png;base64,{data}">'


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

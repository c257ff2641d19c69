"""Tables for the terminal."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

__all__ = ["table"]

# Three letters in a row make a word ("nan" and "inf" aside); units, exponents and suffixes are shorter.
_WORD = re.compile(r"(?!nan|inf)[^\W\d_]{3}")
_NUMBER = re.compile(r"[\dπ∞]|nan|inf")


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    title: str | None = None,
    caption: str | None = None,
    styles: Mapping[int, str] | None = None,
    sections: Collection[int] = (),
    padding: int = 1,
) -> Table:
    """Build a table for `rich.console.Console.print`.

    Columns that hold mostly numbers are aligned to the right and never broken; all other columns are aligned
    to the left, and their lines are broken where the terminal is narrow. Needs rich.

    Args:
        header: one name per column.
        rows: one cell per column. Strings are printed as they are; use `rich.text.Text` for styled cells.
        title: printed above.
        caption: printed below.
        styles: rich styles of rows by their index.
        sections: indices of rows that are followed by an empty line.
        padding: spaces between columns, in addition to one.

    >>> from rich.console import Console
    >>> Console(width=40).print(table(["map", "error"], [["positive", "0.52"], ["hybrid", "12.1"]]))
    map       error
    ───────────────
    positive   0.52
    hybrid     12.1
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    grid = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, padding, 0, 0),
        title=title,
        title_justify="left",
        caption=caption,
        caption_justify="left",
    )
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    texts = [[cell.plain for cell in row] for row in cells]
    for name, column in zip(header, zip(*texts, strict=True) if texts else [()] * len(header), strict=True):
        if _holds_numbers(column):
            least = max(map(len, (name, *column)))
            grid.add_column(name, justify="right", no_wrap=True, min_width=least)
        else:
            grid.add_column(name, justify="left")
    for place, row in enumerate(cells):
        grid.add_row(*row, style=(styles or {}).get(place), end_section=place in sections)
    return grid


def _holds_numbers(column: Sequence[str]) -> bool:
    """Whether numbers outnumber words; cells without either, like dashes, do not count."""
    words = sum(bool(_WORD.search(cell)) for cell in column)
    numbers = sum(bool(_NUMBER.search(cell)) and not _WORD.search(cell) for cell in column)
    return numbers > words

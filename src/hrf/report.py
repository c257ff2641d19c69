"""One of each for commands and reports: number format, table, progress bar, figure as PNG, sentence for an error.

Writes that are atomic and HTML pages come from ``atomic_write.py`` and ``pages.py``.

Importing this module needs neither rich nor matplotlib; `table` and `progress` import rich when they are called.
"""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hrf import pages
from hrf.atomic_write import folder, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table
    from rich.text import Text

__all__ = [
    "Progress",
    "count",
    "folder",
    "markdown_table",
    "needs_extra",
    "number",
    "one_sentence",
    "pages",
    "png",
    "progress",
    "table",
    "write",
]


# A number below this is rounding error and shows as 0.
ROUNDING = 1e-12


def number(value: float, *, grouped: bool = False) -> str:
    """Format with two to three digits, in at most six characters and a sign.

    Args:
        value: any number.
        grouped: write large numbers out, with commas between thousands, instead of as powers of ten.

    >>> [number(value) for value in (0, 3.72e-6, 0.0885, 5.625, 99.96, 12345, -0.5)]
    ['0', '3.7e-6', '0.088', '5.62', '100', '1.2e4', '-0.500']
    >>> number(12345, grouped=True)
    '12,345'
    """
    if not math.isfinite(value):
        return f"{value}"
    if value < 0:
        text = number(-value, grouped=grouped)
        return text if text == "0" else f"-{text}"
    if value <= ROUNDING:
        return "0"
    if 0.00995 <= value < 9999.5:
        decimals = 3 if value < 0.9995 else 2 if value < 9.995 else 1 if value < 99.95 else 0
        return f"{value:.{decimals}f}"
    if grouped and value >= 9999.5:
        return f"{value:,.0f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def count(value: int) -> str:
    """Format a count in at most five characters up to a billion: thousands as k, millions as M.

    >>> [count(value) for value in (9999, 12345, 1234567)]
    ['9999', '12k', '1.2M']
    """
    if value < 10_000:
        return f"{value}"
    return f"{value / 1e3:.0f}k" if value < 999_500 else f"{value / 1e6:.1f}M"


# Three letters in a row make a word ("nan" and "inf" aside); units, exponents and suffixes are shorter.
_WORD = re.compile(r"(?!nan|inf)[^\W\d_]{3}")
_NUMBER = re.compile(r"[\dπ∞]|nan|inf")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table in Markdown."""
    cells = [header, ["---"] * len(header), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


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


# Called with the name of the current step, the number of steps done and the number of all steps.
Progress = Callable[[str, int, int], None]


@contextmanager
def progress(counted: str = "draws") -> Iterator[Progress]:
    """Show a bar on stderr while the block runs; yields the function that moves the bar. Needs rich."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description:<15}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(counted),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda name, done, total: bar.update(task, description=name, completed=done, total=total)


def png(drawing: Figure, dpi: int = 160) -> bytes:
    """Render a matplotlib figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


# Errors of the command: one sentence on stderr and exit code 2, or 130 after Ctrl-C.


# Modules that come with an extra of the distribution.
_EXTRAS = {"cli": ("matplotlib", "rich", "typer"), "transformers": ("transformers",)}


@contextmanager
def one_sentence() -> Iterator[None]:
    """Report wrong values, unusable files, missing optional libraries and Ctrl-C in one sentence."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        raise _stopped(f"{error}") from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):
            raise
        raise _stopped("the data need more memory than there is; expected fewer rows or columns") from error
    except KeyboardInterrupt as stop:
        raise _stopped(f"{stop}" or "interrupted", code=130) from stop


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Say what to install if a module of the extra is missing; any other missing module is a bug and is raised."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRAS[extra]:
            raise
        sentence = f"{error.name} is missing; pip install 'hybrid-random-features[{extra}]' brings it"
        raise _stopped(sentence) from error


def _stopped(sentence: str, code: int = 2) -> SystemExit:
    # Names of files may hold line breaks and codes that move the cursor.
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in sentence)
    print(f"hrf: {shown}", file=sys.stderr)
    return SystemExit(code)

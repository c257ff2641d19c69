from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hrf import report


def printed(table: Table, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue().splitlines()


HEADER = ["map", "interval", "at θ", "met"]
ROWS = [
    ["angular hybrid 8×64", "0.123–0.456", "π", "yes"],
    ["FAVOR#", "exact", "0.25π", "no"],
    ["3 clusters", "1.2e-3–1.0e4", "0", ""],
    ["[bold]literal[/]", "–", "", "yes"],
]


def test_numbers_are_aligned_to_the_right_and_words_to_the_left():
    columns = report.table(HEADER, ROWS).columns
    assert [column.justify for column in columns] == ["left", "right", "right", "left"]


@pytest.mark.parametrize(
    ("cells", "right"),
    [
        (["1.0 ± 0.1", "2.0 ± 0.1"], True),
        (["12.3 ms", "10k"], True),
        (["nan", "inf"], True),
        (["3 × 3 clusters", "64 clusters"], False),
        (["–", ""], False),
    ],
)
def test_which_columns_hold_numbers(cells, right):
    column = report.table(["x"], [[cell] for cell in cells]).columns[0]
    assert column.justify == ("right" if right else "left")


def test_a_narrow_terminal_breaks_words_but_never_numbers():
    for width in (34, 80):
        text = " ".join(printed(report.table(HEADER, ROWS), width))
        for row in ROWS:
            for cell in row[1:]:
                assert cell in text, (width, cell)


def test_titles_sections_and_styles():
    table = report.table(HEADER, ROWS, title="A title", caption="A caption", styles={1: "bold"}, sections=[0])
    lines = printed(table)
    assert lines[0].strip() == "A title"
    assert lines[-1].strip() == "A caption"
    empty = [place for place, line in enumerate(lines) if not line.strip()]
    assert empty == [next(place for place, line in enumerate(lines) if ROWS[0][0] in line) + 1]
    assert [row.style for row in table.rows] == [None, "bold", None, None]


def test_strings_are_printed_as_they_are_and_texts_keep_their_style():
    assert "[bold]literal[/]" in "\n".join(printed(report.table(HEADER, ROWS)))
    styled = report.table(["x"], [[Text("1.0", style="red")]])
    assert next(styled.columns[0].cells).style == "red"


def test_a_table_without_rows_has_its_header():
    assert printed(report.table(["one", "two"], []))[0].split() == ["one", "two"]


def test_importing_report_needs_neither_rich_nor_matplotlib():
    code = "import sys; sys.modules['rich'] = sys.modules['matplotlib'] = None; import hrf.report"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

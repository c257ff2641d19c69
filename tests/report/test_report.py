"""Tables, numbers and pages of reports."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hrf import report
from hrf.report import count, number, pages


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


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1e-14, "0"), (-1e-14, "0"), (3.72e-6, "3.7e-6"), (0.0098, "9.8e-3"), (0.00996, "0.010"),
     (0.0885, "0.088"), (0.9996, "1.00"), (5.625, "5.62"), (9.996, "10.0"), (99.96, "100"), (9999.4, "9999"),
     (9999.6, "1.0e4"), (4.9e12, "4.9e12")],
)  # fmt: skip
def test_number(value, text):
    assert number(value) == text
    assert len(text) <= 6
    if text != "0":
        assert number(-value) == f"-{text}"


def test_large_numbers_are_written_out_on_request():
    assert number(9999.6, grouped=True) == "10,000"
    assert number(-1234567.8, grouped=True) == "-1,234,568"
    assert number(0.0098, grouped=True) == number(0.0098)


@pytest.mark.parametrize(("value", "text"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_numbers_that_are_not_finite(value, text):
    assert number(value) == number(value, grouped=True) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (9999, "9999"), (10_000, "10k"), (999_499, "999k"), (999_500, "1.0M")]
)
def test_count(value, text):
    assert count(value) == text


def test_an_image_is_in_the_page():
    assert pages.image(b"wide", "errors").startswith('<img alt="errors" src="data:image/png;base64,')


def test_cells_carry_their_headings():
    assert pages.row(["1"], names=["a & b"]) == '<tr><td data-name="a &amp; b">1</td></tr>'
    assert pages.row(["1", "2"], classes=["last"]) == '<tr><td>1</td><td class="last">2</td></tr>'
    style = pages.page("title", "")
    assert "@media(max-width:44rem)" in style.replace(" ", "")
    assert "{{" not in style

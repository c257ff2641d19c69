"""README.md and the docs show what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import tables

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", tables.PAGES, ids=str)
def test_tables_match_the_recorded_results(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert tables.filled(page, text, ROOT) == text


def test_a_table_without_a_place_is_an_error():
    with pytest.raises(ValueError, match=r"speed\.md has 0 places for the table 'attention'"):
        tables.filled(Path("docs/speed.md"), "no tables", ROOT)

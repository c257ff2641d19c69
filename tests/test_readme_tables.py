"""The README says what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import tables

ROOT = Path(__file__).parents[1]


def test_tables_are_those_of_the_recorded_results():
    text = (ROOT / tables.README).read_text(encoding="utf-8")
    assert tables.filled(text, ROOT / tables.RESULTS) == text


def test_a_table_without_a_place_is_an_error():
    with pytest.raises(ValueError, match="0 places for the table 'maps'"):
        tables.filled("no tables", ROOT / tables.RESULTS)

"""Every entry of docs/errata.md names the test that proves it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from errata.tools import (
    SECTIONS,
    TYPOS,
)

TESTS = {
    name
    for path in Path(__file__).parent.glob("test_*.py")
    for name in re.findall(
        r"^def (test_(?:erratum|typo)_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
    )
}


@pytest.mark.parametrize("number", range(1, 15))
def test_every_section_names_its_test(number):
    named = re.findall(r"`(test_erratum_(\d\d)_\w+)`", SECTIONS[number])
    assert [int(digits) for _, digits in named] == [number]
    assert named[0][0] in TESTS


def test_the_page_has_fourteen_sections_and_names_every_test_of_a_typo():
    assert list(SECTIONS) == list(range(1, 15))
    assert TYPOS.startswith("Typos")
    typos = {name for name in TESTS if name.startswith("test_typo")}
    assert set(re.findall(r"`(test_typo_\w+)`", TYPOS)) == typos
    assert len(TESTS - typos) == 14

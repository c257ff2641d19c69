"""Pages on narrow screens: a figure of their own, and cells that stack with their headings."""

from __future__ import annotations

from hrf.report import pages


def test_a_narrow_screen_gets_its_own_figure():
    assert pages.image(b"wide", "errors").startswith('<img alt="errors" src="data:image/png;base64,')
    both = pages.image(b"wide", "errors", b"narrow")
    assert both.count("data:image/png;base64,") == 2
    assert both.startswith('<picture><source media="(max-width: ')


def test_cells_carry_their_headings():
    assert pages.row(["1"], names=["a & b"]) == '<tr><td data-name="a &amp; b">1</td></tr>'
    assert pages.row(["1", "2"], classes=["last"]) == '<tr><td>1</td><td class="last">2</td></tr>'
    style = pages.page("title", "")
    assert "@media (max-width: 44rem) {" in style
    assert "{{" not in style

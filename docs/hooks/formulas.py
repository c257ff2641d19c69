r"""Convert formulas to MathML when the site is built: browsers draw it without scripts or a network.

Arithmatex marks formulas in the page, ``\(…\)`` inline and ``\[…\]`` on lines of their own.
"""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

__all__ = ["on_page_content"]

_FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</\1>',
    re.DOTALL,
)


def _mathml(match: re.Match[str]) -> str:
    tag = match[1]
    drawn = convert(html.unescape(match["tex"]), display="inline" if tag == "span" else "block")
    # ⊤ is a transpose here, not an operator with space around it.
    drawn = drawn.replace("<mo>&#x022A4;</mo>", "<mi>&#x022A4;</mi>")
    return f'<{tag} class="formula">{drawn}</{tag}>'


def on_page_content(content: str, **_: Any) -> str:
    """Convert the formulas of a page; mkdocs calls this."""
    return _FORMULA.sub(_mathml, content)

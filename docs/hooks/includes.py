"""Include parts of the repository in pages, instead of repeating them.

A line ``{{ README.md # Start }}`` becomes the text below that heading, up to the next heading; a line
``{{ examples/centred.py }}`` becomes the file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

__all__ = ["expand", "on_page_markdown"]

ROOT = Path(__file__).parents[2]
_INCLUDE = re.compile(r"^\{\{ (?P<file>[\w./-]+\.\w+)(?: # (?P<heading>.+?))? \}\}$", re.MULTILINE)
_FENCE_OR_HEADING = re.compile(r"^(?:```|#+ (?P<heading>.+))")


def expand(text: str) -> str:
    """Return the text of a page with its includes filled in."""
    return _INCLUDE.sub(_included, text)


def _included(match: re.Match[str]) -> str:
    text = (ROOT / match["file"]).read_text(encoding="utf-8")
    if match["heading"] is not None:
        sections = _sections(text)
        if match["heading"] not in sections:
            raise ValueError(
                f"{match['file']} has no heading {match['heading']!r}; expected one of {', '.join(sections)}"
            )
        text = sections[match["heading"]]
    return text.strip().replace("](docs/", "](")  # paths of the repository to paths of the site


def _sections(text: str) -> dict[str, str]:
    """Collect the lines below each heading; a # inside a fence is a comment."""
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    fenced = False
    for line in text.splitlines():
        found = _FENCE_OR_HEADING.match(line)
        if found and found["heading"] is None:
            fenced = not fenced
        elif found and not fenced:
            lines = sections.setdefault(found["heading"], [])
            continue
        lines.append(line)
    return {heading: "\n".join(body) for heading, body in sections.items()}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the includes of a page; mkdocs calls this."""
    return expand(markdown)

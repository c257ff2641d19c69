"""Fence the doctests of docstrings, as Markdown requires."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

__all__ = ["FenceDoctests"]

_DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class FenceDoctests(Extension):
    """Extension of mkdocstrings: every doctest, up to the next empty line, becomes a block of code."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class or function."""
        if obj.docstring:
            obj.docstring.value = _DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)

"""Errors of the command: one sentence on stderr and exit code 2, or 130 after Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["needs_extra", "one_sentence"]

# Modules that come with an extra of the distribution.
_EXTRAS = {"cli": ("matplotlib", "rich", "typer")}


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

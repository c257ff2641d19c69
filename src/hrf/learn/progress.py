"""A progress bar over blocks, for any estimator, around a call: ``with hrf.learn.progress(): model.fit(x, y)``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from hrf import report

__all__ = ["advance", "progress", "wanted"]

_BAR: ContextVar[report.Progress | None] = ContextVar("hrf.learn.progress", default=None)


@contextmanager
def progress() -> Iterator[None]:
    """Show how many blocks are done while the block of code runs, on stderr of a terminal. Needs rich."""
    with report.progress("blocks") as bar:
        token = _BAR.set(bar)
        try:
            yield
        finally:
            _BAR.reset(token)


def wanted() -> bool:
    """Whether a bar is shown."""
    return _BAR.get() is not None


def advance(name: str, done: int, total: int) -> None:
    """Move the bar, if there is one."""
    bar = _BAR.get()
    if bar is not None:
        bar(name, done, total)

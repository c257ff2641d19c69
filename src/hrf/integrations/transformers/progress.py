"""Progress of `convert` on stderr: a bar on a terminal, else a line per step."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import Progress

__all__ = ["Steps", "shown_steps"]

Item = TypeVar("Item")


class Steps(Protocol):
    """Function that passes items on and shows which one is at work."""

    def __call__(self, what: str, items: Sequence[Item], names: Sequence[str] = ()) -> Iterable[Item]:
        """Pass ``items`` on; ``what`` says what happens to them, and ``names`` what each is called."""


@contextmanager
def shown_steps(shown: bool) -> Iterator[Steps]:
    """Show a bar on a terminal, one line per item elsewhere, or nothing."""
    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield _written if shown else _silent
        return
    with Progress(console=console, transient=True) as bar:

        def track(what: str, items: Sequence[Item], names: Sequence[str] = ()) -> Iterable[Item]:
            return bar.track(items, description=what)

        yield track


def _written(what: str, items: Sequence[Item], names: Sequence[str] = ()) -> Iterable[Item]:
    for index, item in enumerate(items):
        name = f": {names[index]}" if names else ""
        print(f"{what} {index + 1} of {len(items)}{name}", file=sys.stderr, flush=True)
        yield item


def _silent(what: str, items: Sequence[Item], names: Sequence[str] = ()) -> Iterable[Item]:
    return items

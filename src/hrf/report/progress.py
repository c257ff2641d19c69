"""Progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Progress", "progress"]

# Called with the name of the current step, the number of steps done and the number of all steps.
Progress = Callable[[str, int, int], None]


@contextmanager
def progress(counted: str = "draws") -> Iterator[Progress]:
    """Show a bar on stderr while the block runs; yields the function that moves the bar. Needs rich."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description:<15}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(counted),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda name, done, total: bar.update(task, description=name, completed=done, total=total)

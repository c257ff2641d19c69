"""Contract of an experiment: settings to parts, parts to tables, claims and a figure.

A *part* is a piece of work that ends in numbers, texts, lists and dictionaries, ready for JSON. It depends on
the settings alone, so that an interrupted run resumes with the parts that are missing. The entry ``"timings"`` of a
part was measured by a clock; all other entries are the same for the same seed.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Generic, TypeVar

import hrf
from hrf_paper.experiments.verdicts import Claim

__all__ = ["Experiment", "Part", "Results", "Table", "run", "versions"]

Part = Callable[[], dict[str, Any]]
Results = dict[str, Any]  # by the name of the part
S = TypeVar("S")


@dataclass(frozen=True)
class Table:
    """Texts in rows; every row is as long as the header.

    Attributes:
        title: printed above.
        header: one name per column.
        rows: one text per column; on the terminal, texts that end with an asterisk stand out.
        long: whether the table is for the page only.
        caption: printed below.
        styles: styles of rich for texts of the first column, by text.
        padding: spaces between columns on the terminal, in addition to one.
    """

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    long: bool = False
    caption: str = ""
    styles: Mapping[str, str] = field(default_factory=dict)
    padding: int = 1


@dataclass(frozen=True)
class Experiment(Generic[S]):
    """One figure or table of the paper.

    Attributes:
        name: the name on the command line.
        title: the subject, in one line.
        source: its place in the paper.
        full: the settings of the paper.
        quick: smaller settings, done in seconds; all settings have a field ``seed``.
        parts: the work by name. It loads data, so that missing files are reported before the work begins.
        tables: tables of the results.
        claims: statements of the paper, judged by the results.
        figure: draws a ``matplotlib.figure.Figure``.
        scaled: settings for a CPU, where the paper's settings take days: the default of the command.
        needs: modules that this experiment needs beside the common ones.
    """

    name: str
    title: str
    source: str
    full: S
    quick: S
    parts: Callable[[S], dict[str, Part]]
    tables: Callable[[S, Results], list[Table]]
    claims: Callable[[S, Results], list[Claim]]
    figure: Callable[[S, Results], Any]
    scaled: S | None = None
    needs: tuple[str, ...] = ()

    def settings(self, *, quick: bool = False, full: bool = False) -> S:
        """Return the settings asked for."""
        if quick and full:
            raise ValueError("both quick and full settings are asked for; expected one of them at most")
        if quick:
            return self.quick
        return self.full if full or self.scaled is None else self.scaled

    def option(self, settings: Any) -> str | None:
        """Return the option of the command that gives these settings, ``None`` if no option does."""
        sizes = {"": {}, " --quick": {"quick": True}, " --full": {"full": True}}
        for option, size in sizes.items():
            if replace(self.settings(**size), seed=settings.seed) == settings:  # type: ignore[type-var]
                return option
        return None


def run(
    parts: dict[str, Part],
    progress: Callable[[str, int, int], None] | None = None,
    finished: MutableMapping[str, Any] | None = None,
) -> Results:
    """Run all parts and return their results.

    Args:
        parts: the work by name.
        progress: called with the name of a part, the number of parts done and the number of all parts.
        finished: parts of an earlier run; the parts of this run are added.
    """
    finished = {} if finished is None else finished
    for done, (name, part) in enumerate(parts.items()):
        if progress is not None:
            progress(name, done, len(parts))
        if name not in finished:
            start = time.perf_counter()
            found = part()
            found["timings"] = {"seconds": time.perf_counter() - start} | found.get("timings", {})
            # Through JSON, so that resumed and uninterrupted runs see the same values.
            finished[name] = json.loads(json.dumps(found, allow_nan=False))
    return {name: finished[name] for name in parts}


def versions() -> dict[str, str]:
    """Return the versions of everything that numbers depend on."""
    return {"hrf": hrf.__version__, "python": platform.python_version()} | {
        name: _version(name) for name in ("torch", "numpy", "scipy", "scikit-learn")
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"

"""The contract of an experiment of the paper: settings to parts, parts to tables, claims and a figure.

A *part* is a piece of work that ends in numbers, texts, lists and dictionaries, ready for JSON. It depends on
the settings alone, so that an interrupted run goes on with the parts that are missing. What a part has under
``"timings"`` was measured by a clock; all else is the same for the same seed.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Generic, Literal, TypeVar

import hrf

__all__ = ["VERDICTS", "Claim", "Experiment", "Part", "Results", "Table", "run", "versions"]

Part = Callable[[], dict[str, Any]]
Results = dict[str, Any]  # of every part
S = TypeVar("S")

VERDICTS = {
    "holds": "holds",
    "partly": "holds in part",
    "fails": "does not hold",
    "beyond": "not in the paper",
}


@dataclass(frozen=True)
class Claim:
    """A statement of the paper beside what was found.

    Attributes:
        claim: what the paper says, and where.
        paper: its value.
        ours: the same from this run.
        verdict: a key of `VERDICTS`.
        sentence: what is true, computed from the numbers.
        matching: at which size of the estimators, where that matters.
        measured: whether a clock was involved, so that another run may find other numbers.
    """

    claim: str
    paper: str
    ours: str
    verdict: Literal["holds", "partly", "fails", "beyond"]
    sentence: str
    matching: str = ""
    measured: bool = False


@dataclass(frozen=True)
class Table:
    """Texts in rows; every row is as long as the header. A ``long`` one is for the page only."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    long: bool = False


@dataclass(frozen=True)
class Experiment(Generic[S]):
    """One figure or table of the paper.

    Attributes:
        name: as in the command.
        title: what it is about, in one line.
        source: where it stands in the paper.
        full: the settings of the paper.
        quick: smaller ones, done in seconds; all have a field ``seed``.
        parts: the work by name; it loads data, so that what is missing is known before the work begins.
        tables: of the results.
        claims: of the paper, judged by the results.
        figure: a ``matplotlib.figure.Figure``.
        scaled: settings for a CPU, where those of the paper take days: what runs unless it is told otherwise.
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

    def settings(self, *, quick: bool = False, full: bool = False) -> S:
        """The ones asked for."""
        if quick and full:
            raise ValueError("both quick and full settings are asked for; expected one of them at most")
        if quick:
            return self.quick
        return self.full if full or self.scaled is None else self.scaled


def run(
    parts: dict[str, Part],
    progress: Callable[[str, int, int], None] | None = None,
    kept: MutableMapping[str, Any] | None = None,
) -> Results:
    """The results of all parts.

    Args:
        parts: the work by name.
        progress: called with a part's name, the parts done and the number of all.
        kept: parts that are done already; those that end in this run are added.
    """
    kept = {} if kept is None else kept
    for done, (name, part) in enumerate(parts.items()):
        if progress is not None:
            progress(name, done, len(parts))
        if name not in kept:
            start = time.perf_counter()
            found = part()
            found["timings"] = {"seconds": time.perf_counter() - start} | found.get("timings", {})
            kept[name] = json.loads(json.dumps(found, allow_nan=False))  # the same, kept or not
    return {name: kept[name] for name in parts}


def versions() -> dict[str, str]:
    """Of everything that numbers depend on."""
    return {"hrf": hrf.__version__, "python": platform.python_version()} | {
        name: _version(name) for name in ("torch", "numpy", "scipy", "scikit-learn")
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"

"""Contract of an experiment: settings to parts, parts to tables, claims and a figure.

A *part* is a piece of work that ends in numbers, texts, lists and dictionaries, ready for JSON. It depends on
the settings alone, so that an interrupted run resumes with the parts that are missing. The entry ``"timings"`` of a
part was measured by a clock; all other entries are the same for the same seed.
"""

from __future__ import annotations

import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import InitVar, asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Generic, Literal, TypeVar

from scipy import stats

import hrf

# Claims of the paper, and the one rule that judges all of them.
#
# A claim is a number of cases: printed numbers, settings, sizes, comparisons. A case is reproduced or it is not, and
#
# - all cases reproduced: the claim is *reproduced* (``holds``),
# - at least half of them: *partly reproduced* (``partly``),
# - fewer than half: *not reproduced* (``fails``).
#
# Questions that the paper does not ask have no cases (``beyond``). JSON files store ``matched`` and ``total`` with each
# claim, so that a reader can recompute its verdict.

Verdict = Literal["holds", "partly", "fails", "beyond"]

VERDICTS: dict[Verdict, str] = {
    "holds": "reproduced",
    "partly": "partly reproduced",
    "fails": "not reproduced",
    "beyond": "not in the paper",
}
MARKS: dict[Verdict, str] = {"holds": "✓", "partly": "◦", "fails": "✗", "beyond": "+"}
RULE = (
    "A claim is reproduced (✓) if all of its cases are, partly reproduced (◦) if at least half of them are, "
    "and not reproduced (✗) otherwise; + marks questions that the paper does not ask."
)


def verdict_of(matched: int | None, total: int | None) -> Verdict:
    """Judge a claim by the number of its cases that are reproduced.

    >>> [verdict_of(matched, 22) for matched in (22, 11, 1)]
    ['holds', 'partly', 'fails']
    >>> verdict_of(None, None)
    'beyond'
    """
    if matched is None or total is None:
        return "beyond"
    if matched == total:
        return "holds"
    return "partly" if 2 * matched >= total else "fails"


def verdict_text(matched: int | None, total: int | None, cases: str = "", criterion: str = "") -> str:
    """Put a verdict into words that show the numbers behind it.

    >>> verdict_text(1, 22, "printed numbers", "within two deviations")
    '✗ 1 of 22 printed numbers reproduced (within two deviations)'
    """
    verdict = verdict_of(matched, total)
    if matched is None or total is None:
        return f"{MARKS[verdict]} {VERDICTS[verdict]}"
    counted = f"{total:,} {cases}" if cases else f"{total:,}"
    text = f"{MARKS[verdict]} {matched:,} of {counted} reproduced"
    return f"{text} ({criterion})" if criterion else text


@dataclass(frozen=True)
class Claim:
    """A statement of the paper beside the result of a run.

    Attributes:
        claim: the statement, and where it stands in the paper.
        paper: its value.
        ours: the value of this run.
        sentence: the finding, computed from the numbers.
        hits: whether each case is reproduced; ``None`` where the paper claims nothing.
        matched: the number of cases that are reproduced, or ``None``.
        total: the number of all cases, or ``None``.
        cases: the noun for what is counted, in the plural.
        criterion: when a case counts as reproduced, where the claim leaves it open.
        matching: the rule by which sizes of estimators are matched, where it matters.
        measured: whether a clock was involved, so that another run may find other numbers.
        verdict: a key of `VERDICTS`, by `verdict_of`.
    """

    claim: str
    paper: str
    ours: str
    sentence: str
    matched: int | None = field(init=False)
    total: int | None = field(init=False)
    cases: str = ""
    criterion: str = ""
    matching: str = ""
    measured: bool = False
    verdict: Verdict = field(init=False)
    hits: InitVar[Collection[bool] | None] = None

    def __post_init__(self, hits: Collection[bool] | None) -> None:
        if hits is not None and not hits:
            raise ValueError("hits is empty; expected at least one case, or None")
        object.__setattr__(self, "matched", None if hits is None else sum(hits))
        object.__setattr__(self, "total", None if hits is None else len(hits))
        object.__setattr__(self, "verdict", verdict_of(self.matched, self.total))

    @property
    def text(self) -> str:
        """The verdict in words, with its numbers."""
        return verdict_text(self.matched, self.total, self.cases, self.criterion)


@dataclass(frozen=True)
class Runs:
    """One number per run or draw; their mean has a 95 % interval if there are several.

    Attributes:
        values: the numbers; none if all runs diverged.
        decimals: of the text.
    """

    values: list[float]
    decimals: int

    @property
    def mean(self) -> float:
        """The mean; NaN without values."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def half_width(self) -> float:
        """Half of the interval, by Student's distribution; NaN for fewer than two values."""
        if (count := len(self.values)) < 2:
            return math.nan
        return float(stats.t.ppf(0.975, count - 1)) * statistics.stdev(self.values) / math.sqrt(count)

    @property
    def text(self) -> str:
        """The mean, with its interval if there is one."""
        if not self.values:
            return "diverged"
        spread = "" if math.isnan(self.half_width) else f" ± {self.half_width:.{self.decimals}f}"
        return f"{self.mean:.{self.decimals}f}{spread}"


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

    def all_tables(self, settings: S, results: Results) -> list[Table]:
        """Return the tables, and the settings that are scaled down where there are such settings."""
        smaller = [] if self.scaled is None else scaled_down(settings, self.full)
        return [*self.tables(settings, results), *smaller]

    def by_option(self, seed: int) -> dict[str, S]:
        """Return the settings by the option of the command that gives them."""
        sizes: dict[str, dict[str, bool]] = {"": {}, " --quick": {"quick": True}, " --full": {"full": True}}
        return {
            option: replace(self.settings(**size), seed=seed)  # type: ignore[type-var]
            for option, size in sizes.items()
        }


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


# Settings in which a run is smaller than the paper's.


def scaled_down(settings: Any, full: Any) -> list[Table]:
    """List the settings that differ from the full settings, the seed aside; no table if none differs."""
    ours, theirs = _flat(asdict(settings)), _flat(asdict(full))
    rows = [
        (name, *(_text(side[name]) if name in side else "" for side in (theirs, ours)))
        for name in dict.fromkeys([*theirs, *ours])
        if theirs.get(name) != ours.get(name) and name != "seed"
    ]
    return [Table("Scaled down for a CPU", ("setting", "--full", "this run"), rows)] if rows else []


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def _text(value: Any) -> str:
    if value is None:
        return "all"
    return (", ".join(map(str, value)) or "none") if isinstance(value, list | tuple) else str(value)

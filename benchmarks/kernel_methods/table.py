"""Tables of the results, headings first: means over seeds, with 95 % intervals where there are two seeds or more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from benchmarks.kernel_methods.methods import AUTO, BASELINES, CURVES, EXACT, MAPS, TRIGONOMETRIC

__all__ = [
    "Point",
    "budget_rows",
    "curve",
    "exact_rows",
    "interval",
    "map_rows",
    "reach_rows",
    "scaling_rows",
    "sets_of",
    "setting_rows",
]

MOST = 100  # larger errors are not written out
BUDGETS = (1.0, 3.0, 10.0)
MAP_WIDTH = 512
NAMES = {AUTO: 'hrf, "auto"', TRIGONOMETRIC: "hrf, default"}
OURS = (AUTO, TRIGONOMETRIC)


class Point(NamedTuple):
    """One method at one width on one set: errors by seed, the mean CPU seconds to fit, and the maps that were taken."""

    method: str
    width: int
    errors: dict[int, float]
    seconds: float
    megabytes: float | None
    maps: list[str]

    @property
    def mean(self) -> float:
        """The mean error."""
        return float(np.mean([*self.errors.values()]))

    def text(self) -> str:
        """Return the mean error with its interval."""
        if self.mean > MOST:
            return f"> {MOST}"
        if len(self.errors) < 2:
            return f"{self.mean:.4f}"
        return f"{self.mean:.4f} ± {interval([*self.errors.values()])[1]:.4f}"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half of its 95 % interval, by Student's t."""
    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values)), float(half)


def sets_of(result: dict[str, Any]) -> list[str]:
    """List the sets that were measured."""
    return list(dict.fromkeys(key.partition("|")[0] for key in result["parts"]))


def points(result: dict[str, Any], name: str) -> list[Point]:
    """Return all that was measured on a set."""
    grouped: dict[tuple[str, int], list[tuple[int, list[Any]]]] = {}
    for key, found in result["parts"].items():
        own, method, width, seed = key.split("|")
        if own == name:
            grouped.setdefault((method, int(width)), []).append((int(seed), found))
    return [
        Point(
            method,
            width,
            {seed: part[0] for seed, part in parts},
            float(np.mean([part[1] for _, part in parts])),
            parts[0][1][2],
            [part[3] for _, part in parts],
        )
        for (method, width), parts in grouped.items()
    ]


def curve(result: dict[str, Any], name: str, method: str) -> list[Point]:
    """Return the points of a method by width."""
    return sorted((p for p in points(result, name) if p.method == method), key=lambda p: p.width)


def _best(candidates: Sequence[Point], seconds: float) -> Point | None:
    """Return the point with the least mean error within the time."""
    return min((p for p in candidates if p.seconds <= seconds), key=lambda p: p.mean, default=None)


def budget_rows(result: dict[str, Any]) -> list[list[str]]:
    """Return one row per set and time: the least error that each side reaches within it, and who is better."""
    rows = [["set", "CPU s", "hrf", *BASELINES, "hrf is"]]
    for name in sets_of(result):
        ours = [p for method in OURS for p in curve(result, name, method)]
        for budget in BUDGETS:
            mine = _best(ours, budget)
            theirs = [_best(curve(result, name, method), budget) for method in BASELINES]
            if mine is None:
                continue
            cells = ["" if p is None else f"{p.text()} ({p.width:,})" for p in theirs]
            kind = '"auto"' if mine.method == AUTO else "default"
            verdict = _verdict(mine, [p for p in theirs if p is not None])
            rows.append([name, f"{budget:g}", f"{mine.text()} ({kind}, {mine.width:,})", *cells, verdict])
    return rows


def _verdict(mine: Point, theirs: Sequence[Point]) -> str:
    """Compare seed by seed with the best of the others."""
    if not theirs:
        return "alone"
    return compared(mine, min(theirs, key=lambda p: p.mean))


def compared(mine: Point, other: Point) -> str:
    """Say in a word whether errors differ by more than the 95 % interval of their differences, seed by seed."""
    shared = sorted(set(mine.errors) & set(other.errors))
    differences = [mine.errors[seed] - other.errors[seed] for seed in shared]
    if len(shared) < 2:
        return "better (one seed)" if differences[0] < 0 else "worse (one seed)"
    mean, half = interval(differences)
    return "better" if mean < -half else "worse" if mean > half else "equal within the interval"


def reach_rows(result: dict[str, Any]) -> list[list[str]]:
    """Return two rows per set: CPU seconds to the least error of each scikit-learn method."""
    rows = [["set", "error of", "is", *(NAMES.get(method, method) for method in CURVES)]]
    for name in sets_of(result):
        for baseline in BASELINES:
            target = min(curve(result, name, baseline), key=lambda p: p.mean)
            cells = [_seconds_to(curve(result, name, method), target.mean) for method in CURVES]
            rows.append([name, f"{baseline}, {target.width:,}", f"{target.mean:.4f}", *cells])
    return rows


def _seconds_to(found: Sequence[Point], error: float) -> str:
    """Return the time to an error between two widths, by interpolation of error over the logarithm of time."""
    before: Point | None = None
    for point in found:
        if point.mean <= error:
            if before is None or before.mean <= point.mean:
                return f"{point.seconds:.2f}"
            share = (before.mean - error) / (before.mean - point.mean)
            return f"{before.seconds * (point.seconds / before.seconds) ** share:.2f}"
        before = point
    return "not reached"


def map_rows(result: dict[str, Any]) -> list[list[str]]:
    """Return one row per map at one width, and how "auto" compares with the best of them."""
    names = sets_of(result)
    found = {name: {p.method: p for p in points(result, name) if p.width == MAP_WIDTH} for name in names}
    rows = [["test error", *names]]
    for method in (*MAPS, AUTO, *BASELINES):
        cells = [found[name][method].text() if method in found[name] else "" for name in names]
        rows.append([MAPS.get(method, NAMES.get(method, method)), *cells])
    verdicts = []
    for name in names:
        fixed = [p for method, p in found[name].items() if method in MAPS]
        best = min(fixed, key=lambda p: p.mean, default=None)
        verdicts.append(
            "" if best is None else f"{compared(found[name][AUTO], best)}: {MAPS[best.method]} is best"
        )
    return [*rows, ['"auto" beside the best', *verdicts]]


def exact_rows(result: dict[str, Any]) -> list[list[str]]:
    """Return one row per fit in a process of its own: error, time and memory, exact methods first in every set."""
    rows = [["set", "method", "width", "test error", "CPU s", "MB"]]
    for name in sets_of(result):
        alone = [p for p in points(result, name) if p.megabytes is not None]
        if not any(p.method in EXACT for p in alone):
            continue
        for p in sorted(alone, key=lambda p: (p.method not in EXACT, p.width)):
            width = f"{p.width:,}" if p.width else ""
            rows.append(
                [name, p.method, width, f"{p.mean:.4f}", f"{p.seconds:.1f}", f"{p.megabytes or 0:,.0f}"]
            )
    return rows


def setting_rows(result: dict[str, Any]) -> list[list[str]]:
    """Return γ and penalty by the search, per set, family and width."""
    rows = [["set", "features", "width", "γ", "penalty"]]
    return [*rows, *_settings(result)]


def _settings(result: dict[str, Any]) -> Iterator[list[str]]:
    for key, found in sorted(result["searches"].items()):
        name, family, width = key.split("|")
        yield [name, family, f"{int(width):,}", f"{found['gamma']:.4f}", f"{found['alpha']:g}"]


def scaling_rows(result: dict[str, Any], kind: str = "sizes") -> list[list[str]]:
    """Return one row per number of rows: time, memory and coefficients of ridge regression on a Dask cluster."""
    rows = [["rows", "s", "CPU s", "CPU µs per row", "peak MB per worker", "coefficients differ by"]]
    for size, found in result.get(kind, {}).items():
        times = f"{found['seconds']:.1f}", f"{found['cpu_seconds']:.1f}"
        per_row = f"{found['cpu_seconds'] / int(size) * 1e6:.1f}"
        difference = (
            f"{found['coefficient_difference']:.0e}" if "coefficient_difference" in found else "not compared"
        )
        rows.append([f"{int(size):,}", *times, per_row, f"{found['peak_megabytes']:.0f}", difference])
    return rows

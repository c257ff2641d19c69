"""Growth of the time of a case with the length of the sequence: a table and a log-log plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from benchmarks.runner import Timing
from hrf.report import png, table, write

__all__ = ["Growth", "as_dict", "draw", "growths", "show"]

LINEAR = 2.2  # the largest factor for a doubling that still counts as linear


@dataclass(frozen=True)
class Growth:
    """Median times of the cases of one name, by length."""

    name: str
    seconds: dict[int, float]

    def doubling(self) -> float:
        """Return the largest factor in time when the length doubles, over neighbouring lengths."""
        points = sorted(self.seconds.items())
        steps = pairwise(points)
        return max((t2 / t1) ** (1 / math.log2(n2 / n1)) for (n1, t1), (n2, t2) in steps)


def growths(timings: Sequence[Timing]) -> list[Growth]:
    """Return one `Growth` per name of the groups of attention that was timed at two lengths or more."""
    found: dict[str, dict[int, float]] = {}
    for timing in timings:
        if timing.case.size and timing.case.group.startswith("attention"):
            found.setdefault(timing.case.name, {})[timing.case.size] = timing.median
    return [Growth(name, seconds) for name, seconds in found.items() if len(seconds) > 1]


def show(console: Console, all_growths: Sequence[Growth]) -> None:
    """Print times by length, and the factor per doubling of the length."""
    lengths = sorted({length for g in all_growths for length in g.seconds})
    rows = []
    for g in all_growths:
        shown = (f"{g.seconds[n] * 1e3:.2f}" if n in g.seconds else "" for n in lengths)
        factor = g.doubling()
        rows.append([g.name, *shown, Text(f"{factor:.2f}×", "green" if factor <= LINEAR else "red")])
    header = ["case", *(f"{n:,}" for n in lengths), "doubling L costs"]
    console.print(table(header, rows, title="growth: median ms by tokens"))


def draw(all_growths: Sequence[Growth], path: Path) -> None:
    """Draw time against length, both logarithmic; peers are dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for g in all_growths:
        ours = g.name.startswith(("Positive", "AngularHybrid", "Trigonometric"))
        points = sorted(g.seconds.items())
        style = "o-" if ours and "explicit" not in g.name else "s--"
        axes.plot([n for n, _ in points], [1e3 * t for _, t in points], style, label=g.name, markersize=4)
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="time, ms")
    ticks = sorted({length for g in all_growths for length in g.seconds})
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    axes.set_title("Attention, 8 heads of 64, 256 features, 2 threads", loc="left", fontsize=10)
    write(path, png(figure, dpi=150))


def as_dict(growth: Growth) -> dict[str, Any]:
    """Return a growth for JSON."""
    return {"case": growth.name, "seconds": growth.seconds, "doubling": growth.doubling()}

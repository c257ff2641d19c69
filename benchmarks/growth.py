"""How the time of a case grows with the length of the sequence: a table and a log-log plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.report import table
from benchmarks.runner import Timing

__all__ = ["Growth", "as_dict", "draw", "growths", "show"]

LINEAR = 2.2  # the largest factor for a doubling that still counts as linear


@dataclass(frozen=True)
class Growth:
    """Median times of the cases of one name, by length."""

    name: str
    seconds: dict[int, float]

    def doubling(self) -> float:
        """The largest factor in time for a length twice as large, over neighbouring lengths."""
        points = sorted(self.seconds.items())
        steps = pairwise(points)
        return max((t2 / t1) ** (1 / math.log2(n2 / n1)) for (n1, t1), (n2, t2) in steps)


def growths(timings: Sequence[Timing]) -> list[Growth]:
    """One for every name that was timed at two lengths or more."""
    found: dict[str, dict[int, float]] = {}
    for timing in timings:
        if timing.case.size:
            found.setdefault(timing.case.name, {})[timing.case.size] = timing.median
    return [Growth(name, seconds) for name, seconds in found.items() if len(seconds) > 1]


def show(console: Console, all_growths: Sequence[Growth]) -> None:
    """Print times by length and the factor of a doubling."""
    lengths = sorted({length for g in all_growths for length in g.seconds})
    times = table("growth: median ms by tokens", "case", *(f"{n:,}" for n in lengths), "doubling L costs")
    for g in all_growths:
        shown = (f"{g.seconds[n] * 1e3:.2f}" if n in g.seconds else "" for n in lengths)
        factor = g.doubling()
        style = "green" if factor <= LINEAR else "red"
        times.add_row(g.name, *shown, f"[{style}]{factor:.2f}×[/]")
    console.print(times)


def draw(all_growths: Sequence[Growth], path: Path) -> None:
    """Time against length, both logarithmic; dashes are for peers."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for g in all_growths:
        ours = g.name.startswith(("Positive", "AngularHybrid"))
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
    figure.savefig(path, dpi=150)
    plt.close(figure)


def as_dict(growth: Growth) -> dict[str, Any]:
    """A growth for JSON."""
    return {"case": growth.name, "seconds": growth.seconds, "doubling": growth.doubling()}

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


# Panels of the figure: cases with their colours and what they are called; peers are dashed.
PANELS = {
    "bidirectional": {
        "exact (scaled_dot_product_attention)": ("scaled_dot_product_attention", "#555555"),
        "performer-pytorch": ("performer-pytorch", "#B35C00"),
        "AngularHybrid": ("AngularHybrid", "#A6357F"),
        "Positive": ("Positive", "#0067A5"),
    },
    "causal": {
        "exact, causal": ("scaled_dot_product_attention", "#555555"),
        "Trigonometric, causal": ("Trigonometric", "#00755A"),
        "Positive, causal": ("Positive", "#0067A5"),
    },
    "bidirectional, forward and backward": {
        "exact, forward + backward": ("scaled_dot_product_attention", "#555555"),
        "performer-pytorch, forward + backward": ("performer-pytorch", "#B35C00"),
        "Positive, forward + backward": ("Positive", "#0067A5"),
    },
}
PEERS = ("scaled_dot_product_attention", "performer-pytorch")


def draw(all_growths: Sequence[Growth], path: Path) -> None:
    """Draw time against length, both logarithmic, in three panels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    seconds = {g.name: sorted(g.seconds.items()) for g in all_growths}
    for axes, (title, cases) in zip(
        figure.subplots(1, 3, sharex=True, sharey=True), PANELS.items(), strict=True
    ):
        for case, (name, colour) in cases.items():
            points = seconds.get(case, [])
            style = "s--" if name in PEERS else "o-"
            lengths, times = [n for n, _ in points], [1e3 * t for _, t in points]
            axes.plot(lengths, times, style, color=colour, label=name, markersize=4)
        axes.set(xscale="log", yscale="log", xlabel="tokens", title=title)
        ticks = sorted({n for points in seconds.values() for n, _ in points})
        axes.set_xticks(ticks, [f"{n / 1024:g}k" for n in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    figure.axes[0].set_ylabel("time, ms")
    write(path, png(figure, dpi=110))


def as_dict(growth: Growth) -> dict[str, Any]:
    """Return a growth for JSON."""
    return {"case": growth.name, "seconds": growth.seconds, "doubling": growth.doubling()}

"""Draw test error over fit time, one panel per set: ``docs/figures/kernel_methods.png``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.kernel_methods.methods import AUTO, EXACT, TRIGONOMETRIC
from benchmarks.kernel_methods.table import curve, sets_of
from hrf.report import folder, png, write

# Colours that colour-blind readers tell apart (Okabe, Ito), and a mark each.
LINES = {
    AUTO: ("#0072B2", "o", 'hrf.learn, feature_map="auto"'),
    TRIGONOMETRIC: ("#56B4E9", "o", "hrf.learn, default map"),
    "RBFSampler": ("#E69F00", "s", "RBFSampler and Ridge"),
    "Nystroem": ("#D55E00", "^", "Nystroem and Ridge"),
}


def draw(axes: Axes, result: dict[str, Any], name: str) -> None:
    """Draw the curves of one set, and the exact error as a line."""
    for method, (colour, mark, label) in LINES.items():
        found = curve(result, name, method)
        axes.plot(
            [p.seconds for p in found],
            [p.mean for p in found],
            color=colour,
            marker=mark,
            markersize=4,
            linewidth=1.5,
            label=label,
        )
    exact = [p for method in EXACT[:2] for p in curve(result, name, method)]
    for p in exact[:1]:
        axes.axhline(p.mean, color="#222222", linewidth=0.8, linestyle=(0, (4, 3)))
        axes.text(
            0.98,
            p.mean,
            f"exact, {p.seconds:,.0f} s",
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="bottom",
            size=8,
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_title(name, loc="left", size=10)
    axes.spines[["top", "right"]].set_visible(False)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_methods.curves", description=__doc__)
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("benchmarks/results/kernel_methods.json"),
        help="default: %(default)s",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("docs/figures"), help="folder (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    result = json.loads(args.results.read_text(encoding="utf-8"))
    drawing = Figure(figsize=(11, 6), layout="constrained", facecolor="white")
    panels = drawing.subplots(2, 3).ravel()
    for axes, name in zip(panels, sets_of(result), strict=False):
        draw(axes, result, name)
    handles, labels = panels[0].get_legend_handles_labels()
    panels[-1].axis("off")
    panels[-1].legend(handles, labels, frameon=False, loc="center left", fontsize=10)
    drawing.supxlabel("CPU seconds to fit, one thread", size=10)
    drawing.supylabel("test error", size=10)
    write(folder(args.out) / "kernel_methods.png", png(drawing, dpi=110))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Report of measured times: tables on the terminal, and JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

import hrf
from benchmarks.runner import Ratio, Timing, quartiles
from hrf import _core as core
from hrf.report import table

__all__ = ["as_dict", "environment", "show"]


def environment() -> dict[str, Any]:
    """Describe the machine and the versions that were measured."""
    return {
        "cpu": _cpu(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "core": core.instructions(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0]
        if hasattr(os, "getloadavg")
        else None,  # over the last minute, by other processes
        "platform": platform.platform(),
        "versions": {
            "python": platform.python_version(),
            "hrf": hrf.__version__,
            "torch": torch.__version__,
            **{name: _version(name) for name in ("numpy", "performer-pytorch", "scikit-learn")},
        },
    }


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def show(console: Console, group: str, timings: Sequence[Timing], ratios: Sequence[Ratio]) -> None:
    """Print the times and the ratios of a group."""
    console.print(_times(group, timings))
    console.print("GFLOP/s and the share of the peak count the matrix products alone.\n", style="dim")
    if ratios:
        console.print(_comparisons(group, ratios))


def _times(group: str, timings: Sequence[Timing]) -> Table:
    peak = timings[0].flops_per_second
    rows = []
    for t in timings:
        low, high = quartiles(t.seconds)
        rows.append(
            [
                t.case.name,
                "×".join(map(str, t.shape)),
                f"{t.median * 1e3:.1f}",
                f"{low * 1e3:.1f} – {high * 1e3:.1f}",
                f"{t.case.rows / t.median / 1e6:.2f}" if t.case.rows else "",
                f"{t.flops_per_second / 1e9:.1f}",
                f"{t.flops_per_second / peak:.0%}",
            ]
        )
    header = ["case", "output", "median ms", "quartiles", "M vectors/s", "GFLOP/s", "of peak"]
    return table(header, rows, title=f"{group}: times")


def _comparisons(group: str, ratios: Sequence[Ratio]) -> Table:
    rows = []
    for r in ratios:
        low, high = quartiles(r.rounds)
        faster = r.against.measure == "speed-up"
        rows.append(
            [
                r.case.name,
                f"{r.median:.2f}×",
                f"{'as fast as' if faster else 'the time of'} {r.against.baseline}",
                f"{low:.2f} – {high:.2f}",
                "" if r.against.target is None else f"{'≥' if faster else '≤'} {r.against.target:g}×",
                {None: Text(""), True: Text("yes", "green"), False: Text("no", "red")}[r.met],
            ]
        )
    header = ["case", "ratio", "to", "quartiles", "target", "met"]
    return table(header, rows, title=f"{group}: ratios, round by round")


def as_dict(timings: Sequence[Timing], ratios: Sequence[Ratio]) -> dict[str, Any]:
    """Return a group for JSON: every time in seconds and every ratio."""
    peak = timings[0].flops_per_second
    return {
        "timings": [
            {
                "case": t.case.name,
                "output": t.shape,
                "seconds": t.seconds,
                "median": t.median,
                "quartiles": quartiles(t.seconds),
                "vectors_per_second": t.case.rows / t.median if t.case.rows else None,
                "flops": t.case.flops,
                "flops_per_second": t.flops_per_second,
                "share_of_peak": t.flops_per_second / peak,
            }
            for t in timings
        ],
        "ratios": [
            {
                "case": r.case.name,
                "against": r.against.baseline,
                "measure": r.against.measure,
                "rounds": r.rounds,
                "median": r.median,
                "quartiles": quartiles(r.rounds),
                "of_medians": r.of_medians,
                "target": r.against.target,
                "met": r.met,
            }
            for r in ratios
        ],
    }

"""Measure all methods on all sets, print, and write ``kernel_methods.json``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console

from benchmarks import report
from benchmarks.kernel_methods import measure
from benchmarks.kernel_methods.data import SETS, Split, split
from benchmarks.kernel_methods.measure import Outcome
from benchmarks.kernel_methods.methods import EXACT, TRANSFORMERS
from benchmarks.kernel_methods.table import difference_rows, error_rows, time_rows
from hrf.report import folder, table, write

ROWS, NEW_ROWS, GAMMA_ROWS = 4000, 2000, 1000
WIDTH = 256
FACTORS = (0.1, 0.2, 0.5, 1.0, 2.0)  # of 1/d, for γ


def measured(name: str, seeds: int) -> dict[str, Any]:
    """Run all methods on one set; γ and the penalties of exact methods are chosen on the first seed."""
    first = split(name, 0, ROWS, NEW_ROWS)
    gamma, penalty = measure.best_gamma(first, FACTORS, GAMMA_ROWS)
    found: dict[str, list[Outcome]] = {}
    for seed in range(seeds):
        data = split(name, seed, ROWS, NEW_ROWS)
        for method, maker in TRANSFORMERS.items():
            outcome = measure.features_and_ridge(maker(gamma, WIDTH, seed), data)
            found.setdefault(method, []).append(outcome)
        found.setdefault(EXACT[0], []).append(measure.exact_ridge(data, gamma, penalty))
        if data.classes:
            found.setdefault(EXACT[1], []).append(measure.support_vectors(data, gamma, _best_c(first, gamma)))
    return {
        "rows": len(first.x),
        "new_rows": len(first.new_x),
        "columns": first.x.shape[1],
        "gamma": gamma,
        "methods": {method: _numbers(outcomes) for method, outcomes in found.items()},
    }


def _best_c(data: Split, gamma: float) -> float:
    part = measure.held_out(data, GAMMA_ROWS)
    return min(map(float, measure.C), key=lambda c: measure.support_vectors(part, gamma, c).error)


def _numbers(outcomes: list[Outcome]) -> dict[str, Any]:
    return {
        "errors": [outcome.error for outcome in outcomes],
        "seconds": [outcome.seconds for outcome in outcomes],
        "penalties": [outcome.penalty for outcome in outcomes],
        "width": outcomes[0].width,
        "maps": [outcome.name for outcome in outcomes],
    }


def run(sets: Sequence[str], seeds: int, path: Path, console: Console) -> None:
    """Measure, print and write, set by set; sets that are in the file and not measured stay."""
    start = perf_counter()
    before = json.loads(path.read_text(encoding="utf-8"))["sets"] if path.exists() else {}
    result: dict[str, Any] = {"width": WIDTH, "seeds": seeds, "sets": {}, "environment": report.environment()}
    for name in SETS:
        if name in sets:
            result["sets"][name] = measured(name, seeds)
        elif name in before:
            result["sets"][name] = before[name]
        console.print(f"{name}: {perf_counter() - start:.0f} s")
        text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
        write(folder(path.parent) / path.name, text.encode())
    for make in (error_rows, time_rows, difference_rows):
        headings, *rows = make(result)
        console.print(table(headings, rows))
    console.print(f"Written to {path}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 2 if data are missing."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernel_methods",
        description="Kernel methods of hrf.learn beside scikit-learn, at equal width.",
        epilog="Data are read from $HRF_DATA, by default ../shared/data.",
    )
    parser.add_argument("--sets", nargs="+", choices=SETS, default=[*SETS], help="default: all")
    parser.add_argument(
        "--seeds", type=int, default=10, help="seeds per set, two or more (default: %(default)s)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("results"),
        help="folder for kernel_methods.json (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    console = Console()
    if not console.is_terminal:
        console.width = 160  # a pipe or a file has room
    try:
        run(args.sets, args.seeds, args.out / "kernel_methods.json", console)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

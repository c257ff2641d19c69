"""``python -m benchmarks``: time all cases, print tables, write ``bench.json`` and, for summaries, two more files."""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

INSTALL = "pip install 'hybrid-random-features[bench]'"

try:
    import torch
    from rich.console import Console
    from rich.progress import Progress

    from benchmarks import attention, growth, long_prompts, maps, report, runner, sampling, summarised
    from benchmarks.cases import Case
    from hrf.report import folder, write
except ModuleNotFoundError as error:
    sys.exit(f"benchmarks need {error.name}: {INSTALL}")

MODULES = (maps, attention, sampling, summarised, long_prompts)  # each has CASES, and SETTINGS by group
CASES = tuple(case for module in MODULES for case in module.CASES)
THREADS, BENCH = 2, "bench.json"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Time hrf against its peers and against the hardware, in float32 on two threads.",
        epilog="examples:\n"
        "  python -m benchmarks                          everything; JSON in results\n"
        "  python -m benchmarks --only positive          some cases, with their baselines\n"
        "  python -m benchmarks --only 'maps/*hybrid'    the same by group and name\n"
        "  python -m benchmarks --only 'attention'       attention of 512 to 16,384 tokens\n"
        "  python -m benchmarks --rounds 51 --out /tmp   longer, for a busy machine",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results"), help="folder for JSON files (default: %(default)s)"
    )
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        help="only cases whose group/name contains this; * and ? allowed; files keep other groups",
    )
    parser.add_argument(
        "--rounds", type=int, default=21, metavar="N", help="rounds per case (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    if args.rounds < 1:
        parser.error(f"--rounds is {args.rounds}; expected at least 1")
    args.cases = runner.choose(CASES, args.only)
    if not args.cases:
        known = ", ".join(f"{c.group}/{c.name}" for c in CASES)
        parser.error(f"--only {args.only!r} fits no case; there are: {known}")
    return args


def run(cases: Sequence[Case], rounds: int, out: Path, *, some: bool) -> None:
    """Time the cases, print the tables and write JSON, which keeps other groups if only some cases run."""
    warnings.filterwarnings("ignore", message="queries and keys have norms")  # times are measured, not errors
    torch.set_num_threads(min(THREADS, os.cpu_count() or 1))
    console = Console()
    if not console.is_terminal:
        console.width = 120  # a pipe or a file has room
    environment = report.environment()
    console.print(
        f"{environment['cpu']}, {environment['threads']} threads, float32, every case {rounds}×",
        highlight=False,
    )
    if (environment["load"] or 0) > 0.5:
        console.print(
            f"The machine is busy (load {environment['load']:.1f}): times are longer than on a quiet one."
        )
    for case in cases:
        if not case.available():
            console.print(f"Skipped {case.name}: {case.requires} is not installed; {INSTALL}", markup=False)
    settings = {group: chosen for module in MODULES for group, chosen in module.SETTINGS.items()}
    groups, all_timings = {}, []
    for group, together in groupby(filter(Case.available, cases), key=attrgetter("group")):
        members = list(together)
        # Drawn between calls only: a thread that redraws the bar would take time from the cases.
        with Progress(console=Console(stderr=True), auto_refresh=False, transient=True) as progress:
            timings = runner.measure(members, rounds, partial(progress.track, description=group))
        all_timings += timings
        ratios = runner.ratios(timings)
        report.show(console, group, timings, ratios)
        groups[group] = {"settings": settings[group], **report.as_dict(timings, ratios)}
    folder(out)
    growths = growth.growths(all_timings)
    if growths:
        growth.show(console, growths)
        growth.draw(growths, out / "attention.png")
    for name in dict.fromkeys(map(file_of, groups)):
        path = out / name
        known = json.loads(path.read_text(encoding="utf-8")) if some and path.exists() else {}
        own = {group: found for group, found in groups.items() if file_of(group) == name}
        result = {
            "settings": {"dtype": "float32", "rounds": rounds, "warm_up": runner.WARM_UP},
            "environment": environment,
            "groups": known.get("groups", {}) | own,
        }
        if name == BENCH:
            result["growth"] = [growth.as_dict(g) for g in growths] or known.get("growth", [])
        write(path, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())
        console.print(f"Written to {path}", highlight=False)


def file_of(group: str) -> str:
    """Return the file that holds the times of a group."""
    apart = {"summarised.json": summarised, "long_prompts.json": long_prompts}
    return next((name for name, module in apart.items() if group in module.SETTINGS), BENCH)


if __name__ == "__main__":
    args = arguments()
    run(args.cases, args.rounds, args.out, some=args.only is not None)

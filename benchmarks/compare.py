"""Compare the speed of two source trees in one run: ``python -m benchmarks.compare BASE``.

Each tree has a process of its own that stays alive (``worker.py``). Case by case, both are set up and then timed in
alternation, the first place changing from round to round, so that whatever else the machine does hits both alike.
A case is *slower* if even the first quartile of the ratios new/old is above 1.05.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

from rich.console import Console
from rich.text import Text

from benchmarks import report, runner, worker
from hrf.report import folder, number, table, write

ROOT = Path(__file__).parents[1]
TOLERANCE = 1.05
LEAST_ROUNDS = 5  # even if they take longer than the budget
SHORTEST = 0.02  # seconds per round: shorter cases are called several times in a row
PAUSE = 0.005  # seconds: threads of the process that has just worked spin for a moment


@dataclass(frozen=True)
class Comparison:
    """Times of one case, one per round, with the old and the new tree; or the reason why there are none."""

    group: str
    case: str
    old: tuple[float, ...] = ()
    new: tuple[float, ...] = ()
    problem: str = ""

    @property
    def ratios(self) -> list[float]:
        """Time of the new tree over time of the old tree, round by round."""
        return [new / old for old, new in zip(self.old, self.new, strict=True)]

    @property
    def slower(self) -> bool:
        """Whether the new tree is slower by more than 5 % even at the first quartile."""
        return not self.problem and runner.quartiles(self.ratios)[0] > TOLERANCE

    def to_dict(self) -> dict[str, Any]:
        """Return the times and their statistics for JSON."""
        known = {"group": self.group, "case": self.case}
        if self.problem:
            return known | {"problem": self.problem}
        statistics = {"ratio": median(self.ratios), "quartiles": runner.quartiles(self.ratios)}
        return known | statistics | {"slower": self.slower, "old": self.old, "new": self.new}


class Worker:
    """A process that times cases with one source tree."""

    def __init__(self, source: Path, threads: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(source)},
        )
        found = Path(self._answer()["hrf"])
        if not found.is_relative_to(source):
            self.close()
            raise ValueError(f"hrf was imported from {found.parent}; expected a package hrf in {source}")

    def ask(self, **request: int) -> float:
        """Send a request and return the seconds of the answer; a failed case is a `RuntimeError`."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return float(answer["seconds"])

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ValueError(f"a worker has stopped with exit code {self.process.wait()}")
        return dict(json.loads(line))

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def workers(old: Path, new: Path, threads: int) -> Iterator[tuple[Worker, Worker]]:
    """Start one worker per tree and end both afterwards."""
    started: list[Worker] = []
    try:
        for source in (old, new):
            started.append(Worker(source.resolve(), threads))
        yield started[0], started[1]
    finally:
        for one in started:
            one.close()


def compare(number: int, old: Worker, new: Worker, rounds: int, budget: float) -> Comparison:
    """Time one case with both trees, in at most ``rounds`` rounds or about ``budget`` seconds."""
    case = worker.CASES[number]
    pair = (old, new)
    times: tuple[list[float], list[float]] = ([], [])
    try:
        single = min(one.ask(setup=number) for one in pair)
        calls = max(1, round(SHORTEST / max(single, 1e-6)))
        begin = perf_counter()
        for turn in range(rounds):
            if turn >= LEAST_ROUNDS and perf_counter() - begin > budget:
                break
            for side in (0, 1) if turn % 2 else (1, 0):
                sleep(PAUSE)
                times[side].append(pair[side].ask(calls=calls))
    except RuntimeError as error:
        return Comparison(case.group, case.name, problem=str(error))
    return Comparison(case.group, case.name, tuple(times[0]), tuple(times[1]))


def show(console: Console, found: Sequence[Comparison]) -> None:
    """Print one row per case, and a sentence about the slower ones."""
    rows = []
    for c in (c for c in found if not c.problem):
        low, high = runner.quartiles(c.ratios)
        verdict = Text("slower", style="bold red") if c.slower else Text("")
        old, new = (number(1e3 * median(times)) for times in (c.old, c.new))
        spread = f"{low:.2f}–{high:.2f}"
        rows.append([c.group, c.case, old, new, f"{median(c.ratios):.2f}", spread, str(len(c.old)), verdict])
    header = ["group", "case", "old ms", "new ms", "new/old", "quartiles", "rounds", ""]
    caption = f"slower: the first quartile of new/old is above {TOLERANCE}"
    console.print(table(header, rows, title="Time of the new tree over the old", caption=caption))
    for c in (c for c in found if c.problem):
        console.print(f"Not compared: {c.group}/{c.case}: {c.problem}", markup=False)
    slower = [f"{c.group}/{c.case}" for c in found if c.slower]
    console.print(
        f"{len(slower)} of {len(rows)} cases are slower{': ' if slower else ''}{', '.join(slower)}."
    )


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description="Compare the speed of two source trees in one run."
    )
    parser.add_argument("base", type=Path, help="the old tree: a directory with the package hrf in it")
    parser.add_argument("--new", type=Path, default=ROOT / "src", help="the new tree (default: src)")
    parser.add_argument("--only", metavar="PATTERN", help="only cases whose group/name contains this")
    parser.add_argument("--rounds", type=int, default=21, metavar="N", help="rounds per case (default: 21)")
    parser.add_argument(
        "--seconds", type=float, default=30, help="no new round of a case after this time (default: 30)"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of each process (default: 2)")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for compare.json")
    args = parser.parse_args(argv)
    for source in (args.base, args.new):
        if not (source / "hrf" / "__init__.py").exists():
            parser.error(f"{source} has no package hrf in it")
    chosen = runner.choose([replace(case, against=()) for case in worker.CASES], args.only)
    names = {(case.group, case.name) for case in chosen}
    args.numbers = [i for i, case in enumerate(worker.CASES) if (case.group, case.name) in names]
    if not args.numbers or args.rounds < 1:
        parser.error(f"--only {args.only!r} fits {len(args.numbers)} cases, --rounds is {args.rounds}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print, write ``compare.json``; 1 if a case is slower."""
    args = arguments(argv)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 140  # a pipe or a file has room
    out, found = folder(args.out), []
    with workers(args.base, args.new, args.threads) as (old, new):
        for done, i in enumerate(args.numbers, 1):
            print(
                f"{done}/{len(args.numbers)}: {worker.CASES[i].group}/{worker.CASES[i].name}", file=sys.stderr
            )
            found.append(compare(i, old, new, args.rounds, args.seconds))
    show(console, found)
    result = {
        "settings": {"old": str(args.base), "new": str(args.new), "threads": args.threads},
        "environment": report.environment(),
        "cases": [comparison.to_dict() for comparison in found],
    }
    write(out / "compare.json", (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())
    console.print(f"Written to {out / 'compare.json'}")
    return int(any(comparison.slower for comparison in found))


if __name__ == "__main__":
    sys.exit(main())

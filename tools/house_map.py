"""Draw the map of the house in CONTRIBUTING.md: the files that a vector passes on its way through each consumer.

Each of the `ways` runs once to warm up and once under a profiler that looks at calls of functions in ``src``. The map
shows its deepest stack of calls as a chain of files, with consecutive functions of one file taken together; decorators,
comprehensions and properties at the end are left out. Depths count every call, comprehensions and generators too.

    python -m tools.house_map            write the map into CONTRIBUTING.md (make house-map)
    python -m tools.house_map --check    compare it instead, and check depths and back-and-forth
    python -m tools.house_map --depth    also print depths in calls, and where calls go back and forth between two files

Numba is hidden and PyTorch has one thread, so that the map does not depend on the machine: it shows the PyTorch twin
of a compiled loop.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import io
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["Trace", "complaints", "filled", "hops", "house_map", "shown", "trace"]

ROOT = Path(__file__).parents[1]
SOURCE, PAGE = ROOT / "src", ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- house map: written by make house-map -->", "<!-- end -->"

# Consumers call maps, and maps their parts, through this file: calls that go there and back are no detour.
CONTRACT = "features/base.py"

DEEPEST_ATTENTION = 9  # calls of attention on top of each other, at most

# Parts of a function that Python calls like functions; which of them depends on its version.
_INNER = {"<genexpr>", "<lambda>", "<listcomp>", "<dictcomp>", "<setcomp>"}

Call = tuple[str, str]  # file and function


@dataclass
class Trace:
    """Record of the calls along one way.

    Attributes:
        deepest: the first of the deepest stacks of calls, outermost call first.
        way: the same without comprehensions, among stacks that do not end in a property: reading one is no work.
        files: all files that were visited.
        back_and_forth: files A, B of calls A → B → A, the contract left out.
    """

    deepest: list[Call] = field(default_factory=list)
    way: list[Call] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    back_and_forth: set[tuple[str, str]] = field(default_factory=set)

    def see(self, stack: list[Call], is_property: bool) -> None:
        """Take the stack at a call into account."""
        self.files.add(stack[-1][0])
        if len(stack) > len(self.deepest):
            self.deepest = stack
        named = [call for call in stack if call[1] not in _INNER]
        if len(named) > len(self.way) and not is_property:
            self.way = named
        match hops(stack)[-3:]:
            case [first, middle, last] if first == last and CONTRACT not in (first, middle):
                self.back_and_forth.add((first, middle))


def hops(stack: Iterable[Call]) -> list[str]:
    """List the files of a stack, consecutive functions of one file taken together and decorators left out."""
    return _without_repeats(file for file, function in stack if function != "wrapped")


def _without_repeats(files: Iterable[str]) -> list[str]:
    return [file for file, _ in itertools.groupby(files)]


def shown(stack: Iterable[Call]) -> list[str]:
    """List the files of a stack for the map, without returns to the contract: any map is called through it."""
    files = hops(stack)
    return _without_repeats(file for i, file in enumerate(files) if file != CONTRACT or file not in files[:i])


def trace(way: Callable[[], object], source: Path = SOURCE) -> Trace:
    """Run a way twice, and trace the second run: by then everything lazy is loaded."""
    way()
    found, prefix = Trace(), f"{source}{os.sep}"

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(prefix):
            found.see(_stack(frame, prefix), _is_property(frame))

    sys.setprofile(profile)
    try:
        way()
    finally:
        sys.setprofile(None)
    return found


def _is_property(frame: FrameType) -> bool:
    code = frame.f_code
    if code.co_argcount != 1 or code.co_varnames[0] != "self":
        return False
    found = inspect.getattr_static(type(frame.f_locals["self"]), code.co_name, None)
    return isinstance(found, property | functools.cached_property)


def _stack(innermost: FrameType, prefix: str) -> list[Call]:
    calls: list[Call] = []
    frame: FrameType | None = innermost
    while frame is not None:
        if frame.f_code.co_filename.startswith(prefix):
            file = Path(frame.f_code.co_filename.removeprefix(prefix)).as_posix()
            calls.append((file.removeprefix("hrf/"), frame.f_code.co_name))
        frame = frame.f_back
    return calls[::-1]


# The ways, by the words of the map. Sizes are small: the map asks where calls go, not how long they take.


def ways() -> dict[str, Callable[[], object]]:
    """Make the ways: names for the map, and functions without arguments."""
    import torch

    import hrf

    torch.manual_seed(0)
    torch.set_num_threads(1)
    q, k, v = (0.5 * torch.randn(1, 2, 300, 16) for _ in range(3))
    positive = hrf.Positive(16, n_projections=32)
    angular = hrf.AngularHybrid(16, n_projections=16, n_coefficient_projections=8)
    flat_q, flat_k = q[0, 0], k[0, 0]
    clustered = hrf.ClusteredHybrid.fit(flat_q, flat_k, n_clusters=(4, 4), n_projections=8, exact_share=0.3)
    sampler = hrf.sampling.SoftmaxSampler(flat_k, positive)
    made = {
        "`AngularHybrid.queries`": lambda: angular.queries(q),
        "`attention`, `Positive`": lambda: hrf.attention(q, k, v, positive),
        "`attention`, `Positive`, causal": lambda: hrf.attention(q, k, v, positive, is_causal=True),
        "`attention`, `AngularHybrid`": lambda: hrf.attention(q, k, v, angular),
        "`attention`, `ClusteredHybrid` with exact pairs": lambda: hrf.attention(q, k, v, clustered),
        "`attention`, `ClusteredHybrid` with exact pairs, causal": lambda: hrf.attention(
            q, k, v, clustered, is_causal=True
        ),
        "`SoftmaxSampler.sample`": lambda: sampler.sample(flat_q, 5),
        "`advise`": lambda: hrf.advise(flat_q, flat_k, budget=32),
        "`hrf reproduce ptb-metrics --quick`": _reproduce,
        "`convert`, a Hugging Face model": _convert,
    }
    return {name: _without_gradients(way) for name, way in made.items()}


def _without_gradients(way: Callable[[], object]) -> Callable[[], object]:
    import torch

    def run() -> object:
        with torch.no_grad():
            return way()

    return run


def _reproduce() -> None:
    """Run the command as the console script does; its output is of no interest here. It trains a model."""
    import torch

    from hrf.cli import main

    before, silent = sys.argv, contextlib.redirect_stdout(io.StringIO())
    with tempfile.TemporaryDirectory() as out, silent, torch.enable_grad():
        sys.argv = ["hrf", "reproduce", "ptb-metrics", "--quick", "--out", out]
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
        finally:
            sys.argv = before


def _convert() -> None:
    import torch
    import transformers

    from hrf.integrations.transformers import convert

    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.BertModel(transformers.BertConfig(**sizes, intermediate_size=32))
    batches = [torch.randint(64, (2, 20)) for _ in range(2)]
    convert(model, batches, feature_map="fitted", progress=False)


# The map.


def house_map(traces: dict[str, Trace]) -> str:
    """Format the traces as a table in Markdown."""
    lines = ["| way | files, from the call inwards |", "| --- | --- |"]
    for name, found in traces.items():
        lines.append(f"| {name} | {' → '.join(f'`{file}`' for file in shown(found.way))} |")
    return "\n".join(lines)


def depths(traces: dict[str, Trace]) -> str:
    """Format depths, numbers of files and back-and-forth as text."""
    lines = ["calls  hops  files  way"]
    for name, found in traces.items():
        numbers = len(found.deepest), len(hops(found.deepest)), len(found.files)
        lines.append("{:5}  {:4}  {:5}  {}".format(*numbers, name.replace("`", "")))
        lines += [f"{'':21}{a} → {b} → {a}" for a, b in sorted(found.back_and_forth)]
    return "\n".join(lines)


def complaints(traces: dict[str, Trace]) -> list[str]:
    """Say where calls go back and forth between two files, and which attention is deeper than `DEEPEST_ATTENTION`."""
    found = []
    for name, seen in traces.items():
        found += [f"{name} goes back and forth: {a} → {b} → {a}" for a, b in sorted(seen.back_and_forth)]
        if name.startswith("`attention`") and len(seen.deepest) > DEEPEST_ATTENTION:
            calls = " → ".join(f"{file}: {function}" for file, function in seen.deepest)
            found.append(f"{name} is {len(seen.deepest)} calls deep: {calls}")
    return found


def filled(text: str, made: str) -> str:
    """Return the text of a page with the map between its markers."""
    text, n = re.subn(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{made}\n{END}", text, flags=re.DOTALL)
    if n != 1:
        raise ValueError(f"the page has {n} places for the map; expected one: {BEGIN} … {END}")
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Write the map, or compare it with the page."""
    parser = argparse.ArgumentParser(prog="python -m tools.house_map", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit code 1 for another map, depth or back-and-forth",
    )
    parser.add_argument(
        "--depth", action="store_true", help="print depths and back-and-forth between two files"
    )
    parser.add_argument("--calls", metavar="WORD", help="print the deepest calls of ways that contain this")
    args = parser.parse_args(argv)
    sys.modules.setdefault("numba", None)  # type: ignore[arg-type]  # hidden: an import of it fails
    sys.path.insert(0, str(SOURCE))
    traces = {name: trace(way) for name, way in ways().items()}
    if args.depth:
        print(depths(traces))
    for name, found in traces.items():
        if args.calls and args.calls in name:
            print(name, *(f"    {file}: {function}" for file, function in found.deepest), sep="\n")
    before = PAGE.read_text(encoding="utf-8")
    after = filled(before, house_map(traces))
    if not args.check:
        PAGE.write_text(after, encoding="utf-8")
        return 0
    wrong = complaints(traces)
    if before != after:
        wrong.append(f"{PAGE.name} has another map than the code: run make house-map")
    print(*wrong, sep="\n", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())

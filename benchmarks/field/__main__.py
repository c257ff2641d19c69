"""Choose sizes, measure, print, and write ``field.json``, in three parts: only ``times`` needs a quiet machine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

INSTALL = "pip install 'hybrid-random-features[bench]'"

try:
    import torch
    from rich.console import Console
    from torch import Tensor

    from benchmarks import minilm, report
    from benchmarks.field.families import families
    from benchmarks.field.measure import Rows, add_errors, add_flops, add_times, capture
    from benchmarks.field.table import HEADINGS, rows
    from hrf.report import folder, table, write
except ModuleNotFoundError as error:
    sys.exit(f"this benchmark needs {error.name}: {INSTALL}")

FIT_PASSAGES = 6
# Length: passages whose embeddings are compared; the errors of heads are measured on the first.
PASSAGES = {512: 8, 4096: 2}
PARTS = ("flops", "times", "errors")


def passages(tokenizer: Any, split: str, n: int, length: int) -> list[Tensor]:
    """Return passages of WikiText-2, ``(1, length)`` each."""
    texts = minilm.passages(minilm.read_text(split), n, length * minilm.CHARACTERS)
    return [minilm.encode(tokenizer, text, length) for text in texts]


def run(parts: Sequence[str], lengths: Sequence[int], path: Path, console: Console) -> None:
    """Measure, print and write the parts; what is in the file and not measured stays."""
    start = perf_counter()
    tokenizer, model = minilm.load()
    everything = families(
        capture(model, torch.cat(passages(tokenizer, "train", FIT_PASSAGES, minilm.MAX_TOKENS)))
    )
    result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"lengths": {}}
    result["size_counts"] = {family.name: family.size for family in everything}
    for length in lengths:
        batches = passages(tokenizer, "test", PASSAGES[length], length)
        layers, found = capture(model, batches[0]), result["lengths"].setdefault(str(length), {})
        if "flops" in parts:
            add_flops(everything, layers, found)
        if "times" in parts:
            add_times(everything, layers, found)
            result["environment"] = report.environment()
        if "errors" in parts:
            add_errors(model, everything, layers, batches, found)
            show(console, length, found, result["size_counts"])
        write(
            folder(path.parent) / path.name,
            (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode(),
        )
    console.print(f"Written to {path} after {perf_counter() - start:.0f} s")


def show(console: Console, length: int, found: Rows, counts: dict[str, str]) -> None:
    """Print both tables of a length."""
    for kind in ("FLOPs", "time"):
        lines = [[*row] for row in rows(found, counts, kind.lower(), length)]
        console.print(table([*HEADINGS], lines, title=f"{length:,} tokens, equal {kind}"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 2 if data or a library is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.field",
        description="Summarised attention beside other methods, on a trained Transformer, at equal cost.",
        epilog="The text is read from $HRF_DATA/wikitext2, by default ../shared/data/wikitext2.",
    )
    parser.add_argument("part", nargs="*", default=[*PARTS], help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument(
        "--lengths", type=int, nargs="+", choices=PASSAGES, default=[*PASSAGES], help="of passages"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results"), help="folder for field.json (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    if unknown := set(args.part) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; expected {', '.join(PARTS)}")
    console = Console()
    if not console.is_terminal:
        console.width = 120  # a pipe or a file has room
    try:
        run(args.part, args.lengths, args.out / "field.json", console)
    except ModuleNotFoundError as error:
        print(f"this benchmark needs {error.name}: {INSTALL}", file=sys.stderr)
        return 2
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

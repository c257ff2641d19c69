"""Causal summarised attention and its decoding, against exact attention: ``python -m benchmarks.causal_summaries``.

Queries, keys and values are those of one layer of MiniLM-L6 that reads one long passage (``benchmarks/summarised.py``),
here with a causal mask: 12 heads, d = 32. A step of decoding reads one more token of the passage; exact attention takes
the same step over a table of keys and values that it holds already. Times alternate, and the best of each is taken.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import hrf
from benchmarks.summarised import long_text
from benchmarks.timing import best_times
from hrf.report import progress, table, write

LENGTHS = (1024, 4096, 16384)
LONGEST = 4096  # of whole passages: their report takes minutes beyond
STEPS = 64


def whole(length: int, tolerance: float) -> dict[str, float]:
    """Compare the attention of a whole passage with the exact one: error, share of exact pairs, speed."""
    q, k, v = long_text(max(LENGTHS))
    q, k, v = (u[:, :, :length].contiguous() for u in (q, k, v))
    report = hrf.SummaryReport()

    def attend(report: hrf.SummaryReport | None = None) -> Tensor:
        method = hrf.SummarisedAttention(tolerance=tolerance, report=report)
        return hrf.attention(q, k, v, method, is_causal=True, scale=1.0)

    def exact() -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)

    expected = exact()
    errors = (attend() - expected).norm(dim=(-2, -1)) / expected.norm(dim=(-2, -1))
    attend(report)
    seconds = best_times({"mine": attend, "exact": exact}, rounds=2, budget=4.0)
    return {
        "error": float(errors.median()),
        "exact_share": report.exact_share,
        "speed": seconds["exact"] / seconds["mine"],
    }


def decoding(length: int, tolerance: float) -> dict[str, float]:
    """Time steps after a prompt of ``length`` tokens: milliseconds per token, ours and exact."""
    q, k, v = long_text(max(LENGTHS))
    state = hrf.SummarisedState(hrf.SummarisedAttention(tolerance=tolerance), scale=1.0)
    start = length - STEPS
    state.prefill(*(u[:, :, :start] for u in (q, k, v)))
    mine, exact = [], []
    for i in range(start, length):
        begin = perf_counter()
        state.step(q[:, :, i], k[:, :, i], v[:, :, i])
        middle = perf_counter()
        scaled_dot_product_attention(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], scale=1.0)
        mine.append(middle - begin)
        exact.append(perf_counter() - middle)
    return {"step_ms": 1e3 * median(mine), "exact_step_ms": 1e3 * median(exact)}


@torch.inference_mode()
def measure(tolerance: float = 1.0) -> dict[str, Any]:
    """Return the numbers of every length."""
    found = {}
    with progress("causal") as advance:
        for done, length in enumerate(LENGTHS):
            advance(f"{length:,} tokens", done, len(LENGTHS))
            found[str(length)] = decoding(length, tolerance)
            if length <= LONGEST:
                found[str(length)] |= whole(length, tolerance)
    return {"tolerance": tolerance, "threads": torch.get_num_threads(), "lengths": found}


def rows(result: dict[str, Any]) -> list[list[str]]:
    """Return one row per length: tokens, error, share of exact pairs, speed, milliseconds per step, ours and exact."""
    lines = []
    for length, found in result["lengths"].items():
        own = [""] * 3
        if "error" in found:
            own = [f"{found['error']:.3f}", f"{found['exact_share']:.1%}", f"{found['speed']:.2f}"]
        lines.append([f"{int(length):,}", *own, f"{found['step_ms']:.2f}", f"{found['exact_step_ms']:.2f}"])
    return lines


HEADINGS = ("tokens", "error", "pairs exact", "times as fast as exact", "ms per step", "exact, ms per step")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table and write ``causal_summaries.json``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder (default: %(default)s)")
    out = parser.parse_args(argv).out
    result = measure()
    out.mkdir(parents=True, exist_ok=True)
    write(out / "causal_summaries.json", (json.dumps(result, indent=1) + "\n").encode())
    Console().print(table(HEADINGS, rows(result), title="Causal summarised attention, τ = 1"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

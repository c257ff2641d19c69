"""Rows of the tables of many machines, headings first: times per rank as measured, and arithmetic from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.distributed import FEATURES

__all__ = ["arithmetic_rows", "rank_rows"]

TIMES = ("attention of a rank's part", "1 rank, ms", "2 ranks, ms", "ratio", "bytes of the first rank")
ARITHMETIC = (
    "tokens",
    "ranks",
    "tokens per rank",
    "tokens of a rank, GB",
    "its state, MB",
    "bytes moved",
    "sending at 1 Gbit/s",
    "forward",
    "with gradients",
)
SPLITS = ((10**6, 1), (10**6, 8), (10**6, 64), (10**9, 64), (10**9, 1024))
BITS_PER_SECOND = 1e9
FLOAT = 4  # bytes


def rank_rows(result: dict[str, Any]) -> Iterator[Sequence[str]]:
    """Yield times per rank at a fixed length per rank."""
    yield TIMES
    for row in result["rows"]:
        one, two = (f"{1e3 * row['seconds'][size]:,.0f}" for size in ("1", "2"))
        yield [row["case"], one, two, f"{row['ratio']:.2f}", f"{row['bytes']['2']:,}"]


def arithmetic_rows(result: dict[str, Any]) -> Iterator[Sequence[str]]:
    """Yield memory, bytes and time of bidirectional attention, from times of one rank."""
    yield ARITHMETIC
    settings, rows = result["settings"], {row["case"]: row for row in result["rows"]}
    heads, dim, length = settings["heads"], settings["dim"], settings["length per rank"]
    state = heads * FEATURES * (dim + 1) * FLOAT
    forward, both = (rows[f"bidirectional, {kind}"] for kind in ("forward", "with gradients"))
    for tokens, ranks in SPLITS:
        each = tokens / ranks
        moved = both["bytes"]["2"] if ranks > 1 else 0
        seconds = (each / length * row["seconds"]["1"] for row in (forward, both))
        yield [
            f"10{'⁶' if tokens == 10**6 else '⁹'}",
            f"{ranks:,}",
            f"{each:,.0f}",
            f"{each * 4 * heads * dim * FLOAT / 1e9:,.2f}",
            f"{state / 1e6:.2f}",
            f"{moved:,}",
            _duration(8 * moved / BITS_PER_SECOND),
            *map(_duration, seconds),
        ]


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"

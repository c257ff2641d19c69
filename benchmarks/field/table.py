"""Tables of the comparison, for the terminal and for the docs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import minilm
from benchmarks.quality.flops import exact_flops

__all__ = ["HEADINGS", "rows"]

HEADINGS = ("method", "size", "error", "cosine", "FLOPs", "speed")


def rows(found: dict[str, Any], sizes: dict[str, str], kind: str, length: int) -> Iterator[Sequence[str]]:
    """Yield a row for exact attention and one per method at equal cost, the smallest error first.

    Args:
        found: rows of a length, by ``measure.py``.
        sizes: what the size of a method counts, by name.
        kind: ``"flops"`` or ``"time"``; methods of one size are in both.
        length: number of tokens.
    """
    flops = exact_flops(minilm.HEAD_DIM, minilm.HEAD_DIM, length)
    yield "exact", "", "0", "1", f"{flops:,.0f}", "1"
    known = {
        name: row for name, by_kind in found.items() if (row := by_kind.get(kind) or by_kind.get("fixed"))
    }
    for name, row in sorted(known.items(), key=lambda item: item[1]["error"]):
        size = f"{row['size']:,} {sizes[name]}" if row["size"] else ""
        numbers = f"{row['error']:.3f}", f"{row['cosine']:.4f}", f"{row['flops']:,.0f}", f"{row['speed']:.2f}"
        yield (name, size, *numbers)

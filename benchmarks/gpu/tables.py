"""Rows of the tables of the pages on GPUs, headings first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["compile_rows", "model_rows"]

LENGTHS = (4096, 16384, 65536)


def model_rows(result: dict[str, Any]) -> Iterator[Sequence[str]]:
    """Yield predicted milliseconds beside those of FlashAttention-2, headings first."""
    yield ["predicted ms / FlashAttention-2, ms", *(f"{n:,} tokens" for n in LENGTHS)]
    found: dict[tuple[str, ...], dict[int, str]] = {}
    for row in result["rows"]:
        key = row["gpu"], row["attention"], row["pass"]
        words = f"{row['milliseconds']:.2f} / {row['flash_milliseconds']:.2f}"
        found.setdefault(key, {})[row["length"]] = words
    for key, cells in sorted(found.items()):
        yield [", ".join(key), *(cells[n] for n in LENGTHS)]


def compile_rows(result: dict[str, Any]) -> Iterator[Sequence[str]]:
    """Yield the largest numbers per target and size, headings first."""
    yield ["target", "d and d_v", "tokens", "kernels", "registers", "shared memory, KB", "kernels that spill"]
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in result["kernels"]:
        found.setdefault((row["target"], str(row["dim"]), row["dtype"]), []).append(row)
    for key, own in found.items():
        registers, shared = (max(row[name] for row in own) for name in ("registers", "shared"))
        spilled = sum(row["spills"] > 0 for row in own)
        yield [*key, str(len(own)), str(registers), f"{shared / 1024:.0f}", str(spilled)]

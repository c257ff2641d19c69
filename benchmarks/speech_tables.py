"""Rows of the tables of speech: the loss, the encoder over its length, and an hour as a stream."""

from __future__ import annotations

from typing import Any

__all__ = ["OURS", "THEIRS", "crossover", "encoder_rows", "loss_rows", "stream_rows"]

OURS, THEIRS = "hrf", "warprnnt-numba"


def loss_rows(found: dict[str, Any]) -> list[list[str]]:
    """Return headings, and times of the loss."""
    lines = [["utterances × frames × labels", "hrf, ms", "warprnnt-numba, ms", "times as fast"]]
    for row in found["loss"]:
        size = f"{row['utterances']} × {row['frames']} × {row['labels']}"
        times = [f"{1e3 * row[name]:.1f}" for name in (OURS, THEIRS)]
        lines.append([size, *times, f"{row[THEIRS] / row[OURS]:.1f}"])
    return lines


def encoder_rows(found: dict[str, Any]) -> list[list[str]]:
    """Return headings, and times of the encoder with the length from which on each beats exact attention."""
    by_length = found["encoder"]
    headings = ["encoder, seconds", *(f"{int(n):,} frames" for n in by_length), "faster than exact from"]
    lines = [headings]
    for name in next(iter(by_length.values())):
        times = [f"{times[name]:.3f}" for times in by_length.values()]
        lines.append([name, *times, "" if name == "exact" else crossover(by_length, name)])
    return lines


def crossover(by_length: dict[str, dict[str, float]], name: str) -> str:
    """Return the shortest length from which on a method is faster than exact attention, in frames."""
    faster: list[int] = []
    for length, times in sorted(by_length.items(), key=lambda pair: -int(pair[0])):
        if times[name] >= times["exact"]:
            break
        faster.append(int(length))
    return f"{min(faster):,}" if faster else "never"


def stream_rows(result: dict[str, Any]) -> list[list[str]]:
    """Return headings, and a row per part."""
    lines = [["minutes", "word error rate", "real-time factor", "largest memory of the process"]]
    end = 0.0
    for part in result["parts"]:
        begin, end = end, end + part["seconds"]
        factor, memory = f"{part['real-time factor']:.3f}", f"{part['peak megabytes']:,.0f} MB"
        lines.append([f"{begin / 60:.0f}–{end / 60:.0f}", f"{part['wer']:.1f} %", factor, memory])
    return lines

"""Rows of the tables on the page of summarised attention, headings first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.field.table import HEADINGS, rows
from benchmarks.minilm import TEXTS

__all__ = ["field_rows", "long_rows", "passage_rows", "speech_rows"]

Rows = list[list[str]]


def passage_rows(result: dict[str, Any]) -> Rows:
    """Return cosines and neighbours of embeddings."""
    headings = ["text", "attention", "mean cosine", "smallest", "pairs exact", "errors predicted"]
    lines = [[*headings, "same neighbour", "lost by at most"]]
    for text, name, found in _by_text(result["summarised"]):
        own = _account(found) if "exact_share" in found else ["", ""]
        same = f"{found['same_neighbour']:.0%}", f"{found['margin_of_changed']:.4f}"
        lines.append([text, name, *_cosines(found), *own, *same])
    return lines


def long_rows(result: dict[str, Any]) -> Rows:
    """Return cosines of windows of long passages."""
    headings = ["text", "attention", "mean cosine", "smallest", "pairs exact", "errors predicted"]
    found = _by_text(result["long"])
    return [
        headings,
        *([text, name, *_cosines(numbers), *_account(numbers)] for text, name, numbers in found),
    ]


def speech_rows(result: dict[str, Any]) -> Rows:
    """Return cosines of hidden states of a speech model, and its ratings."""
    lines = [["attention", "mean cosine", "smallest", "pairs exact", "ratings differ by at most"]]
    for name, found in result.items():
        if name.startswith("tolerance"):
            difference = f"{found['largest_rating_difference']:.3f}"
            lines.append([_tolerance(name), *_cosines(found), f"{found['exact_share']:.1%}", difference])
    return lines


def field_rows(result: dict[str, Any], length: int, kind: str) -> Rows:
    """Return methods of the field at equal FLOPs or at equal time."""
    found = rows(result["lengths"][str(length)], result["size_counts"], kind, length)
    return [list(HEADINGS), *map(list, found)]


def _by_text(found: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Yield the title of a text, the kind of attention and its numbers."""
    for text, by_kind in found.items():
        for name, numbers in by_kind.items():
            yield TEXTS[text], _tolerance(name), numbers


def _cosines(found: dict[str, float]) -> list[str]:
    return [f"{found['mean']:.5f}", f"{found['least']:.5f}"]


def _account(found: dict[str, float]) -> list[str]:
    return [f"{found['exact_share']:.1%}", f"{found['predicted']:.1%}"]


def _tolerance(name: str) -> str:
    return name.replace("tolerance ", "summarised, τ = ").replace("inf", "∞")

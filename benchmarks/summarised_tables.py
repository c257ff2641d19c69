"""Rows of the tables of summarised attention, headings first."""

from __future__ import annotations

from typing import Any

from benchmarks.field.table import HEADINGS, rows
from benchmarks.minilm import TEXTS

__all__ = ["field_rows", "long_rows", "neighbour_rows", "passage_rows", "speech_rows"]

Rows = list[list[str]]


HEADINGS_OF_COSINES = ["attention", "mean cosine", "smallest", "pairs exact", "errors predicted"]


def passage_rows(result: dict[str, Any], text: str) -> Rows:
    """Return cosines of embeddings of a text's passages."""
    return _cosine_rows(result["summarised"][text])


def long_rows(result: dict[str, Any], text: str) -> Rows:
    """Return cosines of windows of a text's long passages."""
    return _cosine_rows(result["long"][text])


def neighbour_rows(result: dict[str, Any]) -> Rows:
    """Return how many embeddings keep their nearest neighbour."""
    lines = [["text", "attention", "same neighbour", "lost by at most"]]
    for text, by_kind in result["summarised"].items():
        for name, found in by_kind.items():
            same = f"{found['same_neighbour']:.0%}", f"{found['margin_of_changed']:.4f}"
            lines.append([TEXTS[text], _tolerance(name), *same])
    return lines


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


def _cosine_rows(by_kind: dict[str, dict[str, float]]) -> Rows:
    lines = [HEADINGS_OF_COSINES]
    for name, found in by_kind.items():
        own = _account(found) if "exact_share" in found else ["", ""]
        lines.append([_tolerance(name), *_cosines(found), *own])
    return lines


def _cosines(found: dict[str, float]) -> list[str]:
    return [f"{found['mean']:.5f}", f"{found['least']:.5f}"]


def _account(found: dict[str, float]) -> list[str]:
    return [f"{found['exact_share']:.1%}", f"{found['predicted']:.1%}"]


def _tolerance(name: str) -> str:
    return name.replace("tolerance ", "summarised, τ = ").replace("inf", "∞")

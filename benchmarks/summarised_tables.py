"""Rows of the tables of summarised attention, headings first."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from benchmarks.field.table import HEADINGS, rows
from benchmarks.minilm import TEXTS

__all__ = [
    "BLOCK_SPARSE",
    "at_share",
    "field_rows",
    "generation_rows",
    "long_rows",
    "neighbour_rows",
    "passage_rows",
    "passkeys",
    "peer_rows",
    "perplexity_rows",
    "prompt_rows",
    "speech_rows",
]

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


def prompt_rows(bench: dict[str, Any], what: str = "prompt") -> Rows:
    """Return speed-ups of causal summarised attention by model and length; ``what`` is ``prompt`` or ``step``."""
    found: dict[str, dict[int, str]] = {}
    for group in bench["groups"].values():
        settings = group["settings"]
        if what in settings:
            (ratio,) = group["ratios"]
            low, high = ratio["quartiles"]
            name = f"{settings['model']}, d = {settings['dim']}"
            found.setdefault(name, {})[settings[what]] = f"{ratio['median']:.2f} ({low:.2f}–{high:.2f})"
    lengths = sorted({length for row in found.values() for length in row})
    lines = [["times as fast as exact attention", *(f"{length:,} tokens" for length in lengths)]]
    return lines + [[name, *(row.get(length, "") for length in lengths)] for name, row in found.items()]


def perplexity_rows(result: dict[str, Any]) -> Rows:
    """Return perplexities of a decoder with exact and with summarised attention."""
    headings = ["text", "tokens", "perplexity, exact", "summarised", "change", "largest of four"]
    lines = [[*headings, "KL (nats)", "same token", "pairs exact"]]
    for row in result["perplexity"]:
        change = row["perplexity"] / row["exact_perplexity"] - 1
        lines.append(
            [
                *(TEXTS[row["text"]], f"{row['tokens']:,}"),
                *(f"{row['exact_perplexity']:.2f}", f"{row['perplexity']:.2f}"),
                *(f"{change:+.2%}", f"{row['largest_change']:+.2%}", f"{row['kl']:.4f}"),
                *(f"{row['same_top']:.1%}", f"{row['exact_share']:.0%}"),
            ]
        )
    return lines


def peer_rows(result: dict[str, Any]) -> Rows:
    """Return errors beside those of block-sparse attention, which chooses its blocks for free."""
    rows, time_share = result["peers"]["rows"], result["peers"]["share_of_exact_time"]
    share, error = rows["summarised 1.0"]
    lines = [["attention", f"{share:.0%} of the pairs", f"{time_share:.0%} of exact attention's time"]]
    lines.append(["summarised", f"{error:.3f}", f"{error:.3f}"])
    for kind, name in BLOCK_SPARSE.items():
        lines.append([name, *(f"{at_share(rows, kind, at):.3f}" for at in (share, max(time_share, share)))])
    return lines


BLOCK_SPARSE = {
    "pooled": "blocks of 64 × 64 by pooled scores (SpargeAttn)",
    "antidiagonal": "by sums along antidiagonals (XAttention)",
    "oracle": "by their true mass",
}


def at_share(rows: dict[str, list[float]], kind: str, share: float) -> float:
    """Interpolate the error of a block-sparse choice at a share of pairs, in logarithms."""
    points = sorted(own for name, own in rows.items() if name.startswith(kind))
    for (a, low), (b, high) in pairwise(points):
        if a <= share <= b:
            return math.exp(math.log(low) + (math.log(high) - math.log(low)) * (share - a) / (b - a))
    return math.nan


def generation_rows(result: dict[str, Any]) -> Rows:
    """Return times to the first token and per token, and the memory of a cache."""
    headings = ["prompt", "first token, exact", "summarised", "each token, exact", "summarised"]
    lines = [[*headings, "keys and values", "queries", "summaries"]]
    for row in result["times"]:
        first = [f"{row[f'{name}, first']:.1f} s" for name in ("sdpa", "hrf-summarised")]
        each = [f"{1e3 * row[f'{name}, each']:.0f} ms" for name in ("sdpa", "hrf-summarised")]
        memory = [f"{size / 2**20:,.0f} MiB" for size in row["memory"].values()]
        lines.append([f"{row['tokens']:,} tokens", *first, *each, *memory])
    return lines


def passkeys(result: dict[str, Any]) -> str:
    """Return a sentence about hidden passkeys."""
    found = result["passkeys"]
    depths = len({row["depth"] for row in found})
    ours, exact = (sum(row[name] for row in found) for name in ("hrf-summarised", "sdpa"))
    return (
        f"Of {len(found)} passkeys hidden at {depths} depths of 8,192 tokens, exact attention answers {exact}, "
        f"summarised attention {ours}."
    )

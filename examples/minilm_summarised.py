"""MiniLM-L6 with summarised attention, which is neither fitted nor drawn: parts of ``python -m examples.minilm``.

Passages of WikiText-2 and Penn Treebank are embedded by the exact model and with `hrf.SummarisedAttention` in all
layers: cosines of both embeddings, and whether the nearest of the other passages stays the same. Near-ties decide the
latter, so exact attention with queries, keys and values rounded to bfloat16 is a yardstick. Long passages have more
tokens than the model has positions, so positions repeat; there the mean of every 512 hidden states is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn import functional as F

import hrf
from benchmarks import minilm
from hrf.report import table

__all__ = ["measure_long", "measure_passages", "show_long", "show_passages"]

PASSAGES, SHORTEST, LONGEST = 100, 256, minilm.MAX_TOKENS
LONG_PASSAGES, LONG, WINDOW = 3, 4096, minilm.MAX_TOKENS
NO_ERROR = 1e-5  # relative, about the rounding of float32
REPORTED = 10  # exact shares are the mean over every so manyth passage: a report takes time
ROUNDED = "exact, inputs in bfloat16"
STRICT = 0.25  # for the neighbours of passages
TOLERANCES = (1.0, 2.0, math.inf)
# Mean cosine to reach, by tolerance; of the windows of long passages, the least cosine by default.
TARGETS, LONG_TARGET = {1.0: 0.9995, 2.0: 0.999, math.inf: 0.99}, 0.998

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def attend_by(method: hrf.SummarisedAttention) -> Attend:
    """Return the function that `minilm.replaced` takes."""
    return lambda layer, q, k, v: hrf.attention(q, k, v, method, scale=1.0)


def attend_rounded(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend exactly with inputs rounded to bfloat16."""
    q, k, v = (u.bfloat16().float() for u in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, scale=1.0)


@torch.inference_mode()
def account(model: Any, tolerance: float, batches: Sequence[Tensor]) -> dict[str, float]:
    """Return the mean share of exact pairs of layers and heads, and the share of predicted errors right to a factor 2.

    Heads without any error, as those whose pairs are all exact, do not count among the latter.
    """
    report, errors = hrf.SummaryReport(), []
    method = hrf.SummarisedAttention(tolerance=tolerance, report=report)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mine, exact = (
            hrf.attention(q, k, v, method, scale=1.0),
            F.scaled_dot_product_attention(q, k, v, scale=1.0),
        )
        errors.append((mine - exact).norm(dim=(-2, -1)) / exact.norm(dim=(-2, -1)))
        return mine

    with minilm.replaced(model, attend):
        for ids in batches:
            minilm.hidden_states(model, ids)
    true = torch.cat(errors).flatten()
    ratio = (
        torch.cat([call.predicted_error for call in report.calls]).flatten()[true > NO_ERROR]
        / true[true > NO_ERROR]
    )
    near = (ratio > 0.5) & (ratio < 2)
    return {"exact_share": report.exact_share, "predicted": float(near.double().mean())}


def passages(tokenizer: Any, name: str, lengths: Sequence[int]) -> list[Tensor]:
    """Return passages of these numbers of tokens, spread over the validation and test text without overlap."""
    text = "".join(minilm.read_text(split, name) for split in ("valid", "test"))
    texts = minilm.passages(text, len(lengths), len(text) // len(lengths))
    return [minilm.encode(tokenizer, part, tokens) for part, tokens in zip(texts, lengths, strict=True)]


def nearest(embeddings: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest other passage of each, and how much nearer it is than the next in cosine."""
    best = (embeddings @ embeddings.mT).fill_diagonal_(-torch.inf).topk(2)
    return best.indices[:, 0], best.values[:, 0] - best.values[:, 1]


def compared(mine: Tensor, exact: Tensor) -> dict[str, float]:
    """Compare embeddings ``(passages, width)`` with the exact ones.

    ``margin_of_changed`` is the largest advantage in cosine, in the exact model, of a neighbour that was lost.
    """
    cosines = (mine * exact).sum(-1)
    neighbours, margins = nearest(exact)
    changed = nearest(mine)[0] != neighbours
    return {
        "mean": float(cosines.mean()),
        "least": float(cosines.min()),
        "same_neighbour": float((~changed).double().mean()),
        "margin_of_changed": float(margins[changed].max()) if changed.any() else 0.0,
        "median_margin": float(margins.median()),
    }


def shown(name: str, what: str, batches: Sequence[Tensor]) -> Any:
    """Iterate over batches, with a progress bar."""
    return track(batches, f"{minilm.TEXTS[name]}, {what}", console=Console(stderr=True), transient=True)


def measure_passages() -> dict[str, dict[str, dict[str, float]]]:
    """Compare embeddings of passages of both texts, by text and kind of attention."""
    tokenizer, model = minilm.load()
    lengths = torch.linspace(SHORTEST, LONGEST, PASSAGES).int().tolist()
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in minilm.TEXTS:
        batches = passages(tokenizer, name, lengths)
        exact = minilm.embeddings(model, shown(name, "exact", batches))
        with minilm.replaced(model, attend_rounded):
            rounded = minilm.embeddings(model, shown(name, "bfloat16", batches))
        found[name] = {ROUNDED: compared(rounded, exact)}
        for tolerance in (STRICT, *TOLERANCES):
            with minilm.replaced(model, attend_by(hrf.SummarisedAttention(tolerance=tolerance))):
                mine = minilm.embeddings(model, shown(name, f"τ = {tolerance:g}", batches))
            found[name][f"tolerance {tolerance:g}"] = compared(mine, exact) | account(
                model, tolerance, batches[::REPORTED]
            )
    return found


def show_passages(console: Console, found: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print the results of `measure_passages`."""
    targets = {f"tolerance {tolerance:g}": target for tolerance, target in TARGETS.items()}
    rows = []
    for name, by_kind in found.items():
        for kind, row in by_kind.items():
            cells = [f"{row['mean']:.5f}", _aim(row["mean"], targets.get(kind)), f"{row['least']:.5f}"]
            share = f"{row['exact_share']:.1%}" if row.get("exact_share") else ""
            same = [f"{row['same_neighbour']:.1%}", f"{row['margin_of_changed']:.4f}"]
            rows.append([minilm.TEXTS[name], kind, *cells, share, *same])
    header = ["text", "attention", "mean cosine", "target", "smallest", "pairs exact", "same neighbour"]
    title = f"MiniLM-L6 with summarised attention: embeddings of {PASSAGES} passages, compared with exact attention"
    console.print(table([*header, "lost by at most"], rows, title=title))


def window_means(model: Any, ids: Tensor) -> Tensor:
    """Return the mean hidden state of every window of a long passage, ``(windows, width)``."""
    return minilm.hidden_states(model, ids)[0].unflatten(0, (-1, WINDOW)).mean(1)


def measure_long() -> dict[str, dict[str, dict[str, float]]]:
    """Compare windows of long passages of both texts, by text and tolerance."""
    tokenizer, model = minilm.load()
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in minilm.TEXTS:
        batches, found[name] = passages(tokenizer, name, [LONG] * LONG_PASSAGES), {}
        exact = torch.cat([window_means(model, ids) for ids in shown(name, "exact", batches)])
        for tolerance in TOLERANCES:
            with minilm.replaced(model, attend_by(hrf.SummarisedAttention(tolerance=tolerance))):
                steps = shown(name, f"τ = {tolerance:g}", batches)
                cosines = F.cosine_similarity(torch.cat([window_means(model, ids) for ids in steps]), exact)
            found[name][f"tolerance {tolerance:g}"] = {
                "mean": float(cosines.mean()),
                "least": float(cosines.min()),
            } | account(model, tolerance, batches[:1])
    return found


def show_long(console: Console, found: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print the results of `measure_long`."""
    rows = []
    for name, by_kind in found.items():
        for kind, row in by_kind.items():
            aim = _aim(row["least"], LONG_TARGET if kind == "tolerance 1" else None)
            cells = [f"{row['mean']:.5f}", f"{row['least']:.5f}", aim, f"{row['exact_share']:.1%}"]
            rows.append([minilm.TEXTS[name], kind, *cells])
    title = f"MiniLM-L6, {LONG_PASSAGES} passages of {LONG:,} tokens: means of every {WINDOW} hidden states"
    header = ["text", "attention", "mean cosine", "smallest", "target", "pairs exact"]
    console.print(table(header, rows, title=title))


def _aim(reached: float, target: float | None) -> str:
    return "" if target is None else f"{target:g} {'met' if reached >= target else 'missed'}"

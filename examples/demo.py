"""Attention in linear time on made-up tokens: error and speed beside exact attention. ``python -m examples.demo``."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter

import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from hrf import SummarisedAttention, attention, catalogue
from hrf.report import table

__all__ = ["main", "rows", "tokens"]

HEADS, LENGTH, DIM = 8, 4096, 64
ROUNDS = 5


def tokens(length: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value of tokens on 16 topics, queries and keys of unit length: ``(1, H, L, d)`` each."""
    g = torch.Generator().manual_seed(seed)
    topics = torch.randn(16, DIM, generator=g)
    topic = topics[torch.randint(16, (1, HEADS, length), generator=g)]
    query, key, value = (topic + torch.randn(1, HEADS, length, DIM, generator=g) for _ in range(3))
    return F.normalize(query, dim=-1), F.normalize(key, dim=-1), value


def methods() -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Return ways to attend by name; the first is exact."""
    maps = {name: catalogue.build(name, DIM, generator=0) for name in ("FAVOR+ 128", "Trig 128")}
    return {
        "exact attention": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=1.0),
        **{name: partial(attention, feature_map=phi, scale=1.0) for name, phi in maps.items()},
        "summarised": partial(attention, feature_map=SummarisedAttention(), scale=1.0),
        "uniform weights": lambda q, k, v: v.mean(-2, keepdim=True).expand_as(q),
    }


@torch.inference_mode()
def rows(length: int = LENGTH, rounds: int = ROUNDS) -> list[tuple[str, float, float]]:
    """Return name, relative error and seconds of every method; methods alternate, times are medians."""
    inputs, named = tokens(length), methods()
    outputs = {name: attend(*inputs) for name, attend in named.items()}  # a warm-up, too
    times: dict[str, list[float]] = {name: [] for name in named}
    for _ in range(rounds):
        for name, attend in named.items():
            start = perf_counter()
            attend(*inputs)
            times[name].append(perf_counter() - start)
    exact = next(iter(outputs.values()))
    return [
        (name, float((output - exact).norm() / exact.norm()), median(times[name]))
        for name, output in outputs.items()
    ]


def main() -> None:
    """Print a table, and what it means."""
    console = Console()
    with console.status(f"{HEADS} heads, {LENGTH:,} tokens on 16 topics, d = {DIM} …"):
        found = rows()
    title = f"Attention of {LENGTH:,} tokens, {HEADS} heads, d = {DIM}, {os.cpu_count()} cores"
    texts = [
        (name, f"{error:.3f}", f"{1e3 * seconds:.0f}", f"{found[0][2] / seconds:.1f}")
        for name, error, seconds in found
    ]
    console.print(table(("attention", "relative error", "milliseconds", "times as fast"), texts, title=title))
    console.print(
        "Queries and keys have length 1 here, where maps that are not fitted are accurate. Those of trained models "
        "are longer: take hrf.SummarisedAttention(), or fit a map. Next, all maps are fitted to data and compared.",
        highlight=False,
    )


if __name__ == "__main__":
    main()

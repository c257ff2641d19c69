"""Cost of fitting and advice: seconds, and for advice the memory that the process grows by."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Generator

import hrf
from benchmarks.minilm import Attention
from benchmarks.quality.candidates import WIDTH
from benchmarks.quality.workers import pool
from hrf.features.clustered import BASES

__all__ = ["ADVICE_GIGABYTES", "ADVICE_SECONDS", "FIT_SECONDS", "AdviceCost", "advice_cost", "fit_seconds"]

FIT_SECONDS = 2.0  # aimed at for 12 heads × 512 tokens, 16 × 16 clusters
ADVICE_SECONDS, ADVICE_GIGABYTES = 60.0, 2.0  # aimed at for 10,000 queries and keys, d = 64


class AdviceCost(NamedTuple):
    """Cost of one call of `hrf.advise`: seconds, and the growth of the process in gigabytes."""

    seconds: float
    gigabytes: float


def fit_seconds(layer: Attention, repeats: int = 5) -> dict[str, float]:
    """Measure the shortest time, by base, to fit 16 × 16 clusters to one passage, all heads of a layer."""
    queries, keys = layer.queries[0], layer.keys[0]
    seconds = {}
    for base in BASES:
        times = []
        for _ in range(repeats):
            start = perf_counter()
            hrf.ClusteredHybrid.fit(
                queries, keys, n_clusters=(16, 16), n_projections=WIDTH // 2, base=base, heads=len(queries)
            )
            times.append(perf_counter() - start)
        seconds[base] = min(times)
    return seconds


def advice_cost(threads: int, size: int = 10_000, dim: int = 64) -> AdviceCost:
    """Measure advice in a process of its own, so that nothing else is counted."""
    with pool(1, threads) as worker:
        return worker.submit(_advise_once, size, dim).result()


def _advise_once(size: int, dim: int) -> AdviceCost:
    generator = Generator().manual_seed(0)
    centers = 1.5 * torch.randn(2, 20, dim, generator=generator) / dim**0.5
    q, k = (
        side[torch.randint(20, (size,), generator=generator)]
        + torch.randn(size, dim, generator=generator) / dim**0.5
        for side in centers
    )
    before, start = _peak(), perf_counter()
    hrf.advise(q, k, budget=WIDTH)
    return AdviceCost(perf_counter() - start, (_peak() - before) / 1e9)


def _peak() -> int:
    """Return the peak memory of this process in bytes, as Linux records it."""
    (kilobytes,) = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(kilobytes)


def sentences(fits: dict[str, float], advice: AdviceCost, shape: Sequence[int]) -> list[str]:
    """Say what was measured, and whether the targets are met."""
    slow = [base for base, seconds in fits.items() if seconds > FIT_SECONDS]
    times = ", ".join(f"{base} {seconds:.2f} s" for base, seconds in fits.items())
    heads, tokens, dim = shape
    met = advice.seconds <= ADVICE_SECONDS and advice.gigabytes <= ADVICE_GIGABYTES
    return [
        f"Fitting {heads} heads × {tokens} tokens, d = {dim}, 16×16 clusters: {times}; "
        + (f"above {FIT_SECONDS:g} s: {', '.join(slow)}." if slow else f"all below {FIT_SECONDS:g} s."),
        f"Advice on 10,000 queries and keys, d = 64: {advice.seconds:.1f} s and {advice.gigabytes:.2f} GB, "
        f"aim {ADVICE_SECONDS:g} s and {ADVICE_GIGABYTES:g} GB: {'met' if met else 'missed'}.",
    ]

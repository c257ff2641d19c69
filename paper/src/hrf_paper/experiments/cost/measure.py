"""Operations and seconds of the angular hybrid and of a base of the same width."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

import hrf
from hrf_paper.experiments.experiment import Part, Results
from hrf_paper.experiments.shared.estimators import Estimator

__all__ = ["PAIRED_DIMS", "PAIRS", "Settings", "by_size", "key", "paired_shares", "parts"]

PAIRS = (64, 128, 256, 512)  # D of the paper's baselines, beside (m, n) = (D/8, 8)
PAIRED_DIMS = (64, 200, 650)
_PAIRED = "pairs of the paper"
_REPEATS = 35  # the fastest counts: other processes only ever add time


@dataclass(frozen=True)
class Settings:
    """m = n = each of ``sizes``; times are the best of several, for a batch of ``vectors`` vectors."""

    dims: tuple[int, ...] = (64, 256, 1024)
    sizes: tuple[int, ...] = (4, 8, 16, 32)
    vectors: int = 512
    seed: int = 0


def parts(settings: Settings) -> dict[str, Part]:
    """Return one part per dimension and size, and one for the paper's pairs."""
    work: dict[str, Part] = {
        key(dim, size): partial(_part, settings, dim, size)
        for dim in settings.dims
        for size in settings.sizes
    }
    return work | {_PAIRED: _pairs}


def key(dim: int, size: int) -> str:
    """Return the name of a part."""
    return f"d = {dim}, m = n = {size}"


def by_size(settings: Settings, results: Results) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the parts by dimension and size."""
    return {(dim, size): results[key(dim, size)] for dim in settings.dims for size in settings.sizes}


def paired_shares(results: Results) -> list[float]:
    """Return FLOPs of hybrids over FLOPs of bases for all of the paper's pairs and dimensions."""
    return [share for name, row in results[_PAIRED].items() if name != "timings" for share in row]


def _part(settings: Settings, dim: int, size: int) -> dict[str, Any]:
    generator = Generator().manual_seed(settings.seed)
    x = torch.randn(settings.vectors, dim, generator=generator) / dim**0.5
    hybrid = Estimator("angular hybrid", dim, size, size)(None, generator)
    base = Estimator("FAVOR+", dim, hybrid.feature_dim // 2)(None, generator)
    maps = {"hybrid": hybrid, "base": base}
    return {
        "width": hybrid.feature_dim,
        "flops": {name: phi.flops() for name, phi in maps.items()},
        "formula": 2 * dim * 2 * size + 8 * size + size + 4 * size * size,  # 2d(m + n) + 8m + n + 4mn
        "timings": {name: _seconds_per_vector(phi, x) for name, phi in maps.items()},
    }


def _pairs() -> dict[str, Any]:
    """Divide the FLOPs of the hybrid with m·n = D by the FLOPs of the base with D projections."""
    return {
        f"d = {dim}": [
            Estimator("angular hybrid", dim, count // 8, 8).one().flops()
            / Estimator("FAVOR+", dim, count).one().flops()
            for count in PAIRS
        ]
        for dim in PAIRED_DIMS
    }


@torch.no_grad()
def _seconds_per_vector(feature_map: hrf.FeatureMap, vectors: Tensor) -> float:
    times = []
    for _ in range(1 + _REPEATS):
        start = time.perf_counter()
        feature_map.active_queries(vectors)
        times.append(time.perf_counter() - start)
    return min(times[1:]) / len(vectors)  # the first run is cold

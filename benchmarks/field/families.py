"""The table of all methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import hrf
from benchmarks.field import maps
from benchmarks.field.blocks import Blocks
from benchmarks.field.clustered import Clustered
from benchmarks.field.linformer import Linformer
from benchmarks.field.lsh import Lsh
from benchmarks.field.method import Family
from benchmarks.field.nystrom import Nystrom
from benchmarks.field.summarised import Summarised
from benchmarks.minilm import Attention

__all__ = ["OURS", "families"]

OURS = "summarised, τ = 1"  # the method that sets the budget
TOP = 32  # exact keys per query of improved clustered attention, as Vyas et al. have it
BLOCK = 16
ROUNDS = 16
CLUSTERS, EXACT_SHARE = 64, 0.1


def families(fit: Sequence[Attention]) -> list[Family]:
    """Return all methods; maps are fitted to ``fit``, by layer."""

    def length(n: int) -> int:
        return n

    def features(build: type[hrf.FeatureMap]) -> partial[maps.Maps]:
        return partial(maps.features, build, fit)

    def ours(tolerance: float) -> Family:
        name = "∞" if math.isinf(tolerance) else f"{tolerance:g}"
        return Family(f"summarised, τ = {name}", lambda _: Summarised(tolerance))

    return [
        *map(ours, (1.0, 2.0, math.inf)),
        Family("Nyströmformer", Nystrom, length, "landmarks"),
        Family("Linformer, averages", Linformer, length, "rows"),
        Family("Linformer, random", partial(Linformer, projection="random"), length, "rows"),
        Family("LSH (Reformer)", Lsh, lambda n: ROUNDS, "rounds"),
        Family("clustered", Clustered, length, "clusters"),
        Family("clustered, improved", partial(Clustered, top=TOP), length, "clusters"),
        Family("block-sparse", Blocks, lambda n: n // BLOCK, "blocks"),
        Family("FAVOR+", features(hrf.Positive), length, "projections"),
        Family("FAVOR++, fitted", features(hrf.OptimalPositive), length, "projections"),
        Family("FAVOR#, fitted", features(hrf.DenseExponential), length, "projections"),
        Family("fitted clusters, some pairs exact", lambda _: maps.clusters(fit, EXACT_SHARE, CLUSTERS)),
    ]

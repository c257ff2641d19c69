"""Time block sizes of ``hrf/tuning.py`` at half, once and twice their values: ``python -m benchmarks.tuning [NAME …]``.

The three values take turns, so that a busy machine disturbs all alike. A size that is faster at half or twice its value
beyond the quartiles is a size to change; the table says so.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

import hrf
from hrf import tuning
from hrf.report import progress, table, write

__all__ = ["CASES", "NOT_TIMED", "main", "measured"]

FACTORS = (0.5, 1, 2)
# Sizes without a case, and why.
NOT_TIMED = {
    "CODE_BITS": "bounds for CODE_BLOCK and COMPILED_CODE_TOKENS, which are timed",
    "CLUSTER_BLOCK": "bounds of a size that follows from the number of clusters",
    "TREE_LEAF": "a choice of memory, not of speed: docs/results/speed-details.md compares leaves of 1 and 4",
    "TREE_HELD_BYTES": "a choice of memory",
}

Run = Callable[[], Any]
Map = hrf.FeatureMap | hrf.SummarisedAttention

_SUMMARISED = hrf.SummarisedAttention()


def _tensors(heads: int, length: int, dim: int = 64, scale: float = 0.15) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [scale * torch.randn(1, heads, length, dim) for _ in range(3)]


def _attention(phi: Map, heads: int = 8, length: int = 4096, **options: Any) -> Run:
    q, k, v = _tensors(heads, length, options.pop("dim", 64), options.pop("norm", 0.15))
    return lambda: hrf.attention(q, k, v, phi, **options)


def _decoding(phi: hrf.FeatureMap, heads: int) -> Run:
    state, token = hrf.AttentionState(phi), _tensors(heads, 1)
    for _ in range(2):  # the first token, and the first step
        state.prefill(*token)
    return lambda: [state.prefill(*token) for _ in range(100)]


def _training(phi: Map, heads: int = 4, length: int = 4096, **options: Any) -> Run:
    tensors = [t.requires_grad_() for t in _tensors(heads, length)]

    def run() -> Any:
        return torch.autograd.grad(hrf.attention(*tensors, phi, **options).sum(), tensors)

    return run


@cache
def _clusters(n: int = 16, **arguments: Any) -> hrf.ClusteredHybrid:
    q, k, _ = _tensors(1, 512)
    defaults: dict[str, Any] = {"base": "shifted", "n_clusters": (n, n), "n_projections": 16}
    return hrf.ClusteredHybrid.fit(q[0, 0], k[0, 0], **(defaults | arguments))


def _by_pair() -> hrf.FeatureMap:
    return _clusters(3, base="paper", matrix="complex-diagonal", n_projections=64)


def _positive() -> hrf.FeatureMap:
    return hrf.Positive(64, n_projections=128)


def _complex() -> hrf.FeatureMap:
    matrix = torch.ones(64, dtype=torch.cfloat)
    matrix[::2] = 1j
    return hrf.Exponential(64, n_projections=64, matrix=matrix)


def _partly_exact() -> hrf.FeatureMap:
    return _clusters(64, base="separable", exact_share=0.1)


def _angular() -> hrf.FeatureMap:
    return hrf.AngularHybrid(64, n_projections=16, n_coefficient_projections=8)


def _queries(phi: hrf.FeatureMap, rows: int = 1 << 15) -> Run:
    x = 0.15 * torch.randn(rows, 64)
    return lambda: phi.queries(x)


def _fitting() -> Run:
    q, k, _ = _tensors(1, 8192)
    return lambda: hrf.ClusteredHybrid.fit(
        q[0, 0], k[0, 0], base="moments", n_clusters=(8, 8), n_projections=8
    )


def _sampling(classes: int = 50_000) -> Run:
    sampler = hrf.sampling.SoftmaxSampler(0.3 * torch.randn(classes, 64), hrf.Positive(64, n_projections=64))
    queries, generator = 0.3 * torch.randn(700, 64), torch.Generator().manual_seed(0)
    return lambda: sampler.sample(queries, 40, generator=generator)


def _exact_sampling() -> Run:
    sampler = hrf.sampling.ExactSoftmaxSampler(0.3 * torch.randn(50_000, 64))
    queries, generator = 0.3 * torch.randn(2800, 64), torch.Generator().manual_seed(0)
    return lambda: sampler.sample(queries, 40, generator=generator)


# What each size is timed on; a case is set up anew for every value, since some are read while it is built.
CASES: dict[str, tuple[str, Callable[[], Run]]] = {
    "FEATURE_FLOATS": ("Positive.queries, 32,768 vectors", lambda: _queries(_positive())),
    "HYBRID_FLOATS": ("AngularHybrid.queries, 32,768 vectors", lambda: _queries(_angular())),
    "DENSE_FLOATS": ("complex Exponential, 4,096 tokens", lambda: _attention(_complex())),
    "DENSE_LEAST_ROWS": ("complex Exponential, 64 heads of 512 tokens", lambda: _attention(_complex(), 64, 512)),
    "CAUSAL_CHUNK": ("complex Exponential, causal, 4,096 tokens", lambda: _attention(_complex(), is_causal=True)),
    "CLUSTERED_CHUNKS": ("shifted 16 × 16, causal, 4,096 tokens", lambda: _attention(_clusters(), 4, is_causal=True)),
    "STEP_FLOATS": ("Positive, 100 tokens of 64 heads decoded", lambda: _decoding(_positive(), 64)),
    "ROWS_INFERENCE": ("AngularHybrid, 32 heads of 8,192 tokens", lambda: _attention(_angular(), 32, 8192)),
    "ROWS_FORWARD": ("shifted 16 × 16, training", lambda: _training(_clusters(), 8)),
    "ROWS_BACKWARD": ("shifted 16 × 16, training", lambda: _training(_clusters(), 8, 1024)),
    "ANGULAR_TOKENS": ("AngularHybrid, 16 heads of 8,192 tokens", lambda: _attention(_angular(), 16, 8192)),
    "ANGULAR_GRAPH_TOKENS": ("AngularHybrid, training", lambda: _training(_angular(), 2, 32_768)),
    "CODE_BLOCK": ("AngularHybrid, training", lambda: _training(_angular())),
    "CODE_PLACES": ("AngularHybrid, training", lambda: _training(_angular())),
    "COMPILED_CODE_TOKENS": ("AngularHybrid, 4,096 tokens", lambda: _attention(_angular())),
    "CLUSTER_TOKENS": ("shifted 16 × 16, 8 heads of 8,192 tokens", lambda: _attention(_clusters(), 8, 8192)),
    "CLUSTER_FLOATS": ("shifted 16 × 16, 4,096 tokens", lambda: _attention(_clusters())),
    "PAIR_FLOATS": ("paper 3 × 3, training, 4 heads of 4,096 tokens", lambda: _training(_by_pair())),
    "TASKS_PER_THREAD": ("AngularHybrid, 4,096 tokens", lambda: _attention(_angular())),
    "TASK_TOKENS": ("AngularHybrid, 1 head of 4,096 tokens", lambda: _attention(_angular(), 1)),
    "SUMMARY_FLOATS": ("summarised, training, 1,024 tokens", lambda: _training(_SUMMARISED, 4, 1024)),
    "EXACT_FLOATS": ("summarised, training, 1,024 tokens", lambda: _training(_SUMMARISED, 4, 1024)),
    "FITTING_FLOATS": ("fit of moments, 8 × 8 clusters", _fitting),
    "TREE_TOP": ("40 draws for 700 queries, 50,000 classes", _sampling),
    "TREE_FAN": ("40 draws for 700 queries, 50,000 classes", _sampling),
    "TREE_FLOATS": ("40 draws for 700 queries, 50,000 classes", _sampling),
    "TREE_QUERIES": ("40 draws for 700 queries, 50,000 classes", _sampling),
    "EXACT_LOGITS": ("exact draws for 2,800 queries, 50,000 classes", _exact_sampling),
}  # fmt: skip


def measured(name: str, rounds: int) -> dict[str, Any]:
    """Time one size at all factors, in turns: median seconds and quartiles."""
    value, (case, setup) = getattr(tuning, name), CASES[name]
    sizes = [max(1, int(value * factor)) for factor in FACTORS]
    times: list[list[float]] = [[] for _ in sizes]
    with torch.no_grad() if "training" not in case else torch.enable_grad():
        for size, own in rounds * [*zip(sizes, times, strict=True)]:
            setattr(tuning, name, size)
            try:
                run = setup()
                run()
                start = time.perf_counter()
                run()
                own.append(time.perf_counter() - start)
            finally:
                setattr(tuning, name, value)
    medians = [statistics.median(own) for own in times]
    quartiles = [statistics.quantiles(own, n=4)[::2] if len(own) > 1 else [own[0]] * 2 for own in times]
    return {"case": case, "sizes": sizes, "seconds": medians, "quartiles": quartiles}


def main(names: Sequence[str] = (), out: Path = Path("benchmarks/results"), rounds: int = 3) -> None:
    """Time some sizes or all, print a table and write ``tuning.json``, which keeps the other sizes."""
    from rich.console import Console

    file, names = out / "tuning.json", names or [*CASES]
    known = json.loads(file.read_text(encoding="utf-8"))["sizes"] if file.exists() else {}
    results = {}
    with progress("sizes") as advance:
        for done, name in enumerate(names):
            advance(name, done, len(names))
            results[name] = measured(name, rounds)
    content = {"threads": torch.get_num_threads(), "rounds": rounds, "sizes": known | results}
    write(file, (json.dumps(content, indent=1) + "\n").encode())
    header = ("size", "value", "timed on", "half", "twice")
    rows = []
    for name, found in results.items():
        half, once, twice = found["seconds"]
        rows.append(
            (name, str(found["sizes"][1]), found["case"], f"{half / once:.2f}", f"{twice / once:.2f}")
        )
    Console().print(table(header, rows, title="Seconds over those at the value in use"))


if __name__ == "__main__":
    main(sys.argv[1:])

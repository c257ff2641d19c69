"""Feature maps: 65,536 vectors of length 64 (8 heads of 8,192) to 256 features; to 576 for the hybrid.

Two lower bounds stand for the hardware. The *bare* product writes a new output of the same width from as many
projections as there are features; *projections + fill* multiplies by the rows of ω that are really needed and
fills an output of the same width, without applying any function to the projections.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

import hrf
from benchmarks.cases import Case, costs, faster_than

__all__ = ["CASES", "SETTINGS"]

GROUP = "maps"
HEADS, LENGTH, DIM = 8, 8192, 64
ROWS = HEADS * LENGTH
M = 128  # projections; both signs, or sine and cosine, make 256 features
WIDTH = 2 * M
HYBRID_M, HYBRID_BITS = 16, 8
HYBRID_WIDTH = 4 * HYBRID_M * (HYBRID_BITS + 1)
SETTINGS = {
    GROUP: {
        "vectors": ROWS,
        "heads": HEADS,
        "dim": DIM,
        "n_projections": M,
        "width": WIDTH,
        "hybrid_n_projections": HYBRID_M,
        "hybrid_n_coefficient_projections": HYBRID_BITS,
        "hybrid_width": HYBRID_WIDTH,
    }
}

BARE = f"bare x @ Wᵀ, width {WIDTH}"
FILL = f"{M} projections + fill {WIDTH}"
HYBRID_FILL = f"{HYBRID_M + HYBRID_BITS} projections + fill {HYBRID_WIDTH}"
NAIVE_POSITIVE, NAIVE_TRIGONOMETRIC = "naive positive", "naive trigonometric"
PERFORMER = "performer softmax_kernel"
RBF = "scikit-learn RBFSampler"

Timed = Callable[[], Any]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@cache
def inputs() -> Tensor:
    """Queries scaled as in attention: ``(H, L, d)``, entries N(0, 1/√d)."""
    return torch.randn(HEADS, LENGTH, DIM, generator=generator()).mul_(DIM**-0.25)


def omega(n: int) -> Tensor:
    return hrf.projections.draw("orthogonal", n, DIM, generator=generator())


def projection_flops(n: int) -> float:
    return 2.0 * ROWS * DIM * n


# The hardware.


def bare() -> Timed:
    x, w = inputs().view(ROWS, DIM), omega(WIDTH)
    return lambda: x @ w.T


def projections_and_fill(n: int, width: int) -> Timed:
    x, w = inputs().view(ROWS, DIM), omega(n)

    def run() -> Tensor:
        projected = x @ w.T
        return projected.new_empty(ROWS, width).fill_(1.0)

    return run


# The peers.


def naive_positive() -> Timed:
    x, w = inputs(), omega(M)

    def run() -> Tensor:
        projected = x @ w.T
        features = torch.cat([torch.exp(projected), torch.exp(-projected)], dim=-1)
        scale = torch.exp(-x.square().sum(-1, keepdim=True) / 2) / math.sqrt(2 * M)
        return features * scale

    return run


def naive_trigonometric() -> Timed:
    x, w = inputs(), omega(M)

    def run() -> Tensor:
        projected = x @ w.T
        features = torch.cat([torch.cos(projected), torch.sin(projected)], dim=-1)
        scale = torch.exp(x.square().sum(-1, keepdim=True) / 2) / math.sqrt(M)
        return features * scale

    return run


def performer() -> Timed:
    from performer_pytorch.performer_pytorch import softmax_kernel

    x, w = inputs().unsqueeze(0), omega(WIDTH)
    return lambda: softmax_kernel(x, projection_matrix=w, is_query=True)


def rbf_sampler() -> Timed:
    from sklearn.kernel_approximation import RBFSampler
    from threadpoolctl import threadpool_limits

    threadpool_limits(torch.get_num_threads())  # NumPy's products get as many threads as PyTorch's
    x = inputs().view(ROWS, DIM).numpy()
    sampler = RBFSampler(gamma=0.5, n_components=WIDTH, random_state=0).fit(x)
    return lambda: sampler.transform(x)


# Ours.


def positive(heads: int | None = None) -> Timed:
    return queries(hrf.Positive(DIM, n_projections=M, heads=heads, generator=generator()))


def trigonometric(heads: int | None = None) -> Timed:
    return queries(hrf.Trigonometric(DIM, n_projections=M, heads=heads, generator=generator()))


def gaussian() -> Timed:
    return queries(hrf.GaussianKernel(hrf.Trigonometric(DIM, n_projections=M, generator=generator())))


def angular() -> Timed:
    return queries(
        hrf.AngularHybrid(
            DIM, n_projections=HYBRID_M, n_coefficient_projections=HYBRID_BITS, generator=generator()
        )
    )


def queries(feature_map: hrf.FeatureMap) -> Timed:
    x = inputs()
    return lambda: feature_map.queries(x)


def case(name: str, setup: Callable[[], Timed], n: int, **options: Any) -> Case:
    return Case(name, GROUP, setup, flops=projection_flops(n), rows=ROWS, **options)


LOWER_BOUNDS = (costs(BARE, at_most=1.4), costs(FILL, at_most=1.4))
POSITIVE = (faster_than(PERFORMER, at_least=3), faster_than(NAIVE_POSITIVE), *LOWER_BOUNDS)
TRIGONOMETRIC = (faster_than(RBF, at_least=1), faster_than(NAIVE_TRIGONOMETRIC), *LOWER_BOUNDS)

CASES = (
    case(BARE, bare, WIDTH, own=False),
    case(FILL, lambda: projections_and_fill(M, WIDTH), M, own=False),
    case(
        HYBRID_FILL,
        lambda: projections_and_fill(HYBRID_M + HYBRID_BITS, HYBRID_WIDTH),
        HYBRID_M + HYBRID_BITS,
        own=False,
    ),
    case(NAIVE_POSITIVE, naive_positive, M, own=False),
    case(NAIVE_TRIGONOMETRIC, naive_trigonometric, M, own=False),
    case(PERFORMER, performer, WIDTH, requires="performer_pytorch", own=False),
    case(RBF, rbf_sampler, WIDTH, requires="sklearn", own=False),
    case("Positive", positive, M, against=POSITIVE),
    case(f"Positive, heads={HEADS}", lambda: positive(HEADS), M, against=POSITIVE),
    case("Trigonometric", trigonometric, M, against=TRIGONOMETRIC),
    case(f"Trigonometric, heads={HEADS}", lambda: trigonometric(HEADS), M, against=TRIGONOMETRIC),
    case("GaussianKernel(Trigonometric)", gaussian, M, against=(faster_than(RBF), *map(costs, (BARE, FILL)))),
    case("AngularHybrid", angular, HYBRID_M + HYBRID_BITS, against=(costs(HYBRID_FILL, at_most=1.5),)),
)

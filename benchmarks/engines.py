"""One case per engine of attention and per consumer of feature maps, for comparing two versions of the library.

These cases have no peers, so `python -m benchmarks` leaves them out; `python -m benchmarks.compare` times them. They
use public names only, so that they run with older versions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

import hrf
from benchmarks.cases import Case

__all__ = ["CASES"]

GROUP = "engines"
HEADS, LENGTH, DIM, M = 8, 1024, 64, 64

Timed = Callable[[], Any]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def inputs(length: int = LENGTH) -> tuple[Tensor, Tensor, Tensor]:
    with torch.inference_mode(False):
        query, key, value = torch.randn(3, 1, HEADS, length, DIM, generator=generator())
    return query, key, value


def trigonometric() -> hrf.FeatureMap:
    return hrf.Trigonometric(DIM, n_projections=M, generator=generator())


def gaussian() -> hrf.FeatureMap:
    return hrf.GaussianKernel(hrf.Positive(DIM, n_projections=M, generator=generator()))


def angular() -> hrf.FeatureMap:
    return hrf.AngularHybrid(DIM, n_projections=16, n_coefficient_projections=8, generator=generator())


def fit(**options: Any) -> hrf.FeatureMap:
    query, key, _ = inputs()
    root = DIM**-0.25
    return hrf.ClusteredHybrid.fit(
        query[0] * root, key[0] * root, n_clusters=(16, 16), heads=HEADS, generator=generator(), **options
    )


clustered = cache(fit)  # seconds per map, and attention leaves it unchanged
separable = partial(clustered, base="separable")
shifted = partial(clustered, base="shifted", n_projections=16)
exact_pairs = partial(clustered, base="separable", exact_share=0.1)


def attention(make: Callable[[], hrf.FeatureMap], *, training: bool = False, **options: Any) -> Timed:
    with torch.inference_mode(False):
        phi, tensors = make(), inputs()
        leaves = [u.requires_grad_(training) for u in tensors]

    def forward() -> Tensor:
        return hrf.attention(*leaves, phi, **options)

    def forward_and_backward() -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            return torch.autograd.grad(forward().square().sum(), leaves)[0]

    return forward_and_backward if training else forward


def decoding(make: Callable[[], hrf.FeatureMap]) -> Timed:
    state = hrf.AttentionState(make())
    tensors = inputs()
    state.prefill(*tensors)
    token = [u[..., 0, :] for u in tensors]
    return lambda: state.step(*token)


def estimate() -> Timed:
    phi, (query, key, _) = angular(), (u[:, 0] * DIM**-0.25 for u in inputs())
    return lambda: phi.estimate(query, key)


def advice() -> Timed:
    query, key, value = (u[0, 0].double() for u in inputs(256))
    return lambda: hrf.advise(query, key, value, budget=32, scale=DIM**-0.5, n_redraws=2)


def multihead() -> Timed:
    with torch.inference_mode(False):
        torch.manual_seed(0)
        layer = hrf.nn.MultiheadAttention(HEADS * DIM, HEADS, batch_first=True)
    x = torch.randn(1, LENGTH, HEADS * DIM, generator=generator())
    return lambda: layer(x, x, x, need_weights=False)[0]


MAPS: dict[str, Callable[[], hrf.FeatureMap]] = {
    "Trigonometric": trigonometric,
    "GaussianKernel(Positive)": gaussian,
    "AngularHybrid": angular,
    "ClusteredHybrid, separable": separable,
    "ClusteredHybrid, shifted": shifted,
    "ClusteredHybrid, exact pairs": exact_pairs,
}
MODES: dict[str, Callable[[Callable[[], hrf.FeatureMap]], Timed]] = {
    "": attention,
    ", causal": partial(attention, is_causal=True),
    ", forward + backward": partial(attention, training=True),
    ", causal, forward + backward": partial(attention, training=True, is_causal=True),
}
OTHERS: dict[str, Callable[[], Timed]] = {
    "AngularHybrid, one token decoded": partial(decoding, angular),
    "ClusteredHybrid, one token decoded": partial(decoding, separable),
    "AngularHybrid, estimate": estimate,
    "MultiheadAttention": multihead,
    "advise, 256 vectors": advice,
    "ClusteredHybrid.fit, separable": lambda: partial(fit, base="separable"),
}

CASES = tuple(
    Case(name, GROUP, setup, flops=0.0)
    for name, setup in {
        **{
            f"{name}{mode}": partial(time, make)
            for name, make in MAPS.items()
            for mode, time in MODES.items()
        },
        **OTHERS,
    }.items()
)

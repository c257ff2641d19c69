"""Attention: 8 heads, d = d_v = 64, 256 features, sequences of 512 to 16,384 tokens.

Peers are performer-pytorch and PyTorch's exact attention. FLOPs count the products that linear attention needs:
projections and the state, for queries and for keys.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import hrf
from benchmarks.cases import Against, Case, costs, faster_than

__all__ = ["CASES", "SETTINGS"]

LENGTHS = (512, 1024, 4096, 8192, 16384)
ONLY_CAUSAL = 8192
HEADS, DIM, M = 8, 64, 128
WIDTH = 2 * M
HYBRID_M, HYBRID_BITS = 16, 8
LONG = 4096  # from here on the targets are for linear attention's home ground
ROUNDS = {16384: 3}  # exact attention takes seconds there


def group(length: int) -> str:
    return f"attention, {length:,} tokens"


SETTINGS = {
    group(length): {
        "heads": HEADS,
        "length": length,
        "dim": DIM,
        "features": WIDTH,
        "hybrid_n_projections": HYBRID_M,
        "hybrid_n_coefficient_projections": HYBRID_BITS,
    }
    for length in LENGTHS
}

EXACT, EXACT_CAUSAL = "exact (scaled_dot_product_attention)", "exact, causal"
EXACT_TRAINING, EXACT_CAUSAL_TRAINING = "exact, forward + backward", "exact, causal, forward + backward"
PERFORMER, PERFORMER_TRAINING = "performer-pytorch", "performer-pytorch, forward + backward"
PERFORMER_CAUSAL = "performer-pytorch, causal"
EXPLICIT, PLAIN = "AngularHybrid, explicit features", "AngularHybrid, plain explicit features"
POSITIVE, TRIGONOMETRIC = "Positive", "Trigonometric"

Timed = Callable[[], Any]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@cache
def inputs(length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value ``(1, H, L, d)``."""
    with torch.inference_mode(False):  # training needs ordinary tensors
        query, key, value = torch.randn(3, 1, HEADS, length, DIM, generator=generator())
    return query, key, value


def flops(length: int, width: int, projections: int) -> float:
    """Count the operations for queries and keys: projections, and the state of values and weights."""
    return 2.0 * HEADS * length * (2 * DIM * projections + 2 * width * (DIM + 1))


def hybrid_flops(length: int) -> float:
    return flops(length, 4 * HYBRID_M * (1 + HYBRID_BITS), HYBRID_M + HYBRID_BITS)


Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
exact_causal: Attention = partial(scaled_dot_product_attention, is_causal=True)
Features = Callable[[Tensor], Tensor]


def forward(attention: Attention, length: int) -> Timed:
    return partial(attention, *inputs(length))


def forward_and_backward(attention: Attention, length: int) -> Timed:
    with torch.inference_mode(False):
        leaves = [u.clone().requires_grad_() for u in inputs(length)]

    def run() -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            return torch.autograd.grad(attention(*leaves).square().sum(), leaves)[0]

    return run


def performer(*, causal: bool = False) -> Attention:
    from performer_pytorch import FastAttention

    with torch.inference_mode(False):
        torch.manual_seed(0)
        return FastAttention(DIM, nb_features=WIDTH, causal=causal)  # type: ignore[no-any-return]


def positive(name: str = POSITIVE, **options: Any) -> Attention:
    with torch.inference_mode(False):
        phi = getattr(hrf, name)(DIM, n_projections=M, generator=generator())
    return lambda query, key, value: hrf.attention(query, key, value, phi, **options)


def angular() -> hrf.AngularHybrid:
    return hrf.AngularHybrid(
        DIM, n_projections=HYBRID_M, n_coefficient_projections=HYBRID_BITS, generator=generator()
    )


def grouped() -> Attention:
    phi = angular()
    return lambda query, key, value: hrf.attention(query, key, value, phi)


def on_features(queries: Features, keys: Features) -> Attention:
    """Build attention from explicit features: two products and a division."""

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scale = DIM**-0.25
        q, k = queries(query * scale), keys(key * scale)
        return q @ (k.mT @ value) / (q @ k.sum(-2).unsqueeze(-1))

    return attention


def explicit() -> Attention:
    """Attention on the features of this library, which are written in blocks."""
    phi = angular()
    return on_features(phi.queries, phi.keys)


def plain() -> Attention:
    """Attention on the same features, written as in the composition lemma."""
    phi = angular()
    omega, tau = phi.bases[0].projection.omega, phi.coefficients[0].projection.omega

    def features(x: Tensor, sign: int) -> Tensor:
        projected, square = x @ omega.mT, x.square().sum(-1, keepdim=True) / 2
        positive = torch.cat([projected, -projected], -1).sub(square).exp() / (2 * HYBRID_M) ** 0.5
        waves = torch.cat([projected.cos(), projected.sin()], -1) * square.exp() / HYBRID_M**0.5
        signs = (x @ tau.mT).sign() / HYBRID_BITS**0.5
        products = []
        for base, bits in ((positive, sign * signs), (waves, signs)):
            rho = torch.cat([torch.ones_like(square), bits], -1) * 0.5**0.5
            products.append((base.unsqueeze(-1) * rho.unsqueeze(-2)).flatten(-2))
        return torch.cat(products, -1)

    return on_features(lambda x: features(x, 1), lambda y: features(y, -1))


def step(length: int) -> Timed:
    """Decode one token after a prefix of ``length`` tokens."""
    state = hrf.AttentionState(hrf.Positive(DIM, n_projections=M, generator=generator()))
    query, key, value = inputs(length)
    state.prefill(query, key, value)
    token = [u[..., 0, :] for u in (query, key, value)]
    return lambda: state.step(*token)


PEER = {"requires": "performer_pytorch", "own": False}


def case(
    length: int, name: str, setup: Callable[[], Timed], work: float, *against: Against, **options: Any
) -> Case:
    rounds = ROUNDS.get(length)
    return Case(
        name, group(length), setup, flops=work, against=against, size=length, rounds=rounds, **options
    )


def baselines(length: int) -> list[Case]:
    """Return the peers of inference, and attention on explicit features."""
    one, hybrid_work = partial(case, length), hybrid_flops(length)
    exact_work = 4.0 * HEADS * length**2 * DIM
    return [
        one(EXACT, lambda: forward(scaled_dot_product_attention, length), exact_work, own=False),
        one(PERFORMER, lambda: forward(performer(), length), flops(length, WIDTH, M), **PEER),
        one(EXPLICIT, lambda: forward(explicit(), length), hybrid_work),
        one(PLAIN, lambda: forward(plain(), length), hybrid_work, own=False),
    ]


def inference(length: int) -> list[Case]:
    """Return our cases without gradients, with their targets."""
    one, work, long = partial(case, length), flops(length, WIDTH, M), length >= LONG
    return [
        one(
            POSITIVE,
            lambda: forward(positive(), length),
            work,
            faster_than(PERFORMER, at_least=5 if long else None),
            faster_than(EXACT, at_least=1 if length >= 1024 else None),
        ),
        one(
            "AngularHybrid",
            lambda: forward(grouped(), length),
            hybrid_flops(length),
            faster_than(EXPLICIT, at_least=5 if long else None),
            faster_than(PLAIN, at_least=5 if long else None),
            faster_than(PERFORMER, at_least=3 if long else None),
        ),
        one(f"{POSITIVE}, one token decoded", lambda: step(length), flops(1, WIDTH, M)),
    ]


def training(length: int) -> list[Case]:
    """Return the cases with gradients, ours and the peer's, with their targets."""
    one, work = partial(case, length), 3 * flops(length, WIDTH, M)
    target, exact_work = 2.5 if length >= LONG else None, 3 * 4.0 * HEADS * length**2 * DIM
    return [
        one(
            f"{POSITIVE}, forward + backward",
            lambda: forward_and_backward(positive(), length),
            work,
            faster_than(PERFORMER_TRAINING, at_least=target),
            faster_than(EXACT_TRAINING, at_least=1 if length >= LONG else None),
        ),
        one(
            EXACT_TRAINING,
            lambda: forward_and_backward(scaled_dot_product_attention, length),
            exact_work,
            own=False,
        ),
        one(PERFORMER_TRAINING, lambda: forward_and_backward(performer(), length), work, **PEER),
    ]


# As exact causal attention, forward and with the backward pass.
TIMES_AS_FAST = {1024: (1.0, 0.7), 4096: (3.0, 2.0), 8192: (5.0, 4.0)}


def causal(length: int, *, trained: bool) -> list[Case]:
    """Return causal attention, ours and exact, forward and where ``trained`` with the backward pass."""
    one, work, exact_work = partial(case, length), flops(length, WIDTH, M), 2.0 * HEADS * length**2 * DIM
    alone, both = TIMES_AS_FAST.get(length, (None, None))
    found = [one(EXACT_CAUSAL, lambda: forward(exact_causal, length), exact_work, own=False)]
    if trained:
        run = partial(forward_and_backward, exact_causal, length)
        found.append(one(EXACT_CAUSAL_TRAINING, run, 3 * exact_work, own=False))
    for name in (POSITIVE, TRIGONOMETRIC):
        against = [faster_than(EXACT_CAUSAL, at_least=alone)]
        if name == POSITIVE and length != ONLY_CAUSAL:
            against.append(costs(POSITIVE, at_most=1.5))
            against += [faster_than(PERFORMER_CAUSAL, at_least=20)] if length == LONG else []
        attention = partial(positive, name, is_causal=True)
        found.append(one(f"{name}, causal", partial(_late, forward, attention, length), work, *against))
        if trained:
            run = partial(_late, forward_and_backward, attention, length)
            against = [faster_than(EXACT_CAUSAL_TRAINING, at_least=both)]
            found.append(one(f"{name}, causal, forward + backward", run, 3 * work, *against))
    return found


def _late(run: Callable[[Attention, int], Timed], make: Callable[[], Attention], length: int) -> Timed:
    """Draw the map when the case is set up."""
    return run(make(), length)


def cases(length: int) -> list[Case]:
    """Return the cases of one length; the slowest peers are left out where they take too long."""
    if length == ONLY_CAUSAL:
        return causal(length, trained=True)
    found = [*baselines(length), *inference(length), *causal(length, trained=length <= LONG)]
    if length <= LONG:
        found += training(length)
    if length == LONG:
        work = flops(length, WIDTH, M)
        found.append(
            case(length, PERFORMER_CAUSAL, lambda: forward(performer(causal=True), length), work, **PEER)
        )
    return found


CASES = tuple(one for length in LENGTHS for one in cases(length))

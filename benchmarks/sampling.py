"""Softmax over very many classes: 40 classes drawn per query for 700 queries, d = 200, 256 features; a training step.

All numbers of classes are in one group, so that their times come from the same rounds. Leaves of 4 classes are the
default for a million classes, leaves of 1 for fewer. The exact sampler belongs to this library, too: one matrix
product, an exponential and sums over all classes, in blocks of queries. FLOPs count its products, and for the tree
the features in the leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import hrf
from benchmarks.cases import Against, Case, costs, faster_than

__all__ = ["CASES", "SETTINGS"]

DRAWS, TRAINING = "sampling", "sampling, training step"
SIZES = (10_000, 100_000, 1_000_000)
TRAINED = 100_000
DIM, M, QUERIES, K = 200, 128, 700, 40
WIDTH = 2 * M
ROUNDS = 5  # the exact sampler takes seconds
COMMON = {"queries": QUERIES, "dim": DIM, "features": WIDTH, "draws": K}
SETTINGS = {DRAWS: COMMON | {"classes": SIZES}, TRAINING: COMMON | {"classes": TRAINED}}

FULL, SAMPLED = "full softmax, step", "SampledSoftmaxLoss, step"

Timed = Callable[[], Any]


def vectors(n: int, seed: int) -> Tensor:
    """Entries N(0, 1/√d), so that logits have variance 1."""
    with torch.inference_mode(False):  # training needs ordinary tensors
        return torch.randn(n, DIM, generator=torch.Generator().manual_seed(seed)).mul_(DIM**-0.25)


def tree(classes: Tensor, **options: Any) -> hrf.sampling.SoftmaxSampler:
    with torch.inference_mode(False):
        phi = hrf.Positive(DIM, n_projections=M, generator=torch.Generator().manual_seed(0))
        return hrf.sampling.SoftmaxSampler(classes, phi, **options)


def draws(sampler: hrf.sampling.Sampler) -> Timed:
    queries = vectors(QUERIES, seed=1)
    return lambda: sampler.sample(queries, K).ids


def step(
    loss: Callable[[Tensor, Tensor, Tensor], Tensor], after: Callable[[Tensor], Any] | None = None
) -> Timed:
    """Build a step: loss, gradients of hidden states and weight, SGD, then the call ``after``."""
    with torch.inference_mode(False):
        hidden, weight = vectors(QUERIES, seed=1).requires_grad_(), nn.Parameter(vectors(TRAINED, seed=2))
        targets = torch.randint(TRAINED, (QUERIES,), generator=torch.Generator().manual_seed(3))
        optimizer = torch.optim.SGD([weight], lr=1e-3)

    def run() -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            optimizer.zero_grad()
            value = loss(hidden, targets, weight)
            value.backward()
            optimizer.step()
            if after is not None:
                after(weight)
            return value

    return run


def full() -> Timed:
    return step(lambda hidden, targets, weight: nn.functional.cross_entropy(hidden @ weight.mT, targets))


def sampled(*, rebuild: bool = False, **options: Any) -> Timed:
    sampler = tree(vectors(TRAINED, seed=2), **options)
    loss = hrf.nn.SampledSoftmaxLoss(sampler, K, sparse=True)
    return step(loss, sampler.rebuild_ if rebuild else None)


def named(n_classes: int, leaf_size: int) -> str:
    return f"SoftmaxSampler, leaves of {leaf_size}, {n_classes:,} classes"


def drawing(n_classes: int) -> list[Case]:
    """Return the cases that draw from this many classes; targets are for the largest number."""
    exact = f"ExactSoftmaxSampler, {n_classes:,} classes"

    def case(name: str, setup: Callable[[], Timed], flops: float, *against: Against) -> Case:
        return Case(name, DRAWS, setup, flops=flops, rows=QUERIES * K, against=against, rounds=ROUNDS)

    def with_leaves(leaf_size: int) -> Case:
        target = n_classes == SIZES[-1] and leaf_size == 4
        against = [faster_than(exact, at_least=20 if target else None)]
        if n_classes > SIZES[0]:
            against.append(costs(named(SIZES[0], leaf_size), at_most=2.5 if target else None))
        return case(
            named(n_classes, leaf_size),
            lambda: draws(tree(vectors(n_classes, seed=2), leaf_size=leaf_size)),
            2.0 * QUERIES * K * DIM * M * (leaf_size if leaf_size > 1 else 0),
            *against,
        )

    return [
        case(
            exact,
            lambda: draws(hrf.sampling.ExactSoftmaxSampler(vectors(n_classes, seed=2))),
            2.0 * QUERIES * n_classes * DIM,
        ),
        with_leaves(4),
        with_leaves(1),
    ]


TRAINING_FLOPS = 6.0 * QUERIES * DIM  # per class: logits, and gradients of hidden states and weight


def training(name: str, setup: Callable[[], Timed], classes: int, target: float | None = None) -> Case:
    against = () if name == FULL else (faster_than(FULL, at_least=target),)
    flops = TRAINING_FLOPS * classes
    return Case(name, TRAINING, setup, flops=flops, against=against, own=name != FULL)


CASES = (
    *(case for n_classes in SIZES for case in drawing(n_classes)),
    training(FULL, full, TRAINED),
    training(SAMPLED, sampled, K + 1, target=5),
    training(f"{SAMPLED}, leaves of 4", lambda: sampled(leaf_size=4), K + 1),
    training(f"{SAMPLED} + rebuild_", lambda: sampled(rebuild=True), K + 1),
)

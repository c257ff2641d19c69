"""Inputs for tests of attention, and how its outputs are compared."""

from __future__ import annotations

import torch
from torch import Tensor

import hrf
from features.registry import DIM
from hrf._attention import reference

WIDTH = 3  # of values


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(
    *batch: int, heads: int = 4, key_heads: int | None = None, length: int = 9, keys: int | None = None
) -> list[Tensor]:
    """Query, key and value that ask for gradients."""
    key_heads, keys = heads if key_heads is None else key_heads, length if keys is None else keys
    shapes = (heads, length, DIM), (key_heads, keys, DIM), (key_heads, keys, WIDTH)
    return [random(*batch, *shape, seed=k).requires_grad_() for k, shape in enumerate(shapes)]


def padding(batch: int, keys: int) -> Tensor:
    """About a third of the keys, the first of some elements among them."""
    return random(batch, keys, seed=7) > 0.4


def assert_same(received: Tensor, expected: Tensor, among: list[Tensor]) -> None:
    """Outputs and gradients of all inputs agree to 1e-8 of the largest: float64 through a few cancellations."""
    assert received.shape == expected.shape
    weights = random(*expected.shape, seed=9)
    gradients = (torch.autograd.grad((out * weights).sum(), among) for out in (received, expected))
    for mine, theirs in zip((received, *next(gradients)), (expected, *next(gradients)), strict=True):
        assert mine.isfinite().all()
        assert (mine - theirs).abs().max() <= 1e-8 * theirs.abs().max()


def assert_equals_reference(q: Tensor, k: Tensor, v: Tensor, phi: hrf.FeatureMap, **options) -> None:
    counts = [hrf.Denominator(), hrf.Denominator()]
    received = hrf.attention(q, k, v, phi, denominator=counts[0], **options)
    expected = reference.attention(q, k, v, phi, denominator=counts[1], **options)
    assert_same(received, expected, [q, k, v])
    assert (counts[0].rows, counts[0].clamped) == (counts[1].rows, counts[1].clamped)

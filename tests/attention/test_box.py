"""Outputs lie in the box of the values, and everything is finite, at any norm."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import hrf
from attention.data import random
from features.registry import MAPS, build
from hrf._attention import reference

both_ways = pytest.mark.parametrize("is_causal", [False, True], ids=["bidirectional", "causal"])


def vectors(norm: float, *shape: int, seed: int) -> torch.Tensor:
    return (norm * F.normalize(random(*shape, seed=seed), dim=-1)).float()


@both_ways
@pytest.mark.parametrize("norm", [3, 10, 100])
def test_one_key_gives_its_value(norm, is_causal):
    phi = hrf.Trigonometric(8, n_projections=16, generator=torch.Generator().manual_seed(0))
    q, k = (vectors(norm, 20, 1, 1, 8, seed=seed) for seed in range(2))
    out = hrf.attention(q, k, torch.ones(20, 1, 1, 1), phi, scale=1.0, is_causal=is_causal)
    torch.testing.assert_close(out, torch.ones_like(out))


def test_the_rule_is_better_than_none():
    """Keys at norm 3 in 64 dimensions: estimates are noise, and dividing by noise is worse than the mean."""
    phi = hrf.Trigonometric(64, n_projections=64, generator=torch.Generator().manual_seed(0))
    q, k, v = (vectors(norm, 1, 2, 512, 64, seed=seed) for seed, norm in enumerate((3, 3, 1)))
    exact = F.scaled_dot_product_attention(q, k, v, scale=1.0)
    errors = {
        rule: float((hrf.attention(q, k, v, phi, scale=1.0, denominator=rule) - exact).norm() / exact.norm())
        for rule in ("clamp", "none")
    }
    assert errors["clamp"] < errors["none"]
    box = (v.amax(-2, keepdim=True) - v.amin(-2, keepdim=True)).norm() * 512**0.5
    assert errors["clamp"] <= float(box / exact.norm())


@both_ways
@pytest.mark.parametrize("norm", [0, 3, 10, 30, 50, 100, 10_000])
@pytest.mark.parametrize("name", MAPS)
def test_finite_and_in_the_box_at_any_norm(name, norm, is_causal):
    phi = build(name).float()
    tensors = [
        vectors(n, 2, 4, 12, phi.dim, seed=seed).requires_grad_() for seed, n in enumerate((norm, norm, 1))
    ]
    outputs = [
        attend(*tensors, phi, scale=1.0, is_causal=is_causal)
        for attend in (hrf.attention, reference.attention)
    ]
    v = tensors[2].detach()
    low, high = v.amin(-2, keepdim=True), v.amax(-2, keepdim=True)
    slack = 64 * torch.finfo(torch.float32).eps
    for out in outputs:
        assert out.isfinite().all()
        assert (out >= low - slack).all()
        assert (out <= high + slack).all()
        for grad in torch.autograd.grad(out.sum(), tensors, retain_graph=True):
            assert grad.isfinite().all()


@pytest.mark.parametrize("norm", [50, 100])
def test_positive_features_at_large_norms(norm):
    """A value of one everywhere comes back as one, however many products underflow, and gradients are finite."""
    phi = hrf.Positive(64, n_projections=128, generator=torch.Generator().manual_seed(0))
    q, k = (vectors(norm, 1, 10, 128, 64, seed=seed).requires_grad_() for seed in range(2))
    out = hrf.attention(q, k, torch.ones(1, 10, 128, 1), phi, scale=1.0)
    torch.testing.assert_close(out, torch.ones_like(out))
    for grad in torch.autograd.grad(out.sum(), (q, k)):
        assert grad.isfinite().all()


@pytest.mark.parametrize("name", ["trigonometric", "angular hybrid", "clustered moments"])
def test_decoding_keeps_the_box(name):
    phi, whole, pieces = build(name), hrf.Denominator(), hrf.Denominator()
    q, k, v = (3 * random(2, 4, 10, phi.dim, seed=seed) for seed in range(3))
    expected = hrf.attention(q, k, v, phi, is_causal=True, scale=1.0, denominator=whole)
    state = hrf.AttentionState(phi, scale=1.0, denominator=pieces)
    received = [state.prefill(q[..., :6, :], k[..., :6, :], v[..., :6, :])]
    received += [state.step(*(t[..., i, :] for t in (q, k, v))).unsqueeze(-2) for i in range(6, 10)]
    torch.testing.assert_close(torch.cat(received, -2), expected)
    assert (whole.clamped, whole.clipped) == (pieces.clamped, pieces.clipped)

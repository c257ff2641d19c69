"""Positive features without scales: used where they fit, right up to the edge."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import hrf
from attention.data import random
from hrf import tuning
from hrf._attention import dense as small
from hrf._attention import reference
from hrf._attention.call import prepare
from hrf._attention.denominator import Denominator
from hrf._attention.dense import UnscaledPositive
from hrf._attention.inputs import check


@torch.no_grad()
def serves(query: Tensor, key: Tensor, phi: hrf.FeatureMap) -> bool:
    inputs = check(query, key, key, phi, paired=False, key_padding_mask=None, scale=1.0).for_map(phi)
    call, tensors = prepare(inputs, phi, Denominator("clamp"))
    engine = UnscaledPositive.of(call, *tensors)
    return engine is not None and engine.bidirectional() is not None


@pytest.fixture
def phi() -> hrf.Positive:
    return hrf.Positive(4, n_projections=8, generator=torch.Generator().manual_seed(0))


def edge(phi: hrf.Positive, share: float) -> Tensor:
    """A vector along the longest ω whose exponent is a share of the largest allowed: ``(1, 1, 1, d)``."""
    lengths = phi.projection.omega.norm(dim=-1)
    along = phi.projection.omega[lengths.argmax()] / lengths.max()
    return (along * share * small._EXPONENT / lengths.max())[None, None, None]


def test_serves_what_fits(phi: hrf.Positive) -> None:
    x, y = random(1, 2, 5, 4, seed=0), random(1, 2, 5, 4, seed=1)
    assert serves(x, y, phi)
    assert serves(edge(phi, 0.99), y[:, :1], phi)
    assert not serves(edge(phi, 3), y[:, :1], phi)
    assert not serves(x[:, :1], edge(phi, 1.01), phi)
    assert not serves(x, y * 2 * math.sqrt(small._SQUARE), phi)
    assert not serves(x[..., :0, :], y, phi)
    assert not serves(x, y, hrf.Trigonometric(4, n_projections=8))
    assert not serves(x, y, hrf.Exponential(4, n_projections=8, query_shift=torch.ones(4)))


@pytest.mark.parametrize("is_causal", [False, True])
def test_at_the_edge(phi: hrf.Positive, is_causal: bool) -> None:
    """Exponents as large as allowed, of both signs, in float32: as good as far from the edge."""
    longest = math.sqrt(2 * small._SQUARE)
    x = edge(phi, 0.99) * torch.tensor([1.0, -1.0, 0.1])[:, None]
    y = x * min(1, 0.99 * longest / float(x.norm(dim=-1).max()))
    v = random(1, 1, 3, 2, seed=2).float()
    inputs = [u.float().requires_grad_() for u in (x, y, v)]
    assert serves(*inputs[:2], phi)
    wide = [u.detach().double().requires_grad_() for u in inputs]
    out = hrf.attention(*inputs, phi, is_causal=is_causal, scale=1.0)
    expected = reference.attention(*wide, phi, is_causal=is_causal, scale=1.0)
    # A sum of d + 1 terms rounds an exponent by (d + 1)·t·eps, a weight has two of them, an output two weights.
    bound = 4 * (4 + 1) * small._EXPONENT * torch.finfo(torch.float32).eps
    assert (out - expected).abs().max() <= bound * v.abs().max()
    out.sum().backward()
    expected.sum().backward()
    for mine, theirs in zip(inputs, wide, strict=True):
        assert (mine.grad - theirs.grad).abs().max() <= bound * max(1, float(theirs.grad.abs().max()))


@pytest.mark.parametrize("is_causal", [False, True])
def test_blocks_change_nothing(phi: hrf.Positive, is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (random(2, 3, 300, 4, seed=seed) for seed in range(3))
    whole = hrf.attention(q, k, v, phi, is_causal=is_causal)
    monkeypatch.setattr(tuning, "UNSCALED_FLOATS", 16 * 70)
    monkeypatch.setattr(tuning, "UNSCALED_ROWS", 33)
    parts = hrf.attention(q, k, v, phi, is_causal=is_causal)
    assert (whole - parts).abs().max() <= 300 * torch.finfo(torch.float64).eps * v.abs().max()


@pytest.mark.parametrize("is_causal", [False, True])
def test_opposite_vectors_at_the_edge(phi: hrf.Positive, is_causal: bool) -> None:
    """The least sums there are, and large values: nothing overflows in the backward pass."""
    y = torch.zeros(1, 1, 2, 4)
    y[..., 0] = 0.99 * math.sqrt(2 * small._SQUARE)
    v = 1e10 * random(1, 1, 2, 3, seed=2).float()
    inputs = [u.requires_grad_() for u in (-y, y, v)]
    assert serves(*inputs[:2], phi)
    wide = [u.detach().double().requires_grad_() for u in inputs]
    hrf.attention(*inputs, phi, is_causal=is_causal, scale=1.0).sum().backward()
    reference.attention(*wide, phi, is_causal=is_causal, scale=1.0).sum().backward()
    # As above; a gradient is a difference of two terms of size ω Σ|v|.
    bound = 4 * (4 + 1) * small._EXPONENT * torch.finfo(torch.float32).eps
    largest = phi.projection.omega.abs().max() * v.detach().abs().sum()
    for mine, theirs in zip(inputs, wide, strict=True):
        assert (mine.grad - theirs.grad).abs().max() <= bound * largest

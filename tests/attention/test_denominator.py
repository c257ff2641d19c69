"""The quadratic twin against PyTorch; the rule of small denominators; outputs in the box of the values."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention

import hrf
from attention.data import inputs, padding, random
from features.registry import DIM, MAPS, build
from hrf._attention import reference
from hrf._attention.denominator import FLOOR, key_moments, log_bound
from hrf._attention.inputs import check


class Exact(hrf.FeatureMap):
    """The softmax kernel itself, to any precision that its Taylor series has: no error of estimation."""

    nonnegative = True

    def __init__(self) -> None:
        super().__init__()
        self.dim, self.heads, self.feature_dim = DIM, None, 0

    def scaled_estimate(self, x, y):
        logs = hrf.kernels.log_softmax_kernel(x, y)
        return hrf.Features(torch.ones_like(logs), logs)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("is_causal", [False, True])
def test_is_softmax_attention_where_the_estimate_is_exact(is_causal, scale):
    q, k, v = inputs(2)
    expected = scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale)
    received = reference.attention(q, k, v, Exact(), is_causal=is_causal, scale=scale)
    torch.testing.assert_close(received, expected)


def test_padding_and_grouped_queries_are_those_of_pytorch():
    q, k, v = inputs(2, heads=4, key_heads=2)
    ignore = padding(2, 9)
    repeated = (t.repeat_interleave(2, -3) for t in (k, v))
    expected = scaled_dot_product_attention(q, *repeated, ~ignore[:, None, None])
    torch.testing.assert_close(reference.attention(q, k, v, Exact(), key_padding_mask=ignore), expected)


def test_gaussian_kernel_attention_is_the_nadaraya_watson_estimate():
    q, k, v = inputs(heads=1)
    phi = hrf.GaussianKernel(Exact())
    weights = hrf.kernels.gaussian(q, k)
    expected = weights @ v / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(reference.attention(q, k, v, phi, scale=1.0), expected)


NONNEGATIVE = {
    *("positive", "exponential single", "exponential real diagonal", "exponential real full"),
    *("exponential shifted", "favor++", "favor#", "favor# asymmetric", "gaussian kernel of positive"),
    *(f"clustered {kind}" for kind in ("paper", "separable", "shrunk", "with metric", "with default")),
}


@pytest.mark.parametrize("name", MAPS)
def test_maps_that_say_so_are_never_negative(name):
    phi = build(name)
    assert phi.nonnegative == (name in NONNEGATIVE)
    x, y, _ = inputs(length=50)
    if phi.nonnegative:
        assert (phi.queries(3 * x) >= 0).all()
        assert (phi.keys(3 * y) >= 0).all()
    else:
        assert (phi.estimate(3 * x, 3 * y) < 0).any()


@pytest.mark.parametrize("name", ["trigonometric", "gaussian kernel of angular"])
def test_the_bound_is_below_the_true_denominator(name):
    phi = build(name)
    given = check(*inputs(2), phi, scale=1.0)
    bound = log_bound(phi, given.query, key_moments(given, phi).sum(2, keepdim=True))
    logs = phi.log_kernel(given.query, given.key)
    assert (bound <= logs.logsumexp(-1, keepdim=True)).all()
    torch.testing.assert_close(bound[..., 0], logs.mean(-1) + math.log(9))


def _far_apart() -> tuple[torch.Tensor, ...]:
    """Keys that are far from the queries: trigonometric estimates are noise there, of either sign."""
    q, k, v = (t.detach() for t in inputs(2, length=40))
    return 4 * q, 4 * k, v


def test_small_denominators_are_clamped_and_counted():
    q, k, v = _far_apart()
    phi = build("trigonometric")
    rule = hrf.Denominator()
    out = hrf.attention(q, k, v, phi, denominator=rule, scale=1.0)
    weights = phi.estimate(q, k)
    bound = 40 * (q @ k.mean(-2, keepdim=True).mT).exp()
    low = weights.sum(-1, keepdim=True) < FLOOR * bound
    assert 0 < low.sum() < low.numel()
    assert (rule.rows, rule.clamped) == (low.numel(), int(low.sum()))
    quotient = (weights @ v / weights.sum(-1, keepdim=True)).clamp(
        v.amin(-2, keepdim=True), v.amax(-2, keepdim=True)
    )
    expected = torch.where(low, v.mean(-2, keepdim=True), quotient)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-12)
    assert repr(rule) == f"Denominator('clamp', rows=320, clamped={rule.clamped}, clipped={rule.clipped})"
    assert 0 < rule.clipped <= low.numel() - rule.clamped
    hrf.attention(q, k, v, phi, denominator=rule, scale=1.0)
    assert rule.rows == 2 * low.numel()


def test_none_divides_as_is():
    q, k, v = _far_apart()
    phi = build("trigonometric")
    weights = phi.estimate(q, k)
    out = hrf.attention(q, k, v, phi, denominator="none", scale=1.0)
    torch.testing.assert_close(out, weights @ v / weights.sum(-1, keepdim=True), rtol=1e-6, atol=0)


def test_raise_refuses_with_counts_and_advice():
    q, k, v = _far_apart()
    with pytest.raises(ValueError, match=r"\d+ of 320 denominators .* use more projections"):
        hrf.attention(q, k, v, build("trigonometric"), denominator="raise", scale=1.0)
    hrf.attention(q / 40, k / 40, v, build("trigonometric"), denominator="raise")


def test_positive_features_keep_their_ratio_however_small():
    q, k, v = (t.detach() for t in inputs(2))
    phi, rule = hrf.Positive(DIM, n_projections=4).double(), hrf.Denominator("raise")
    # Kernel values around exp(±3000).
    out = hrf.attention(40 * q, 40 * k, v, phi, denominator=rule, scale=1.0)
    assert rule.clamped == 0
    assert out.isfinite().all()
    # A mean of values with weights that are not negative.
    assert (out <= v.amax(-2, keepdim=True) + 1e-12).all()
    assert (out >= v.amin(-2, keepdim=True) - 1e-12).all()


def test_rows_with_a_small_denominator_pass_no_gradient_on():
    q, k, v = (t.clone().requires_grad_() for t in _far_apart())
    phi = build("trigonometric")
    low = phi.estimate(q, k).sum(-1) < FLOOR * 40 * (q @ k.mean(-2, keepdim=True).mT).squeeze(-1).exp()
    out = hrf.attention(q, k, v, phi, scale=1.0)
    (grad,) = torch.autograd.grad(out[low].sum(), q, retain_graph=True)
    assert not grad.any()
    out.sum().backward()
    for t in (q, k, v):
        assert t.grad.isfinite().all()
        assert t.grad.any()


# Outputs in the box of the values.


both_ways = pytest.mark.parametrize("is_causal", [False, True], ids=["bidirectional", "causal"])


def vectors(norm: float, *shape: int, seed: int) -> torch.Tensor:
    return (norm * F.normalize(random(*shape, seed=seed), dim=-1)).float()


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

"""The quadratic twin itself: against softmax attention written with PyTorch alone."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import hrf
from attention.data import inputs, padding
from features.registry import DIM
from hrf._attention import reference


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

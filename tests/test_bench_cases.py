"""Explicit features of the benchmarks give the same estimate as the map."""

from __future__ import annotations

import torch

from benchmarks import attention


def test_explicit_features_are_those_of_the_map():
    torch.manual_seed(0)
    query, key, value = 0.3 * torch.randn(3, 1, attention.HEADS, 40, attention.DIM)  # no denominator near 0
    expected = attention.grouped()(query, key, value)
    for explicit in (attention.explicit(), attention.plain()):
        error = (explicit(query, key, value) - expected).abs()
        assert (error <= 100 * torch.finfo(torch.float32).eps * value.abs().amax()).all()

"""Float64 for all tests, and exact attention in place of ours: layers then agree with PyTorch's to rounding."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F


def exact(query, key, value, feature_map, *, attn_mask, is_causal, key_padding_mask, scale):
    mask = None
    if key_padding_mask is not None:
        ignored = key_padding_mask if key_padding_mask.dtype == torch.bool else key_padding_mask.isneginf()
        mask = ~ignored[..., None, None, :]
    if attn_mask is not None:
        seen = attn_mask if attn_mask.dtype == torch.bool else ~attn_mask.isneginf()
        mask = seen if mask is None else mask & seen
    if is_causal:
        causal = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        mask = causal if mask is None else mask & causal
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


@pytest.fixture
def with_exact(monkeypatch):
    monkeypatch.setattr("hrf.nn.attention", exact)


@pytest.fixture(autouse=True)
def _double():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)

"""Inputs, and exact attention in place of ours: models then have to agree with Transformers to rounding."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn import functional as F

import hrf
from hrf.integrations.transformers import attention, caches, register
from integrations.models import BATCH, LENGTH, VOCABULARY


@pytest.fixture(autouse=True)
def tokens():
    register("hrf", partial(hrf.Positive, n_projections=32))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        yield torch.randint(1, VOCABULARY, (BATCH, LENGTH), generator=generator)


def exact(query, key, value, feature_map, *, is_causal, key_padding_mask, scale, denominator):
    groups = query.shape[1] // key.shape[1]
    key, value = (u.repeat_interleave(groups, 1) for u in (key, value))
    seen = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
    seen = seen.tril() if is_causal else seen
    if key_padding_mask is not None:
        seen = seen & ~key_padding_mask[:, None, None]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scale)


class ExactState:
    """Exact attention behind the interface of `hrf.AttentionState`; it keeps keys and values."""

    def __init__(self, feature_map, *, scale):
        self.scale, self.kept = scale, {}

    def load(self, tensors):
        self.kept = dict(tensors)
        return self

    def tensors(self):
        return self.kept

    def prefill(self, query, key, value, *, key_padding_mask):
        ignore = torch.zeros(len(key), key.shape[2], dtype=torch.bool)
        new = {"key": key, "value": value, "ignore": ignore if key_padding_mask is None else key_padding_mask}
        axes = {"key": 2, "value": 2, "ignore": 1}
        self.kept = {n: torch.cat([self.kept[n], u], axes[n]) if self.kept else u for n, u in new.items()}
        query = F.pad(query, (0, 0, self.kept["key"].shape[2] - query.shape[2], 0))
        key, value, ignore = (self.kept[n] for n in axes)
        options = {"is_causal": True, "key_padding_mask": ignore, "scale": self.scale, "denominator": None}
        return exact(query, key, value, None, **options)[:, :, -new["key"].shape[2] :]


@pytest.fixture
def with_exact(monkeypatch):
    monkeypatch.setattr(attention, "attention", exact)
    monkeypatch.setattr(caches, "AttentionState", ExactState)

"""Hashes of keys and values: the core and its twin agree, parts and any layout do, and each change shows."""

from __future__ import annotations

import pytest
import torch

from hrf.integrations.transformers import decoding as module
from hrf.integrations.transformers.decoding import hashes

SHAPE = 2, 3, 9, 8
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def vectors(dtype=torch.float32):
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("before", [0, 4, 9])
def test_the_core_and_pytorch_agree(dtype, before, monkeypatch):
    received = hashes(vectors(dtype), before)
    monkeypatch.setattr(module.core, "instructions", lambda: None)
    monkeypatch.setattr(module, "_TOKENS", 12)
    assert torch.equal(hashes(vectors(dtype), before), received)


@pytest.mark.parametrize("dtype", DTYPES)
def test_layout_does_not_matter_and_the_first_tokens_are_a_hash_of_their_own(dtype):
    whole = hashes(vectors(dtype), 4)
    assert torch.equal(hashes(vectors(dtype)[:, :, :4], 0)[1], whole[0])
    other = vectors(dtype).transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(hashes(other, 4), whole)
    assert torch.equal(hashes(vectors(dtype).mT.contiguous().mT, 4), whole)
    assert torch.equal(hashes(torch.cat([vectors(dtype)] * 2, 2)[:, :, :9], 4), whole)


def test_no_tokens_and_more_tokens():
    assert not hashes(vectors()[:, :, :0], 0).any()
    long = torch.randn(1, 1, 3000, 2)
    assert torch.equal(hashes(long, 1000)[0], hashes(long[:, :, :1000], 0)[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_change_shows(dtype):
    before = hashes(vectors(dtype), 9)
    for change in (
        lambda u: u.neg_(),
        lambda u: u[0, 1, 2:4].neg_(),
        lambda u: u.copy_(u.flip(2)),
        lambda u: u.copy_(u.flip(3)),
        lambda u: u[1, 2, 3, 4].mul_(2),
        lambda u: u.mul_(2),
        lambda u: u[0, 0, 0].zero_(),
    ):
        changed = vectors(dtype)
        change(changed)
        assert not torch.equal(hashes(changed, 9), before)

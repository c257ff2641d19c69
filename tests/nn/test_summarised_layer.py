"""`hrf.nn.MultiheadAttention` with summaries against PyTorch's layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hrf


def layers(tolerance):
    torch.manual_seed(0)
    exact = nn.MultiheadAttention(16, 2, batch_first=True, dtype=torch.float64).eval()
    method = hrf.SummarisedAttention(4, 4, tolerance)
    return exact, hrf.nn.MultiheadAttention.from_torch(exact, attention=method)


def test_without_tolerance_it_is_the_exact_layer():
    exact, mine = layers(1e-30)
    x = torch.randn(2, 20, 16, dtype=torch.float64)
    ignore = torch.arange(20) >= torch.tensor([[20], [13]])
    expected, _ = exact(x, x, x, key_padding_mask=ignore, need_weights=False)
    received, _ = mine(x, x, x, key_padding_mask=ignore)
    assert (received - expected)[~ignore].abs().max() <= 1e-10
    expected, _ = exact(x[:, :9], x, x, key_padding_mask=ignore, need_weights=False)
    received, _ = mine(x[:, :9], x, x, key_padding_mask=ignore)
    assert (received - expected).abs().max() <= 1e-10


def test_padding_of_self_attention_is_in_no_group():
    _, mine = layers(1.0)
    x, ignore = torch.randn(1, 20, 16, dtype=torch.float64), torch.arange(20)[None] >= 15
    loud = x.masked_fill(ignore[..., None], 1e3)
    outputs = [mine(u, u, u, key_padding_mask=ignore)[0][:, :15] for u in (x, loud)]
    assert torch.equal(*outputs)


def test_other_methods_are_refused():
    with pytest.raises(TypeError, match="expected a hrf"):
        hrf.nn.MultiheadAttention(16, 2, attention="summarised")


def test_an_encoder_layer_hands_it_on():
    method = hrf.SummarisedAttention(tolerance=0.0)
    layer = hrf.nn.TransformerEncoderLayer(16, 2, batch_first=True, attention=method).eval()
    exact = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True).eval()
    exact.load_state_dict(
        {name: tensor for name, tensor in layer.state_dict().items() if name in exact.state_dict()}
    )
    x = torch.randn(1, 300, 16)
    assert layer.self_attn.attention is method
    assert torch.allclose(layer(x), exact(x), atol=1e-5)

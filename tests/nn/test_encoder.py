"""Encoder layers against PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hrf
from nn.layers import BATCH, KEYS, ROUNDING, WIDTH, padding, positive


@pytest.mark.parametrize("mode", ["train", "eval", "inference"])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_encoder_agrees_with_pytorch(mode, norm_first, batch_first, with_exact):
    options = {"dropout": 0.0, "batch_first": batch_first, "norm_first": norm_first, "activation": "gelu"}
    reference, ours = (
        nn.TransformerEncoder(cls(WIDTH, 2, 16, **options), num_layers=2, enable_nested_tensor=False)
        for cls in (nn.TransformerEncoderLayer, hrf.nn.TransformerEncoderLayer)
    )
    for parameter in reference.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours.load_state_dict(reference.state_dict())
    x = torch.randn(BATCH, KEYS, WIDTH) if batch_first else torch.randn(KEYS, BATCH, WIDTH)
    mask = padding()
    read = ~mask if batch_first else ~mask.T  # PyTorch's fast path sets padded rows to 0
    for model in (reference, ours):
        model.train(mode == "train")
    with torch.inference_mode(mode == "inference"):
        expected, output = (m(x, src_key_padding_mask=mask)[read] for m in (reference, ours))
        torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)  # two layers with norms
        causal = nn.Transformer.generate_square_subsequent_mask(KEYS)
        expected, output = (m(x, mask=causal, is_causal=True) for m in (reference, ours))
        torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("nested", [True, False])
def test_pytorch_does_not_pass_by_our_attention(nested):
    """Its encoder layers would compute exact attention from the parameters alone in inference."""
    plain = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    plain.self_attn = hrf.nn.MultiheadAttention.from_torch(plain.self_attn, feature_map=positive)
    own = hrf.nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, feature_map=positive)
    x, mask = torch.randn(BATCH, KEYS, WIDTH), torch.arange(KEYS) >= torch.tensor([[KEYS], [4]])
    for layer in (plain, own):
        layer.eval()
        expected = layer(x, src_key_padding_mask=mask)  # with autograd there is no fast path
        with torch.inference_mode():
            torch.testing.assert_close(layer(x, src_key_padding_mask=mask), expected, **ROUNDING)
        if nested:
            with pytest.warns(UserWarning, match="enable_nested_tensor"):
                encoder = nn.TransformerEncoder(layer, num_layers=1)
        else:
            encoder = nn.TransformerEncoder(layer, num_layers=1, enable_nested_tensor=False)
        with torch.inference_mode():
            output = encoder.eval()(x, src_key_padding_mask=mask)
        torch.testing.assert_close(output, expected, **ROUNDING)

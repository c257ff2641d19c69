"""Multi-head attention against PyTorch's: outputs, weights, masks, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hrf
from nn.layers import BATCH, HEADS, KEYS, LENGTH, ROUNDING, WIDTH, padding, pair

SHAPES = {
    "unbatched": ({}, (LENGTH, WIDTH), (KEYS, WIDTH), (KEYS, WIDTH)),
    "length first": ({}, (LENGTH, BATCH, WIDTH), (KEYS, BATCH, WIDTH), (KEYS, BATCH, WIDTH)),
    "batch first": (
        {"batch_first": True},
        (BATCH, LENGTH, WIDTH),
        (BATCH, KEYS, WIDTH),
        (BATCH, KEYS, WIDTH),
    ),
    "no bias": (
        {"batch_first": True, "bias": False},
        (BATCH, LENGTH, WIDTH),
        (BATCH, KEYS, WIDTH),
        (BATCH, KEYS, WIDTH),
    ),
    "other widths": (
        {"batch_first": True, "kdim": 9, "vdim": 8},
        (BATCH, LENGTH, WIDTH),
        (BATCH, KEYS, 9),
        (BATCH, KEYS, 8),
    ),
}


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("masked", [None, "booleans", "numbers"])
@pytest.mark.parametrize("case", SHAPES)
def test_agrees_with_pytorch(case, masked, average, with_exact):
    options, *shapes = SHAPES[case]
    reference, layer = pair(**options)
    inputs = [torch.randn(shape) for shape in shapes]
    mask = None
    if masked is not None:
        mask = padding()[0] if case == "unbatched" else padding()
        if masked == "numbers":
            mask = torch.zeros(mask.shape).masked_fill(mask, -torch.inf)
    expected, weights = reference(*inputs, key_padding_mask=mask, average_attn_weights=average)
    output, nothing = layer(*inputs, key_padding_mask=mask)
    assert nothing is None
    torch.testing.assert_close(output, expected, **ROUNDING)
    output, estimated = layer(*inputs, key_padding_mask=mask, need_weights=True, average_attn_weights=average)
    torch.testing.assert_close(output, expected, **ROUNDING)
    torch.testing.assert_close(estimated, weights, **ROUNDING)


@pytest.mark.parametrize("mask", [None, "booleans", "numbers", "for each head"])
@pytest.mark.parametrize("hint", [True, False])
def test_causal_mask_in_every_form(mask, hint, with_exact):
    reference, layer = pair(batch_first=True)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    causal = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=x.dtype)
    expected, _ = reference(x, x, x, attn_mask=causal)
    forms = {
        None: None,
        "booleans": causal.isneginf(),
        "numbers": causal,
        "for each head": causal.expand(BATCH * HEADS, -1, -1),
    }
    if mask is None and not hint:
        expected, _ = reference(x, x, x)
    output, _ = layer(x, x, x, attn_mask=forms[mask], is_causal=hint)
    torch.testing.assert_close(output, expected, **ROUNDING)


@pytest.mark.parametrize("need_weights", [False, True])
def test_calls_attention_with_its_map(need_weights):
    _, layer = pair(batch_first=True)
    x, mask = torch.randn(BATCH, KEYS, WIDTH), padding()
    q, k, v = (F.linear(x, w) for w in layer.in_proj_weight.chunk(3))
    q, k, v = (
        (u + b).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for u, b in zip((q, k, v), layer.in_proj_bias.chunk(3), strict=True)
    )
    mixed = hrf.attention(q, k, v, layer.feature_map, is_causal=True, key_padding_mask=mask)
    expected = layer.out_proj(mixed.transpose(1, 2).flatten(-2))
    output, _ = layer(x, x, x, key_padding_mask=mask, is_causal=True, need_weights=need_weights)
    torch.testing.assert_close(
        output, expected, rtol=1e-10, atol=1e-10
    )  # weights come in another order of sums


def test_weights_are_the_normalised_estimates():
    _, layer = pair(batch_first=True)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    _, weights = layer(x, x, x, need_weights=True, average_attn_weights=False)
    q, k, _ = layer._projected(x, x, x)
    root = (WIDTH // HEADS) ** -0.25
    estimates = layer.feature_map.estimate(q * root, k * root)
    torch.testing.assert_close(weights, estimates / estimates.sum(-1, keepdim=True), **ROUNDING)


def test_normalised_logits_are_cosines(with_exact):
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, normalize=True)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    _, weights = layer(x, x, x, need_weights=True, average_attn_weights=False)
    q, k, _ = layer._projected(x, x, x)
    cosines = F.cosine_similarity(q.unsqueeze(-2), k.unsqueeze(-3), dim=-1)
    torch.testing.assert_close(weights, cosines.softmax(-1), **ROUNDING)


def test_masks_that_cannot_be_honoured_are_refused():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS)
    x = torch.randn(LENGTH, WIDTH)
    window = nn.Transformer.generate_square_subsequent_mask(LENGTH).T
    for hint in (True, False):
        with pytest.raises(
            ValueError, match=r"attn_mask of .* and shape \(5, 5\) .* is not causal over 5 queries"
        ):
            layer(x, x, x, attn_mask=window, is_causal=hint)
    for shape in ((1, 1), (3, 3), (LENGTH,), (HEADS + 1, LENGTH, LENGTH)):
        mask = torch.ones(shape, dtype=torch.bool)
        with pytest.raises(ValueError, match=r"attn_mask has shape .*; expected \(5, 5\), or \(3, 5, 5\)"):
            layer(x, x, x, attn_mask=mask.triu(1) if mask.ndim > 1 else mask)
    with pytest.raises(ValueError, match=r"attn_mask of torch.float64 .*has values besides 0 and −inf"):
        layer(x, x, x, attn_mask=torch.randn(LENGTH, LENGTH))
    with pytest.raises(ValueError, match=r"key_padding_mask of torch.float64 has values besides"):
        layer(x, x, x, key_padding_mask=torch.randn(LENGTH))


def test_arguments_that_cannot_be_honoured_are_refused():
    with pytest.raises(ValueError, match="add_bias_kv"):
        hrf.nn.MultiheadAttention(WIDTH, HEADS, add_bias_kv=True)
    with pytest.raises(ValueError, match="feature_map is 'linear'; expected one of positive, angular"):
        hrf.nn.MultiheadAttention(WIDTH, HEADS, feature_map="linear")
    with pytest.raises(ValueError, match="has dim=5, heads=None; expected dim=4, heads=3"):
        hrf.nn.MultiheadAttention(WIDTH, HEADS, feature_map=hrf.Positive(5, n_projections=4))
    with pytest.raises(ValueError, match="redraw_every is 0"):
        hrf.nn.MultiheadAttention(WIDTH, HEADS, redraw_every=0)

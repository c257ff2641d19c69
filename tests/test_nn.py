"""Layers against PyTorch's: with exact attention put in place of ours they have to agree to rounding."""

from __future__ import annotations

import copy
import itertools
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hrf
from hrf.nn import multihead

WIDTH, HEADS, BATCH, LENGTH, KEYS = 12, 3, 2, 5, 7
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}  # float64, sums of a dozen terms

positive = partial(hrf.Positive, n_projections=16)


def exact(query, key, value, feature_map, *, is_causal, key_padding_mask, scale):
    mask = None if key_padding_mask is None else ~key_padding_mask[..., None, None, :]
    if is_causal:
        causal = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        mask = causal if mask is None else mask & causal
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


@pytest.fixture
def with_exact(monkeypatch):
    monkeypatch.setattr(multihead, "attention", exact)


@pytest.fixture(autouse=True)
def _double():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def pair(**options):
    """PyTorch's layer with random biases, and ours with its parameters."""
    reference = nn.MultiheadAttention(WIDTH, HEADS, **options)
    for parameter in reference.parameters():
        nn.init.normal_(parameter, std=0.5)
    return reference, hrf.nn.MultiheadAttention.from_torch(reference, feature_map=positive)


def padding():
    mask = torch.zeros(BATCH, KEYS, dtype=torch.bool)
    mask[0, 4:] = mask[1, 2] = True
    return mask


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
    causal = nn.Transformer.generate_square_subsequent_mask(LENGTH)
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


# Parameters.


class Model(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer


def test_state_dict_of_pytorch_leaves_the_map_alone():
    reference, _ = pair()
    model = Model(hrf.nn.MultiheadAttention(WIDTH, HEADS, feature_map=positive))
    omega = model.layer.feature_map.projection.omega.clone()
    model.load_state_dict(Model(reference).state_dict())
    assert torch.equal(model.layer.in_proj_weight, reference.in_proj_weight)
    assert torch.equal(model.layer.feature_map.projection.omega, omega)


def test_own_state_dict_brings_map_and_count():
    first, second = (hrf.nn.MultiheadAttention(WIDTH, HEADS, redraw_every=2) for _ in range(2))
    x = torch.randn(LENGTH, WIDTH)
    for _ in range(3):
        first(x, x, x)
    second.load_state_dict(first.state_dict())
    assert second.passes == 3
    assert torch.equal(second(x, x, x)[0], first(x, x, x)[0])


def test_a_state_dict_with_part_of_a_map_is_refused():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, feature_map=positive)
    state = layer.state_dict()
    del state["feature_map.projection.omega"]
    with pytest.raises(RuntimeError, match="omega"):
        layer.load_state_dict(state)


def test_conversion_keeps_what_a_module_is():
    reference = nn.MultiheadAttention(
        WIDTH, HEADS, dropout=0.25, kdim=9, batch_first=True, dtype=torch.bfloat16
    )
    reference.eval().out_proj.requires_grad_(False)
    layer = hrf.nn.MultiheadAttention.from_torch(reference, feature_map="positive")
    assert (layer.dropout, layer.kdim, layer.batch_first, layer.training) == (0.25, 9, True, False)
    assert {n: p.requires_grad for n, p in layer.named_parameters()} == {
        n: p.requires_grad for n, p in reference.named_parameters()
    }
    assert layer.k_proj_weight.dtype == torch.bfloat16
    assert layer.feature_map.projection.omega.dtype == torch.float32  # features need it
    x, y = torch.randn(1, LENGTH, WIDTH).bfloat16(), torch.randn(1, KEYS, 9).bfloat16()
    assert layer(x, y, torch.randn(1, KEYS, WIDTH).bfloat16())[0].dtype == torch.bfloat16


@pytest.mark.parametrize("feature_map", ["angular", "positive", "trigonometric"])
def test_maps_by_name(feature_map):
    draws = [
        hrf.nn.MultiheadAttention(
            WIDTH, HEADS, feature_map=feature_map, generator=torch.Generator().manual_seed(seed)
        )
        for seed in (1, 1, 2)
    ]
    assert draws[0].feature_map.heads == HEADS
    omegas = [next(layer.feature_map.all_projections()).omega for layer in draws]
    assert torch.equal(omegas[0], omegas[1])
    assert not torch.equal(omegas[0], omegas[2])


def test_a_given_map_is_used_as_it_is():
    phi = hrf.Positive(WIDTH // HEADS, n_projections=4)
    assert hrf.nn.MultiheadAttention(WIDTH, HEADS, feature_map=phi).feature_map is phi


# Training.


def test_every_parameter_gets_a_gradient():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, bias=True, dropout=0.1, redraw_every=1)
    x = torch.randn(LENGTH, WIDTH)
    layer(x, x, x)[0].square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("widths", [{}, {"kdim": 9, "vdim": 8}])
def test_parameters_can_be_drawn_again(widths):
    layers = pair(**widths)
    for layer in layers:
        torch.manual_seed(1)
        layer._reset_parameters()
    for name, parameter in layers[0].named_parameters():
        assert torch.equal(layers[1].get_parameter(name), parameter)


def test_redraws_are_counted_in_training_only():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, feature_map=positive, redraw_every=2)
    x, seen = torch.randn(LENGTH, WIDTH), []
    for training in (True, False, True, False, True, True, True):
        layer.train(training)
        layer(x, x, x)
        seen.append(layer.feature_map.projection.omega.clone())
    same = [torch.equal(a, b) for a, b in itertools.pairwise(seen)]
    assert same == [True, True, True, False, True, False]  # after passes 2 and 4 in training
    assert layer.passes == 5


def test_without_redraws_nothing_changes():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS)
    before = copy.deepcopy(layer.state_dict())
    x = torch.randn(LENGTH, WIDTH)
    layer(x, x, x)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_gradients_are_those_of_the_map_that_was_used():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, feature_map=positive, redraw_every=1)
    x = torch.randn(LENGTH, WIDTH)
    output, _ = layer(x, x, x)
    expected = torch.autograd.grad(output.sum(), layer.in_proj_weight, retain_graph=True)
    layer(x, x, x)  # with a new ω
    torch.testing.assert_close(torch.autograd.grad(output.sum(), layer.in_proj_weight), expected, **ROUNDING)


def test_dropout_drops_keys_in_training_only(monkeypatch):
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, dropout=0.5, feature_map=positive)
    x = torch.randn(LENGTH, WIDTH)
    kept = torch.tensor([2.0, 0, 2, 0, 2]).expand(HEADS, -1).unsqueeze(-1)
    monkeypatch.setattr(F, "dropout", lambda ones, p: ones * kept)
    dropped, _ = layer(x, x, x)
    q, k, v = layer._projected(x, x, x)
    mixed = hrf.attention(q, k, v * kept, layer.feature_map)
    torch.testing.assert_close(dropped, layer.out_proj(mixed.transpose(-3, -2).flatten(-2)), **ROUNDING)
    layer.eval()
    mixed = hrf.attention(q, k, v, layer.feature_map)
    output, _ = layer(x, x, x)
    torch.testing.assert_close(output, layer.out_proj(mixed.transpose(-3, -2).flatten(-2)), **ROUNDING)


@pytest.mark.stat
def test_dropout_keeps_the_mean():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, dropout=0.3, feature_map=positive)
    x, n = torch.randn(LENGTH, WIDTH), 2000
    many = x.unsqueeze(1).expand(-1, n, -1)
    outputs = layer(many, many, many)[0].detach()
    error = outputs.std(1) / n**0.5
    assert ((outputs.mean(1) - layer.eval()(x, x, x)[0]).abs() < 5 * error).all()


# Encoders.


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


# Errors.


def test_masks_that_cannot_be_honoured_are_refused():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS)
    x = torch.randn(LENGTH, WIDTH)
    window = nn.Transformer.generate_square_subsequent_mask(LENGTH).T
    for mask in (window, torch.zeros(LENGTH, LENGTH, dtype=torch.bool)):
        with pytest.raises(ValueError, match=r"attn_mask of shape \(5, 5\) is not the causal mask"):
            layer(x, x, x, attn_mask=mask, is_causal=True)
    for shape in ((1, 1), (3, 3), (LENGTH,), (HEADS + 1, LENGTH, LENGTH)):
        mask = torch.ones(shape, dtype=torch.bool)
        with pytest.raises(ValueError, match=r"attn_mask has shape .*; expected \(5, 5\), or \(3, 5, 5\)"):
            layer(x, x, x, attn_mask=mask.triu(1) if mask.ndim > 1 else mask)
    with pytest.raises(ValueError, match=r"attn_mask of torch.float64 has values besides 0 and −inf"):
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

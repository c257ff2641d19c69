"""Models with linear attention: masks, caches, precision, dropout, and maps made by a seed."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn import functional as F

import hrf
from hrf.integrations.transformers import register
from integrations.models import (
    BATCH,
    DECODERS,
    FAMILIES,
    HEADS,
    LAYERS,
    LENGTH,
    ROUNDING,
    WIDTH,
    bert,
    final,
    llama,
    made,
    padded,
)


def omegas(model):
    return [layer.self_attn.hrf_maps.popitem()[1].projection.omega for layer in model.model.layers]


@pytest.mark.parametrize("feature_map", ["positive", "angular"])
@pytest.mark.parametrize("build", FAMILIES)
def test_masked_tokens_change_nothing(build, feature_map, tokens):
    register("hrf", feature_map)
    model, mask = made(build), padded("middle")
    other = torch.where(mask.bool(), tokens, 1 + tokens % 7)
    assert not torch.equal(tokens, other)
    first, second = (final(model(ids, attention_mask=mask))[mask.bool()] for ids in (tokens, other))
    assert torch.equal(first, second)
    assert not torch.allclose(first, final(model(tokens))[mask.bool()])


@pytest.mark.parametrize("feature_map", ["positive", "angular"])
@pytest.mark.parametrize("build", DECODERS)
def test_future_tokens_change_nothing(build, feature_map, tokens):
    register("hrf", feature_map)
    model, other = made(build), tokens.clone()
    other[:, -1] = 1 + other[:, -1] % 7
    first, second = (model(ids).logits for ids in (tokens, other))
    torch.testing.assert_close(first[:, :-1], second[:, :-1], **ROUNDING)
    assert not torch.allclose(first[:, -1], second[:, -1])


@pytest.mark.parametrize("cache", [None, "dynamic", "static"])
@pytest.mark.parametrize("side", [None, "left"])
@pytest.mark.parametrize("build", DECODERS)
def test_generation_with_a_cache(build, side, cache, tokens):
    """Logits of each generated token equal the logits of a forward pass without a cache."""
    model, mask = made(build), padded(side) if side else torch.ones_like(tokens)
    options = {"use_cache": False} if cache is None else {"cache_implementation": cache}
    generated = model.generate(
        tokens,
        attention_mask=mask,
        max_new_tokens=6,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        disable_compile=True,
        **options,
    )
    for step, logits in enumerate(generated.logits):
        ids = generated.sequences[:, : LENGTH + step]
        seen = F.pad(mask, (0, step), value=1)
        positions = (seen.cumsum(-1) - 1).clamp(min=0)
        whole = model(ids, attention_mask=seen, position_ids=positions, use_cache=False).logits[:, -1]
        torch.testing.assert_close(logits.double(), whole, rtol=1e-4, atol=1e-4)  # they come in float32
        assert torch.equal(generated.sequences[:, LENGTH + step], whole.argmax(-1))


def test_attention_maps_are_the_estimated_weights(tokens):
    model = made(llama)
    maps = model(tokens, attention_mask=padded("right"), output_attentions=True).attentions
    assert len(maps) == LAYERS
    for weights in maps:
        assert weights.shape == (BATCH, HEADS, LENGTH, LENGTH)
        torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, HEADS, LENGTH).double(), **ROUNDING)
        assert weights.triu(1).abs().max() == 0
        assert weights[1, :, :, -4:].abs().max() == 0


def test_half_precision_is_that_of_the_model_not_of_the_map(tokens):
    model, half = made(llama), made(llama).bfloat16()
    output, expected = half(tokens).logits, model(tokens).logits
    assert output.dtype == torch.bfloat16
    assert omegas(half)[0].dtype == torch.float32
    assert (output - expected).norm() < 0.05 * expected.norm()  # a dozen roundings of 2⁻⁸


def test_training_drops_keys_and_reaches_every_parameter(tokens):
    model = made(bert, attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.0).train()
    with torch.enable_grad():
        first, second = (final(model(tokens)) for _ in range(2))
        second.square().sum().backward()
    assert not torch.allclose(first, second)
    used = {name: p for name, p in model.named_parameters() if "pooler" not in name}
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in used.values())
    model.eval()
    assert torch.equal(final(model(tokens)), final(model(tokens)))


def test_maps_are_given_by_the_seed_and_differ_between_layers(tokens):
    drawn = []
    for seed in (0, 0, 5):
        register("hrf", partial(hrf.Positive, n_projections=32), seed=seed)
        model = made(llama)
        model(tokens)
        drawn.append(omegas(model))
    assert drawn[0][0].shape == (HEADS, 32, WIDTH // HEADS)
    assert torch.equal(drawn[0][1], drawn[1][1])
    assert not torch.equal(drawn[0][0], drawn[0][1])
    assert not torch.equal(drawn[0][0], drawn[2][0])


def test_maps_are_no_part_of_the_state(tokens):
    model = made(llama)
    before = set(model.state_dict())
    model(tokens)
    assert set(model.state_dict()) == before


def test_a_name_registered_again_has_new_maps(tokens):
    model = made(llama)
    first = model(tokens).logits
    register("hrf", partial(hrf.Positive, n_projections=32), seed=9)
    assert not torch.allclose(model(tokens).logits, first)

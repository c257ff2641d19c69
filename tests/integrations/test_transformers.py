"""Small models of three families. With exact attention put in place of ours they have to agree to rounding."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch.nn import functional as F
from transformers import (
    BartConfig,
    BartModel,
    BertConfig,
    BertModel,
    Gemma2Config,
    Gemma2Model,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralModel,
    StaticCache,
    T5Config,
    T5Model,
    ViTConfig,
    ViTModel,
)

import hrf
from hrf._attention import reference
from hrf.integrations.transformers import FITTED, attention, convert, load_maps, register, save_maps

VOCABULARY, WIDTH, HEADS, LAYERS, BATCH, LENGTH = 40, 16, 4, 2, 2, 11
ROUNDING = {"rtol": 1e-9, "atol": 1e-9}  # float64, through two layers with norms

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "initializer_range": 0.4,  # attention that is far from uniform
}
GROUPED = {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}


def bert(**options):
    return BertModel(BertConfig(**SIZES, **options))


def gpt2(**options):
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        initializer_range=0.4,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config)


def llama(**options):
    return LlamaForCausalLM(LlamaConfig(**SIZES, **GROUPED, **options))


def made(build, implementation="hrf", **options):
    """A model with the same weights whenever it is asked for."""
    torch.manual_seed(0)
    model = build(**options).double().eval()
    model.set_attn_implementation(implementation)
    return model


def final(output):
    return output.logits if "logits" in output else output.last_hidden_state


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


@pytest.fixture
def with_exact(monkeypatch):
    monkeypatch.setattr(attention, "attention", exact)


def padded(side):
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[1, {"left": slice(3), "right": slice(-4, None), "middle": slice(2, 5)}[side]] = 0
    return mask


FAMILIES = [bert, gpt2, llama]
DECODERS = [gpt2, llama]


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("build", FAMILIES)
def test_agrees_with_exact_attention(build, side, tokens, with_exact):
    mask = None if side is None else padded(side)
    expected, output = (final(made(build, name)(tokens, attention_mask=mask)) for name in ("sdpa", "hrf"))
    real = slice(None) if mask is None else mask.bool()
    torch.testing.assert_close(output[real], expected[real], **ROUNDING)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("pieces", [(8, 3), (8, 1, 1, 1), (4, 4, 3)])
@pytest.mark.parametrize("build", DECODERS)
def test_cached_pieces_agree_with_exact_attention(build, pieces, cache, tokens, with_exact):
    expected = final(made(build, "sdpa")(tokens, attention_mask=padded("left")))
    model, outputs, start = made(build), [], 0
    past = StaticCache(config=model.config, max_cache_len=20) if cache == "static" else None
    for piece in pieces:
        stop = start + piece
        step = model(
            tokens[:, start:stop],
            attention_mask=padded("left")[:, :stop],
            position_ids=torch.arange(start, stop)[None],
            past_key_values=past,
            use_cache=True,
        )
        outputs.append(step.logits)
        past, start = step.past_key_values, stop
    real = padded("left").bool()
    torch.testing.assert_close(torch.cat(outputs, 1)[real], expected[real], **ROUNDING)


def test_other_families_agree_with_exact_attention(tokens, with_exact):
    def bart(**options):
        each = {"layers": LAYERS, "attention_heads": HEADS, "ffn_dim": 24}
        sizes = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in each.items()}
        return BartModel(BartConfig(vocab_size=VOCABULARY, d_model=WIDTH, init_std=0.4, **sizes))

    def vit(**options):
        sizes = {k: v for k, v in SIZES.items() if k != "vocab_size"}
        return ViTModel(ViTConfig(**sizes, image_size=16, patch_size=4))

    image = torch.randn(1, 3, 16, 16).double()
    expected, output = (made(vit, name)(image).last_hidden_state for name in ("sdpa", "hrf"))
    torch.testing.assert_close(output, expected, **ROUNDING)
    expected, output = (
        made(bart, name)(tokens, padded("right"), decoder_input_ids=tokens[:, :6]).last_hidden_state
        for name in ("sdpa", "hrf")
    )
    torch.testing.assert_close(output, expected, **ROUNDING)


# Our own attention.


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
    """Logits of each generated token are those of a forward pass without a cache."""
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


@pytest.mark.parametrize("exact_share", [0.0, 0.6])
def test_recentred_clusters_generate_as_without_a_cache(exact_share, tokens):
    """Causal attention leaves the centres where they were fitted, with a cache too."""
    model = made(llama)
    clustered = partial(small, n_clusters=(3, 3), exact_share=exact_share)
    convert(model, tokens.split(1), feature_map=clustered)
    whole = model(tokens).logits
    past = model(tokens[:, :-1], use_cache=True).past_key_values
    last = model(tokens[:, -1:], past_key_values=past).logits
    torch.testing.assert_close(last, whole[:, -1:], **ROUNDING)


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


# Maps.


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


# Conversion.

small = partial(hrf.ClusteredHybrid.fit, base="separable", n_clusters=(4, 4), recenter=True)


def batches(n=4):
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(1, VOCABULARY, (BATCH, LENGTH), generator=generator) for _ in range(n)]


@pytest.mark.parametrize("feature_map", ["fitted", "positive", "angular", small])
@pytest.mark.parametrize("build", FAMILIES)
def test_every_layer_is_converted_and_measured(build, feature_map, tokens):
    model = made(build, "sdpa").train()
    report = convert(model, batches(), feature_map=feature_map, progress=False)
    assert model.training
    assert model.config._attn_implementation == FITTED
    names = {bert: "encoder.layer.{}.attention.self", gpt2: "transformer.h.{}.attn"}
    expected = [names.get(build, "model.layers.{}.self_attn").format(i) for i in range(LAYERS)]
    assert list(report.layers) == expected
    for name, layer in report.layers.items():
        assert len(layer.errors) == HEADS
        assert model.get_submodule(name).hrf_maps[FITTED].heads == HEADS
        assert name in str(report)
    assert final(model.eval()(tokens)).isfinite().all()


def test_errors_are_those_of_the_outputs_on_the_test_batches(tokens):
    """One layer, whose inputs are exact in the converted model too."""
    model = made(bert, "sdpa")
    module, seen = model.encoder.layer[0].attention.self, []
    module.register_forward_hook(lambda _, __, output: seen.append(output[0].unflatten(-1, (HEADS, -1))))
    mask = padded("right")
    test = {"input_ids": tokens, "attention_mask": mask}
    model(**test)
    report = convert(model, batches(), test_batches=[test], feature_map="fitted", progress=False)
    model(**test)
    before, after = (u[mask.bool()] for u in (seen[0], seen[-1]))  # tokens, heads, dim
    expected = (after - before).norm(dim=(0, 2)) / before.norm(dim=(0, 2))
    errors = torch.tensor(report.layers["encoder.layer.0.attention.self"].errors, dtype=torch.float64)
    torch.testing.assert_close(errors, expected, **ROUNDING)


def test_all_pairs_exact_is_the_model_itself(tokens):
    """Padding included: it is left out of what maps are fitted to."""
    model = made(bert, "sdpa")
    data = [{"input_ids": ids, "attention_mask": padded("right")} for ids in batches()]
    expected = final(model(**data[-1]))[padded("right").bool()]
    report = convert(model, data, feature_map=partial(small, exact_share=1.0), progress=False)
    for layer in report.layers.values():
        assert max(layer.errors) < 1e-6  # centres are in float32, exact pairs do not use them
        assert layer.exact_share == 1
    assert "100% of pairs exact" in str(report)
    torch.testing.assert_close(
        final(model(**data[-1]))[padded("right").bool()], expected, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("build", DECODERS)
def test_decoders_with_some_pairs_exact(build, tokens, monkeypatch):
    model, real = made(build, "sdpa"), padded("left").bool()
    clustered = partial(small, n_clusters=(4, 16), exact_share=0.1)
    report = convert(model, batches(), feature_map=clustered, progress=False)
    assert all(layer.exact_share > 0 for layer in report.layers.values())
    received = model(tokens, attention_mask=padded("left")).logits
    monkeypatch.setattr(attention, "attention", reference.attention)
    expected = model(tokens, attention_mask=padded("left")).logits
    torch.testing.assert_close(received[real], expected[real], **ROUNDING)


def test_maps_are_fitted_to_scaled_queries_and_keys_without_padding():
    model, kept, seen = made(llama, "sdpa"), [], []

    def fit(queries, keys, *, heads):
        kept.append((queries, keys))
        return hrf.Positive(queries.shape[-1], n_projections=8, heads=heads)

    model.model.layers[0].self_attn.k_proj.register_forward_hook(lambda _, __, output: seen.append(output))
    mask = padded("left")
    convert(
        model,
        [{"input_ids": ids, "attention_mask": mask} for ids in batches(2)],
        feature_map=fit,
        progress=False,
    )
    queries, keys = kept[0]
    assert queries.shape == keys.shape == (HEADS, int(mask.sum()), WIDTH // HEADS)
    # Rotations by position keep lengths; two query heads share a key head; logits are divided by √d.
    lengths = seen[0][mask.bool()].unflatten(-1, (2, -1)).norm(dim=-1) / (WIDTH // HEADS) ** 0.25
    expected = lengths.T.repeat_interleave(2, 0).sort(-1).values
    torch.testing.assert_close(
        keys.norm(dim=-1).sort(-1).values, expected, rtol=1e-6, atol=0
    )  # rotated in float32


def test_as_many_tokens_as_allowed():
    sizes = []

    def fit(queries, keys, *, heads):
        sizes.append((queries.shape[1], keys.shape[1]))
        return hrf.Positive(queries.shape[-1], n_projections=8, heads=heads)

    convert(made(bert, "sdpa"), batches(), feature_map=fit, max_tokens=16, progress=False)
    assert sizes == [(15, 15)] * LAYERS  # 5 of each of three batches; the fourth is for tests


def test_conversion_is_deterministic(tokens):
    outputs = []
    for _ in range(2):
        model = made(bert, "sdpa")
        torch.randn(1)
        convert(model, batches(), feature_map="fitted", progress=False)
        outputs.append(final(model(tokens)))
    assert torch.equal(*outputs)


def test_copies_and_files_bring_the_maps(tokens, tmp_path):
    model = made(llama, "sdpa")
    exact_output = model(tokens).logits
    convert(model, batches(), feature_map="fitted", progress=False)
    expected = model(tokens).logits
    assert not torch.allclose(expected, exact_output)
    assert torch.equal(copy.deepcopy(model)(tokens).logits, expected)
    save_maps(model, tmp_path / "maps")
    fresh = made(llama, "sdpa")
    load_maps(fresh, tmp_path / "maps")
    assert torch.equal(fresh(tokens).logits, expected)
    fresh.set_attn_implementation("sdpa")
    assert torch.equal(fresh(tokens).logits, exact_output)


def test_a_failed_conversion_leaves_the_model_as_it_was(tokens):
    model = made(bert, "sdpa").train()

    def fit(queries, keys, *, heads):
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        convert(model, batches(), feature_map=fit, progress=False)
    with pytest.raises(IndexError):
        convert(model, [tokens + VOCABULARY] * 2, progress=False)
    assert model.training
    assert model.config._attn_implementation == "sdpa"


# Errors.


def mistral(**options):
    return MistralModel(MistralConfig(**SIZES, **GROUPED, **options))


def test_windows_are_refused_unless_they_are_no_restriction(tokens, with_exact):
    assert LENGTH == 11
    expected, output = (final(made(mistral, name, sliding_window=11)(tokens)) for name in ("sdpa", "hrf"))
    torch.testing.assert_close(output, expected, **ROUNDING)
    with pytest.raises(ValueError, match="neither causal nor bidirectional over its 11 queries and 11 keys"):
        made(mistral, sliding_window=10)(tokens)


def test_packed_sequences_are_refused(tokens):
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]])
    with pytest.raises(ValueError, match="packed sequences"):
        made(llama)(tokens, position_ids=positions, use_cache=False)


def test_masks_of_pairs_are_refused(tokens):
    pairs = torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
    with pytest.raises(ValueError, match=r"torch.bool and shape \(2, 1, 11, 11\)"):
        made(llama)(tokens, attention_mask=pairs)
    with pytest.raises(ValueError, match=r"shape \(2, 11, 11\); expected \(batch, keys\)"):
        made(llama)(tokens, attention_mask=pairs[:, 0])


def test_other_changes_of_weights_are_refused(tokens):
    def gemma(**options):
        return Gemma2Model(Gemma2Config(**SIZES, **GROUPED, head_dim=4))

    def t5(**options):
        sizes = {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 4, "d_ff": 24}
        return T5Model(T5Config(**sizes, num_layers=LAYERS, num_heads=HEADS))

    with pytest.raises(ValueError, match="Gemma2Attention passes softcap"):
        made(gemma)(tokens)
    with pytest.raises(ValueError, match="T5Attention passes position_bias"):
        made(t5)(tokens, decoder_input_ids=tokens)


def test_causal_layers_without_a_mask_need_as_many_queries_as_keys():
    module = made(llama).model.layers[0].self_attn
    q, k = torch.randn(1, HEADS, 3, 4), torch.randn(1, 2, 5, 4)
    with pytest.raises(
        ValueError, match="LlamaAttention is causal and has no mask for its 3 queries and 5 keys"
    ):
        attention._Made(hrf.Positive, 0)(module, q, k, k, None)


def test_attention_that_is_not_finite_names_the_map(tokens, monkeypatch):
    monkeypatch.setattr(attention, "attention", lambda query, *args, **options: query / 0)
    with pytest.raises(
        ValueError, match="attention of BertSelfAttention is not finite: Positive is far too noisy"
    ):
        made(bert)(tokens)


def test_maps_that_are_missing(tokens, tmp_path):
    model = made(bert)
    with pytest.raises(ValueError, match="this BertModel has no fitted maps"):
        save_maps(model, tmp_path)
    with pytest.raises(FileNotFoundError, match="expected those of save_maps"):
        load_maps(model, tmp_path)
    model.set_attn_implementation(FITTED)
    with pytest.raises(ValueError, match="this BertSelfAttention has no fitted map"):
        model(tokens)


def test_unknown_names_and_too_few_batches():
    model = made(bert)
    with pytest.raises(ValueError, match="feature_map is 'linear'; expected one of positive, angular"):
        register("other", "linear")
    with pytest.raises(ValueError, match="feature_map is 'linear'; expected one of clustered, fitted"):
        convert(model, batches(), feature_map="linear")
    with pytest.raises(ValueError, match="there is 1 batch; expected"):
        convert(model, batches(1))

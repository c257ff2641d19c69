"""Models of Transformers with linear attention: agreement with exact attention, masks, caches, windows, compilation."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertModel,
    DynamicCache,
    ModernBertModel,
    StaticCache,
    ViTConfig,
    ViTModel,
)

import hrf
import hrf.integrations.transformers
from hrf.integrations.transformers import check, convert, load_maps, register, save_maps
from integrations.models import (
    BATCH,
    FAMILIES,
    HEADS,
    LAYERS,
    LENGTH,
    ROUNDING,
    SIZES,
    WIDTH,
    WINDOW,
    bart,
    batches,
    bert,
    final,
    gemma,
    gpt2,
    llama,
    made,
    mistral,
    modernbert,
    padded,
)


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("build", FAMILIES)
def test_agrees_with_exact_attention(build, side, tokens, with_exact):
    mask = torch.ones_like(tokens) if side is None else padded(side)
    expected, output = (final(made(build, name)(tokens, attention_mask=mask)) for name in ("sdpa", "hrf"))
    torch.testing.assert_close(output[mask.bool()], expected[mask.bool()], **ROUNDING)


@pytest.mark.parametrize(
    ("build", "pieces", "cache"),
    [(gpt2, (8, 3), "static"), (gpt2, (4, 4, 3), "dynamic"), (llama, (8, 1, 1, 1), "static")],
)
def test_cached_pieces_agree_with_exact_attention(build, pieces, cache, tokens, with_exact):
    mask = padded("left")
    expected = final(made(build, "sdpa")(tokens, attention_mask=mask))
    model, outputs, start = made(build), [], 0
    past = StaticCache(config=model.config, max_cache_len=20) if cache == "static" else DynamicCache()
    for piece in pieces:
        stop = start + piece
        options = {"attention_mask": mask[:, :stop], "position_ids": torch.arange(start, stop)[None]}
        outputs.append(model(tokens[:, start:stop], past_key_values=past, **options).logits)
        start = stop
    torch.testing.assert_close(torch.cat(outputs, 1)[mask.bool()], expected[mask.bool()], **ROUNDING)


def test_other_families_agree_with_exact_attention(tokens, with_exact):
    def vit(**options):
        sizes = {k: v for k, v in SIZES.items() if k != "vocab_size"}
        return ViTModel(ViTConfig(**sizes, image_size=16, patch_size=4))

    images = {"pixel_values": torch.randn(1, 3, 16, 16).double()}
    texts = {"input_ids": tokens, "attention_mask": padded("right"), "decoder_input_ids": tokens[:, :6]}
    for build, given in ((vit, images), (bart, texts)):
        expected, output = (final(made(build, name)(**given)) for name in ("sdpa", "hrf"))
        torch.testing.assert_close(output, expected, **ROUNDING)


# Linear attention: masks, caches, precision, dropout, and maps made by a seed.


def omegas(model):
    return [layer.self_attn.hrf_maps.popitem()[1].projection.omega for layer in model.model.layers]


@pytest.mark.parametrize(
    ("build", "feature_map"), [(bert, "angular"), (gpt2, "positive"), (llama, "angular")]
)
def test_masked_and_future_tokens_change_nothing(build, feature_map, tokens):
    register("hrf", feature_map)
    model, mask = made(build), padded("middle")
    other = torch.where(mask.bool(), tokens, 1 + tokens % 7)
    assert not torch.equal(tokens, other)
    first, second = (final(model(ids, attention_mask=mask))[mask.bool()] for ids in (tokens, other))
    assert torch.equal(first, second)
    assert not torch.allclose(first, final(model(tokens))[mask.bool()])
    later = tokens.clone()
    later[:, -1] = 1 + later[:, -1] % 7
    first, second = (final(model(ids)) for ids in (tokens, later))
    assert torch.allclose(first[:, :-1], second[:, :-1], **ROUNDING) == (build != bert)
    assert not torch.allclose(first[:, -1], second[:, -1])


@pytest.mark.parametrize(
    ("build", "side", "cache"), [(gpt2, None, "static"), (gpt2, "left", None), (llama, "left", "dynamic")]
)
def test_generation_with_a_cache(build, side, cache, tokens):
    """Logits of each generated token equal the logits of a forward pass without a cache."""
    model, mask = made(build), padded(side) if side else torch.ones_like(tokens)
    options = {"use_cache": False} if cache is None else {"cache_implementation": cache}
    options |= {"return_dict_in_generate": True, "output_logits": True, "disable_compile": True}
    generated = model.generate(tokens, attention_mask=mask, max_new_tokens=4, do_sample=False, **options)
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
        before = set(model.state_dict())
        model(tokens)
        assert set(model.state_dict()) == before  # maps are no part of the state
        drawn.append(omegas(model))
    assert drawn[0][0].shape == (HEADS, 32, WIDTH // HEADS)
    assert torch.equal(drawn[0][1], drawn[1][1])
    assert not torch.equal(drawn[0][0], drawn[0][1])
    assert not torch.equal(drawn[0][0], drawn[2][0])


# Layers whose window is shorter than the sequence keep PyTorch's attention.


MODELS = {"mistral": mistral, "gemma": gemma, "modernbert": modernbert}


@pytest.fixture
def replaced(monkeypatch):
    """Record the layers that exact attention behind our interface serves."""
    found, make = [], hrf.integrations.transformers.attention._Made.method_of
    monkeypatch.setattr(
        hrf.integrations.transformers.attention._Made,
        "method_of",
        lambda self, call: found.append(call.module.layer_idx) or make(self, call),
    )
    return found


@pytest.mark.parametrize(
    ("name", "global_layers", "side"),
    [
        ("mistral", set(), "left"),
        ("gemma", {1}, "middle"),
        ("gemma", {1}, None),
        ("modernbert", {0}, "right"),
    ],
)
def test_layers_with_a_window_are_exact_and_global_layers_are_ours(
    name, global_layers, side, tokens, with_exact, replaced
):
    mask = torch.ones_like(tokens) if side is None else padded(side)
    expected, output = (
        final(made(MODELS[name], kind)(tokens, attention_mask=mask))[mask.bool()] for kind in ("sdpa", "hrf")
    )
    torch.testing.assert_close(output, expected, **ROUNDING)
    assert {*replaced} == global_layers


@pytest.mark.parametrize("name", MODELS)
def test_a_window_as_long_as_the_sequence_is_no_restriction(name, tokens, with_exact, replaced):
    build = partial(MODELS[name], sliding_window=LENGTH)
    expected, output = (final(made(build, kind)(tokens)) for kind in ("sdpa", "hrf"))
    torch.testing.assert_close(output, expected, **ROUNDING)
    assert {*replaced} == {0, 1}


@pytest.mark.parametrize(("build", "kind"), [(mistral, "static"), (gemma, "dynamic"), (gemma, "by layer")])
def test_decoding_across_the_end_of_the_window(build, kind, tokens, with_exact):
    received = {}
    for name in ("sdpa", "hrf"):
        model = made(build, name)
        cache = {
            "dynamic": DynamicCache,
            "by layer": partial(DynamicCache, config=model.config),
            "static": partial(StaticCache, config=model.config, max_cache_len=2 * LENGTH),
        }[kind]()
        steps = [tokens[:, :2], tokens[:, 2:4], *tokens[:, 4:7].split(1, 1), tokens[:, 7:]]
        received[name] = torch.cat([model(step, past_key_values=cache).logits for step in steps], 1)
    torch.testing.assert_close(received["hrf"], received["sdpa"], **ROUNDING)


def test_check_says_which_layers_are_which():
    every, some, none = (check(made(build, "sdpa")) for build in (mistral, gemma, modernbert))
    assert all([every, some, none])
    assert len(every.layers) == len(every.windowed) == 2
    assert "on sequences no longer than the sliding window, which every module has" in str(every)
    assert some.windowed == ["model.layers.0.self_attn"]
    assert none.windowed == ["layers.1.attn"]
    assert "the one module with a sliding window keeps PyTorch's attention" in str(some)


def test_conversion_leaves_layers_with_a_window_out(tokens, tmp_path):
    model, other = made(gemma, "sdpa"), made(gemma, "sdpa")
    report = convert(model, batches(), feature_map="fitted", progress=False)
    assert len(report.layers) == 1
    save_maps(model, tmp_path)
    load_maps(other, tmp_path)
    torch.testing.assert_close(final(other(tokens)), final(model(tokens)), **ROUNDING)
    short = tokens[:, :WINDOW]  # layers without a map are exact here, too
    assert torch.isfinite(final(model(short))).all()


def test_conversion_without_a_global_layer(tokens):
    model = made(mistral, "sdpa")
    with pytest.raises(ValueError, match="MistralForCausalLM has a sliding window in every attention layer"):
        convert(model, batches(), progress=False)
    short = [batch[:, :WINDOW] for batch in batches()]
    report = convert(model, short, feature_map="fitted", test_batches=batches(1), progress=False)
    assert not report.layers
    assert report.speed is None
    assert report.output_error < 1e-6  # all layers are exact on long sequences


# Models compiled to one graph.


def assert_compiled_is_the_same(model, **inputs):
    """Compare logits, or the last hidden states, and the gradients of all parameters."""
    received, options = [], {} if isinstance(model, ModernBertModel) else {"use_cache": False}
    for function in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        model.zero_grad()
        with torch.enable_grad():
            output = final(function(**inputs, **options))
            output.square().sum().backward()
        # The compiler gives zeros to parameters without effect.
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
        received.append([output.detach(), *gradients])
    torch.compiler.reset()
    for mine, theirs in zip(*received, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9 * float(theirs.abs().max()))


@pytest.mark.parametrize(
    ("build", "side"),
    [
        (llama, "left"),
        (modernbert, None),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((bert, "right"), (gpt2, None), (gemma, "right"))
        ),
    ],
)
def test_one_graph_gives_the_same(build, side, tokens):
    mask = {} if side is None else {"attention_mask": padded(side)}
    assert_compiled_is_the_same(made(build), input_ids=tokens, **mask)


@pytest.mark.slow
def test_one_graph_with_fitted_maps(tokens):
    model = made(llama)
    convert(model, batches(), feature_map="fitted")
    assert_compiled_is_the_same(model, input_ids=tokens, attention_mask=padded("left"))


def test_compiled_decoders_refuse_packed_sequences(tokens):
    places = torch.cat([torch.arange(4), torch.arange(LENGTH - 4)])[None]
    compiled = torch.compile(made(llama), backend="aot_eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="neither causal nor bidirectional"):
        compiled(tokens[:1], position_ids=places, use_cache=False)
    torch.compiler.reset()


# Summarised attention: no conversion, padding.


NAME = "hrf-summarised"


def encoder(**options):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    return BertModel(BertConfig(vocab_size=50, max_position_embeddings=600, **sizes, **options)).eval()


def test_an_encoder_is_near_its_exact_self_and_ignores_padding():
    model, ids = encoder(), torch.randint(50, (2, 300), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 270:] = 0
    real = mask.bool()
    exact = model(ids, attention_mask=mask).last_hidden_state[real]
    model.set_attn_implementation(NAME)
    mine = model(ids, attention_mask=mask).last_hidden_state[real]
    assert not torch.equal(mine, exact)
    # Weights of an untrained model are nearly uniform, which summaries reproduce: logits vary by a few hundredths.
    assert (mine - exact).norm() <= 1e-2 * exact.norm()
    assert torch.equal(model(ids.where(real, 7), attention_mask=mask).last_hidden_state[real], mine)


def test_a_method_of_ones_own_is_registered_by_a_name():
    ids = torch.randint(50, (2, 300), generator=torch.Generator().manual_seed(1))
    report, model = hrf.SummaryReport(), encoder(initializer_range=0.4)
    exact, errors = model(ids).last_hidden_state, []
    for name, options in {
        "exact": {"tolerance": 0},
        "fine": {"tolerance": 0.25, "report": report},
        "coarse": {"tolerance": math.inf},
    }.items():
        register(f"summaries-{name}", hrf.SummarisedAttention(**options))
        model.set_attn_implementation(f"summaries-{name}")
        errors.append(float((model(ids).last_hidden_state - exact).norm() / exact.norm()))
    assert errors[0] <= 1e-5  # float32, two layers
    assert errors[0] < errors[1] < errors[2]
    assert len(report.calls) == 2  # layers

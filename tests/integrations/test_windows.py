"""Models with sliding windows: layers whose window is shorter than the sequence keep PyTorch's attention."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from transformers import (
    DynamicCache,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    MistralConfig,
    MistralForCausalLM,
    ModernBertConfig,
    ModernBertModel,
    StaticCache,
)

import hrf
from hrf.integrations.transformers import check, convert, load_maps, register, save_maps
from integrations.models import GROUPED, LENGTH, ROUNDING, SIZES, batches, final, made, padded

WINDOW = 4
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}


def mistral(sliding_window=WINDOW):
    return MistralForCausalLM(MistralConfig(**SIZES, **GROUPED, head_dim=4, sliding_window=sliding_window))


def gemma(sliding_window=WINDOW):
    kinds = ["sliding_attention", "full_attention"]
    options = {"sliding_window": sliding_window, "layer_types": kinds, "head_dim": 4}
    return Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, **GROUPED, **options))


def modernbert(sliding_window=WINDOW):
    options = {"local_attention": 2 * sliding_window, "layer_types": ["full_attention", "sliding_attention"]}
    sizes = {name: size for name, size in SIZES.items() if name != "initializer_range"}
    return ModernBertModel(ModernBertConfig(**sizes, **IDS, **options))


MODELS = {"mistral": mistral, "gemma": gemma, "modernbert": modernbert}
DECODERS = [mistral, gemma]


@pytest.fixture
def replaced(monkeypatch):
    """Record the layers that exact attention behind our interface serves."""
    found, make = [], hrf.integrations.transformers.attention._Made.map_of
    monkeypatch.setattr(
        hrf.integrations.transformers.attention._Made,
        "map_of",
        lambda self, module, call: found.append(module.layer_idx) or make(self, module, call),
    )
    return found


@pytest.mark.parametrize("side", [None, "left", "right", "middle"])
@pytest.mark.parametrize(("name", "global_layers"), [("mistral", set()), ("gemma", {1}), ("modernbert", {0})])
def test_layers_with_a_window_are_exact_and_global_layers_are_ours(
    name, global_layers, side, tokens, with_exact, replaced
):
    mask = torch.ones_like(tokens) if side is None else padded(side)
    expected, output = (
        final(made(MODELS[name], kind)(tokens, attention_mask=mask)) for kind in ("sdpa", "hrf")
    )
    real = mask.bool()
    torch.testing.assert_close(output[real], expected[real], **ROUNDING)
    assert {*replaced} == global_layers


@pytest.mark.parametrize("name", MODELS)
def test_a_window_as_long_as_the_sequence_is_no_restriction(name, tokens, with_exact, replaced):
    build = partial(MODELS[name], sliding_window=LENGTH)
    expected, output = (final(made(build, kind)(tokens)) for kind in ("sdpa", "hrf"))
    torch.testing.assert_close(output, expected, **ROUNDING)
    assert {*replaced} == {0, 1}


@pytest.mark.parametrize("kind", ["dynamic", "by layer", "static"])
@pytest.mark.parametrize("build", DECODERS)
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


@pytest.mark.parametrize("build", DECODERS)
def test_generation_is_the_one_without_a_cache(build, tokens):
    register("hrf", partial(hrf.Positive, n_projections=16))
    model = made(build)
    options = {"max_new_tokens": 5, "do_sample": False, "attention_mask": torch.ones_like(tokens)}
    with_cache, without = (model.generate(tokens, use_cache=use, **options) for use in (True, False))
    assert torch.equal(with_cache, without)


@pytest.mark.parametrize("name", MODELS)
def test_one_graph_gives_the_same(name, tokens):
    model = made(MODELS[name])
    options = {} if name == "modernbert" else {"use_cache": False}
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    mask = torch.ones_like(tokens)
    expected = final(model(tokens, attention_mask=mask, **options))
    torch.testing.assert_close(final(compiled(tokens, attention_mask=mask, **options)), expected, **ROUNDING)
    torch.compiler.reset()


def test_check_says_which_layers_are_which():
    every, some, none = (check(made(build, "sdpa")) for build in (mistral, gemma, modernbert))
    assert all([every, some, none])
    assert len(every.layers) == len(every.windowed) == 2
    assert "on sequences no longer than the sliding window, which every module has" in str(every)
    assert some.windowed == ["model.layers.0.self_attn"]
    assert none.windowed == ["layers.1.attn"]
    assert str(some).endswith(
        "hrf can replace it in 1 of them; the one module with a sliding window keeps PyTorch's attention on sequences "
        "longer than the window"
    )


@pytest.mark.parametrize("build", [gemma, modernbert])
def test_conversion_leaves_layers_with_a_window_out(build, tokens, tmp_path):
    model = made(build, "sdpa")
    report = convert(model, batches(), feature_map="fitted", progress=False)
    assert len(report.layers) == 1
    converted = final(model(tokens))
    save_maps(model, tmp_path)
    other = made(build, "sdpa")
    load_maps(other, tmp_path)
    torch.testing.assert_close(final(other(tokens)), converted, **ROUNDING)
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

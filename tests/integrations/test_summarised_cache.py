"""Decoders with summarised attention: caches of summaries, rotary angles, and what is refused."""

from __future__ import annotations

import copy
import math
import sys

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    DynamicCache,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import hrf
from attention.summarised.causal_cases import needs_core
from hrf._attention.summarised import cache as states
from hrf._attention.summarised import engine
from hrf._attention.summarised.blocks import Choices, _turned
from hrf.integrations.transformers import LinearCache, SummarisedCache, register
from hrf.integrations.transformers.attention import rotary_angles
from integrations.models import (
    GROUPED,
    ROUNDING,
    SIZES,
    VOCABULARY,
    bart,
    bert,
    gemma,
    gpt2,
    llama,
    made,
    mistral,
)

pytestmark = needs_core  # without it a few new queries are exact, and differ from those of the whole

NAME = "hrf-summarised"
LENGTH = 830  # three blocks and a bit
QUIET = {"do_sample": False, "pad_token_id": 0}


@pytest.fixture(autouse=True)
def small_base(monkeypatch):
    for module in (engine, states):
        monkeypatch.setattr(module, "BASE", 256)  # of a cell of 64 two members are equally far from its mean


@pytest.fixture
def text():
    return torch.randint(1, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def qwen(**options):
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, **GROUPED, **options))


DECODERS = {"llama": llama, "gpt2": gpt2, "qwen": qwen, "gemma": gemma, "mistral": mistral}


def left_padding():
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[1, :175] = 0
    return mask


def pieces(model, cache, text, *sizes, mask=None):
    """Logits of a text in pieces, the rest token by token."""
    found, start = [], cache.get_seq_length()
    for size in [*sizes, *[1] * (text.shape[1] - start - sum(sizes))]:
        own = slice(start, start + size)
        options = {} if mask is None else {"attention_mask": mask[:, : own.stop]}
        found.append(model(text[:, own], past_key_values=cache, **options).logits)
        start += size
    return torch.cat(found, 1)


def close(a, b):
    torch.testing.assert_close(a, b, **ROUNDING)


# Equality with the whole sequence.


@pytest.mark.parametrize("name", DECODERS)
def test_pieces_and_steps_are_the_whole(name, text):
    model = made(DECODERS[name], NAME)
    whole = model(text, use_cache=False).logits
    cache = SummarisedCache(model)
    close(pieces(model, cache, text, 500, 1, 1, 150, 5, 110), whole)
    assert cache.get_seq_length() == LENGTH


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_summaries_are_near_exact_attention_and_not_it(name, text):
    model = made(DECODERS[name], NAME)
    whole = model(text, use_cache=False).logits
    model.set_attn_implementation("sdpa")
    error = (model(text, use_cache=False).logits - whole).norm() / whole.norm()
    assert 1e-6 < error < 0.1


def test_padding_on_the_left_is_in_no_block(text):
    model, mask = made(llama, NAME), left_padding()
    whole = model(text, attention_mask=mask, use_cache=False).logits
    other = text.where(mask.bool(), 7)
    for prompt in (text, other):
        found = pieces(model, SummarisedCache(model), prompt, 120, 580, 7, 60, mask=mask)
        close(found[mask.bool()], whole[mask.bool()])


def test_an_ordinary_cache_gives_about_the_same(text):
    """It has no earlier queries, so that blocks before the step's own are exact."""
    model = made(llama, NAME)
    whole = model(text, use_cache=False).logits
    found = pieces(model, DynamicCache(config=model.config), text, 600, 1, 190)
    close(found[:, :600], whole[:, :600])
    assert (found - whole).norm() / whole.norm() < 0.1
    few = text[:, :400]
    steps = pieces(model, DynamicCache(config=model.config), few, 255)  # no step has members: all exact
    model.set_attn_implementation("sdpa")
    close(steps, model(few, use_cache=False).logits)


def test_half_precision_computes_in_float32(text):
    torch.manual_seed(0)
    model = llama().to(torch.bfloat16).eval()
    model.set_attn_implementation(NAME)
    cache = SummarisedCache(model)
    assert pieces(model, cache, text, 815).dtype == torch.bfloat16
    assert cache.layers[0].tensors()["keys"].dtype == torch.float32


# Generation.


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 3},
        {"prefill_chunk_size": 300},
        {"num_beams": 2, "num_return_sequences": 2},
        {"prompt_lookup_num_tokens": 3},
    ],
    ids=lambda options: "-".join(options) or "greedy",
)
@pytest.mark.parametrize("padded", [False, True])
def test_generated_text_is_that_without_a_cache(options, padded, text):
    if "prompt_lookup_num_tokens" in options:
        text = text[1 if padded else 0 :][:1]  # for single items only
    model, mask = made(llama, NAME), left_padding()[-len(text) :] if padded else torch.ones_like(text)
    wanted = {"max_new_tokens": 12, "min_new_tokens": 12, **QUIET}
    plain = {k: v for k, v in options.items() if k not in ("prefill_chunk_size", "prompt_lookup_num_tokens")}
    expected = model.generate(text, attention_mask=mask, use_cache=False, **wanted, **plain)
    cache = SummarisedCache(model)
    found = model.generate(text, attention_mask=mask, past_key_values=cache, **wanted, **options)
    assert torch.equal(found, expected)


# Copies, crops, files.


def test_copies_continue_on_their_own(text):
    model = made(llama, NAME)
    whole, cache = model(text, use_cache=False).logits, SummarisedCache(model)
    pieces(model, cache, text[:, :760], 750)
    copied = copy.deepcopy(cache)
    pieces(model, copied, text.flip(0), 1, 50)
    close(pieces(model, cache, text, 1, 50), whole[:, 760:])
    empty = copy.deepcopy(SummarisedCache(model))
    close(pieces(model, empty, text[:, :100], 99), whole[:, :100])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("length", [800, 512, 511, 256, 1])
def test_a_cropped_cache_continues(name, length, text):
    model = made(DECODERS[name], NAME)
    whole, cache = model(text, use_cache=False).logits, SummarisedCache(model)
    pieces(model, cache, torch.cat([text[:, :length], text.flip(0)[:, length:]], 1), 765)
    cache.crop(length - LENGTH)
    assert cache.get_seq_length() == length
    left = LENGTH - length
    close(pieces(model, cache, text, *[1] * 5, left * 3 // 4, left // 5), whole[:, length:])


def test_saved_caches_continue(text, tmp_path):
    model, mask = made(llama, NAME), left_padding()
    whole, cache = model(text, attention_mask=mask, use_cache=False).logits, SummarisedCache(model)
    pieces(model, cache, text[:, :770], 760, mask=mask)
    cache.save(tmp_path / "cache.safetensors")
    loaded = SummarisedCache.load(tmp_path / "cache.safetensors", model)
    assert loaded.get_seq_length() == 770
    loaded.save(tmp_path / "again.safetensors")  # before a call has made the states
    again = SummarisedCache.load(tmp_path / "again.safetensors", model)
    copied = copy.deepcopy(again)
    copied.crop(-3)
    for own in (cache, loaded, again):
        close(pieces(model, own, text, 1, 20, mask=mask), whole[:, 770:])
    close(pieces(model, copied, text, 1, 20, mask=mask), whole[:, 767:])


@pytest.mark.parametrize("name", ["gemma", "mistral"])
def test_windows_are_saved_too(name, text, tmp_path):
    model = made(DECODERS[name], NAME)
    whole, cache = model(text, use_cache=False).logits, SummarisedCache(model)
    pieces(model, cache, text[:, :770], 760)
    cache.save(tmp_path / "cache.safetensors")
    loaded = SummarisedCache.load(tmp_path / "cache.safetensors", model)
    close(pieces(model, loaded, text, 1, 20), whole[:, 770:])


def test_an_empty_cache_is_saved(text, tmp_path):
    model = made(llama, NAME)
    SummarisedCache(model).save(tmp_path / "cache.safetensors")
    loaded = SummarisedCache.load(tmp_path / "cache.safetensors", model)
    close(pieces(model, loaded, text, 820), model(text, use_cache=False).logits)


def test_batches_repeat_and_select(text):
    model = made(llama, NAME)
    whole, cache = model(text, use_cache=False).logits, SummarisedCache(model)
    pieces(model, cache, text[:, :770], 760)
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([3, 0]))
    close(pieces(model, cache, text.flip(0), 1), whole.flip(0)[:, 770:])
    cache.reset()
    assert cache.get_seq_length() == 0
    close(pieces(model, cache, text[:, :100], 90), whole[:, :100])


def test_memory_is_counted(text):
    model = made(llama, NAME)
    cache = SummarisedCache(model)
    assert cache.nbytes() == {}
    pieces(model, cache, text, 820)
    sizes = cache.nbytes()
    heads, layers, padded = 2, 2, 16  # head dimensions of 4 are padded to 16
    assert sizes["keys and values"] == layers * 2 * 2 * heads * LENGTH * padded * 8
    assert sizes["queries"] > 0
    assert sizes["blocks"] > 0
    alone = SummarisedCache(made(mistral, NAME))
    pieces(made(mistral, NAME), alone, text, 820)
    assert alone.nbytes() == {}  # all layers have windows


# Refusals.


def test_caches_do_not_mix(text):
    register("hrf-own", "positive")
    summarised, linear = made(llama, NAME), made(llama, "hrf-own")
    with pytest.raises(TypeError, match="a LinearCache came with SummarisedAttention, which has no features"):
        summarised(text, past_key_values=LinearCache(summarised))
    with pytest.raises(TypeError, match="a SummarisedCache came with Positive, a feature map"):
        linear(text, past_key_values=SummarisedCache(linear))


def test_refusals(text, tmp_path):
    model = made(llama, NAME)
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="a SummarisedCache expects attention by hrf"):
        SummarisedCache(model)
    model.set_attn_implementation(NAME)
    cache = SummarisedCache(model)
    cache.save(tmp_path / "cache.safetensors")
    with pytest.raises(ValueError, match="do not fit"):
        SummarisedCache.load(tmp_path / "cache.safetensors", made(mistral, NAME))
    with pytest.raises(ValueError, match="do not fit"):
        LinearCache.load(tmp_path / "cache.safetensors", model)
    pieces(model, cache, text[:, :20], 20)
    with pytest.raises(ValueError, match="crop got 3; expected minus the number of tokens"):
        cache.crop(3)
    register("hrf-auto", hrf.SummarisedAttention(tolerance="auto", target_error=0.1))
    model.set_attn_implementation("hrf-auto")
    with pytest.raises(ValueError, match="tolerance depends on the call"):
        model(text, past_key_values=SummarisedCache(model))


def test_weights_are_refused(text):
    model = made(llama, NAME)
    with pytest.raises(ValueError, match="output_attentions asks for the weights of all keys"):
        model(text[:, :20], past_key_values=SummarisedCache(model), output_attentions=True)


def test_encoders_have_no_such_cache(text):
    model = made(bart, NAME)
    assert model(text[:, :20]).logits.isfinite().all()
    assert made(bert, NAME)(text[:, :20]).last_hidden_state.isfinite().all()


# Rotary angles.


def neox(**options):
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 24}
    return GPTNeoXForCausalLM(GPTNeoXConfig(**sizes, num_hidden_layers=1, **options))


def attention_modules(model):
    return [m for m in model.modules() if type(m).__name__.endswith("Attention") and hasattr(m, "layer_idx")]


SCALED = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
}


def turned_by_the_model(module, embedding, u, positions, **options):
    """Turn rows ``(1, 1, L, d)`` as a model does at positions."""
    apply = sys.modules[type(module).__module__].apply_rotary_pos_emb
    cosine, sine = embedding(u, positions[None], **options)
    return apply(u, u, cosine, sine)[0]


def check_turns(module, embedding, dim, **options):
    """Turning a row from its position by B is to have it B positions later."""
    angles = rotary_angles(module)
    assert angles is not None
    assert 2 * len(angles) <= dim
    size, at = 64, torch.arange(0, 200, 7)
    u = torch.randn(1, 1, len(at), dim, generator=torch.Generator().manual_seed(0))
    here, later = (turned_by_the_model(module, embedding, u, at + by, **options) for by in (0, size))
    turned = _turned(here, Choices(1.0, 1.0, angles).turns(size, here.dtype))
    assert (turned - later).abs().max() <= 1e-4 * u.abs().max()  # angles of 260 radians in float32


@pytest.mark.parametrize("scaling", SCALED)
def test_angles_are_those_of_the_model(scaling):
    parameters = {"rope_theta": 500.0, **SCALED[scaling]}
    model = llama(rope_parameters=parameters, max_position_embeddings=2048)
    for module in attention_modules(model):
        check_turns(module, model.model.rotary_emb, 4)


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_angles_of_a_part_of_the_dimensions(share):
    model = neox(
        rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": share}
    )
    (module,) = attention_modules(model)
    assert len(rotary_angles(module)) == 16 * share // 2
    cosine, _ = model.gpt_neox.rotary_emb(torch.zeros(1, 1, 1, 16), torch.arange(1, 2)[None])
    assert torch.allclose(
        rotary_angles(module).cos().float(), cosine[0, 0, : cosine.shape[-1] // 2], atol=1e-6
    )


def test_angles_differ_between_kinds_of_layers():
    model = gemma()
    modules = attention_modules(model)
    found = [rotary_angles(m) for m in modules]
    assert [m.layer_type for m in modules] == ["sliding_attention", "full_attention"]
    assert not torch.equal(found[0], found[1])
    for module in modules:
        check_turns(module, model.model.rotary_emb, 4, layer_type=module.layer_type)


def test_models_without_such_planes_have_no_angles():
    cohere = CohereForCausalLM(
        CohereConfig(**SIZES, **{k: v for k, v in GROUPED.items() if k != "eos_token_id"})
    )
    for model in (gpt2(), cohere, bert()):
        for module in attention_modules(model):
            assert rotary_angles(module) is None


def test_layers_use_the_angles_of_their_model(text):
    model, report = made(llama, NAME), hrf.SummaryReport()
    model(text)
    for module in attention_modules(model):
        (method,) = module.hrf_methods.values()
        assert torch.equal(method.rotary.double(), rotary_angles(module).double())
    own = torch.ones(2)
    register("hrf-given", hrf.SummarisedAttention(rotary=own, report=report))
    model.set_attn_implementation("hrf-given")
    model(text)
    assert len(report.calls) == 2
    assert math.isfinite(report.predicted_error)


def test_a_compiled_decoder_is_about_the_same(text):
    """Graphs take the method without angles."""
    model = made(llama, NAME)
    expected = model(text, use_cache=False).logits
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    found = compiled(text, use_cache=False).logits
    torch.compiler.reset()
    assert (found - expected).norm() / expected.norm() < 0.1

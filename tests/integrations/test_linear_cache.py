"""Decoding from states: equal to the whole sequence, in constant memory, in every way that Transformers generates."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM, DynamicCache, EncoderDecoderCache

import hrf
from hrf.integrations.transformers import LinearCache, caches, convert, register
from integrations.models import (
    GROUPED,
    LAYERS,
    LENGTH,
    ROUNDING,
    SIZES,
    VOCABULARY,
    bart,
    batches,
    gemma,
    gpt2,
    llama,
    made,
    mistral,
    padded,
)

CUT = 7

MAPS = {
    "positive": partial(hrf.Positive, n_projections=32),
    "trigonometric": partial(hrf.Trigonometric, n_projections=32),
    "angular": "angular",
}

QUIET = {"do_sample": False, "pad_token_id": 0}


@pytest.fixture
def mapped(monkeypatch):
    """Record the number of tokens that each call of a state gets."""
    found, prefill = [], caches.AttentionState.prefill

    def recorded(self, query, key, value, **options):
        found.append(key.shape[2])
        return prefill(self, query, key, value, **options)

    monkeypatch.setattr(caches.AttentionState, "prefill", recorded)
    return found


def begun(model, tokens, **options):
    cache = LinearCache(model)
    model(tokens[:, :CUT], past_key_values=cache, **options)
    return cache


def stepped(model, cache, tokens):
    """Logits of tokens that are decoded one by one."""
    return torch.cat([model(step, past_key_values=cache).logits for step in tokens.split(1, 1)], 1)


def sizes(cache):
    return [sum(tensor.nbytes for tensor in layer.tensors().values()) for layer in cache.layers]


# Equality with the whole sequence.


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("build", [gpt2, llama])
def test_pieces_and_steps_are_the_whole(build, name, tokens, mapped):
    register("hrf", MAPS[name])
    model = made(build)
    whole = model(tokens, use_cache=False).logits
    cache = begun(model, tokens)
    mapped.clear()
    two, rest = tokens[:, CUT : CUT + 2], tokens[:, CUT + 2 :]
    pieces = [model(two, past_key_values=cache).logits, stepped(model, cache, rest)]
    torch.testing.assert_close(torch.cat(pieces, 1), whole[:, CUT:], **ROUNDING)
    assert cache.get_seq_length() == LENGTH
    assert mapped == [2] * LAYERS + [1] * LAYERS * (LENGTH - CUT - 2)


@pytest.mark.parametrize("exact_share", [0.0, 0.6])
def test_converted_models_decode_from_a_state(exact_share, tokens, tmp_path):
    """Causal attention leaves the centres of clusters where they were fitted, with a cache too."""
    model, options = made(llama), {"base": "separable", "n_clusters": (3, 3), "recenter": True}
    fit = partial(hrf.ClusteredHybrid.fit, exact_share=exact_share, **options)
    convert(model, batches(), feature_map=fit, progress=False)
    whole, cache = model(tokens, use_cache=False).logits, begun(model, tokens)
    cache.save(tmp_path / "cache.safetensors")
    for own in (cache, LinearCache.load(tmp_path / "cache.safetensors", model)):
        last = stepped(model, own, tokens[:, CUT:])
        torch.testing.assert_close(last, whole[:, CUT:], rtol=1e-5, atol=1e-5)  # maps in float32


def test_an_ordinary_cache_gives_the_same(tokens):
    model = made(llama)
    logits = []
    for cache in (LinearCache(model), DynamicCache(config=model.config)):
        model(tokens[:, :CUT], past_key_values=cache)
        logits.append(stepped(model, cache, tokens[:, CUT:]))
    torch.testing.assert_close(*logits, **ROUNDING)


@pytest.mark.parametrize("side", ["left", "middle"])
def test_padding_of_the_prompt_is_in_no_state(side, tokens):
    model, mask = made(llama), padded(side)
    other, whole = tokens.where(mask.bool(), 7), model(tokens, attention_mask=mask, use_cache=False).logits
    for prompt in (tokens, other):
        cache = begun(model, prompt, attention_mask=mask[:, :CUT])
        last = model(tokens[:, CUT:], attention_mask=mask, past_key_values=cache).logits
        torch.testing.assert_close(last, whole[:, CUT:], **ROUNDING)


def test_padding_of_new_tokens_is_in_no_state(tokens):
    model, mask = made(gpt2), padded("right")
    cache = begun(model, tokens, attention_mask=mask[:, :CUT])
    positions = torch.arange(CUT, LENGTH)[None]
    rest = {"attention_mask": mask, "past_key_values": cache, "position_ids": positions}
    last = model(tokens[:, CUT:], **rest).logits
    whole = model(tokens, attention_mask=mask, use_cache=False).logits[:, CUT:]
    torch.testing.assert_close(last[mask[:, CUT:].bool()], whole[mask[:, CUT:].bool()], **ROUNDING)


@pytest.mark.parametrize("build", [mistral, gemma])
def test_layers_with_a_window_keep_its_keys(build, tokens, with_exact):
    """Exact attention stands in for states, so that models agree with Transformers across the end of the window."""
    reference, model = made(build, "sdpa"), made(build)
    expected, cache = reference(tokens).logits, LinearCache(model)
    steps = [tokens[:, :2], tokens[:, 2:4], *tokens[:, 4:7].split(1, 1), tokens[:, 7:]]
    received = torch.cat([model(step, past_key_values=cache).logits for step in steps], 1)
    torch.testing.assert_close(received, expected, **ROUNDING)


def test_memory_is_constant():
    model = made(llama)
    long = torch.randint(1, VOCABULARY, (1, 2000), generator=torch.Generator().manual_seed(3))
    cache = LinearCache(model)
    model(long[:, :100], past_key_values=cache, logits_to_keep=1)
    before = sizes(cache)
    model(long[:, 100:1999], past_key_values=cache, logits_to_keep=1)
    model(long[:, 1999:], past_key_values=cache)
    assert cache.get_seq_length() == 2000
    assert sizes(cache) == before
    assert min(before) > 0


# Generation.


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (llama, {}),
        (gpt2, {}),
        (llama, {"num_beams": 3}),
        (llama, {"prefill_chunk_size": 4}),
        (llama, {"do_sample": True}),
        (mistral, {}),
        (gemma, {"num_beams": 2}),
    ],
)
@pytest.mark.parametrize("side", [None, "left"])
def test_generation_equals_that_without_a_cache(build, options, side, tokens):
    model, mask = made(build), torch.ones_like(tokens) if side is None else padded(side)
    texts = []
    plain = {name: value for name, value in options.items() if name != "prefill_chunk_size"}
    for more in (options | {"past_key_values": LinearCache(model)}, plain | {"use_cache": False}):
        torch.manual_seed(0)
        texts.append(model.generate(tokens, attention_mask=mask, max_new_tokens=6, **(QUIET | more)))
    assert torch.equal(*texts)


def test_generation_goes_on_from_a_cache(tokens):
    model = made(llama)
    cache = LinearCache(model)
    first = model.generate(tokens, past_key_values=cache, max_new_tokens=3, **QUIET)
    rest = model.generate(first, past_key_values=cache, max_new_tokens=3, **QUIET)
    assert torch.equal(rest, model.generate(tokens, use_cache=False, max_new_tokens=6, **QUIET))


@pytest.mark.parametrize("beams", [1, 3])
def test_encoder_decoder_models(beams, tokens):
    model, options = made(bart), {"attention_mask": padded("right"), "max_new_tokens": 6, "num_beams": beams}
    cache = EncoderDecoderCache(LinearCache(model), DynamicCache())
    received = model.generate(tokens, past_key_values=cache, **QUIET, **options)
    assert torch.equal(received, model.generate(tokens, use_cache=False, **QUIET, **options))
    assert cache.get_seq_length() == received.shape[1] - 1


def test_half_precision_and_inference_mode(tokens):
    model, mask = made(llama).bfloat16(), padded("left")
    with torch.inference_mode():
        cache = begun(model, tokens, attention_mask=mask[:, :CUT])
        last = model(tokens[:, CUT:], attention_mask=mask, past_key_values=cache).logits
        whole = model(tokens, attention_mask=mask, use_cache=False).logits[:, CUT:]
    assert last.dtype == torch.bfloat16
    assert (last - whole).norm() < 0.02 * whole.norm()  # roundings of 2⁻⁸


def test_gradients_flow_through_a_state(tokens):
    model, grads = made(llama), []
    for cuts in ([LENGTH], [CUT, LENGTH - CUT]):
        model.zero_grad()
        cache = LinearCache(model)
        with torch.enable_grad():
            pieces = [model(piece, past_key_values=cache).logits for piece in tokens.split(cuts, 1)]
            torch.cat(pieces, 1).square().sum().backward()
        grads.append(model.model.layers[0].self_attn.k_proj.weight.grad.clone())
    torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-8 * float(grads[0].abs().max()))


def test_threads_do_not_share_states():
    model = made(llama)
    prompts = torch.randint(1, VOCABULARY, (4, 1, LENGTH), generator=torch.Generator().manual_seed(4))

    def decode(prompt):
        with torch.no_grad():
            return stepped(model, LinearCache(model), prompt)

    expected = [model(prompt, use_cache=False).logits for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        for received, whole in zip(pool.map(decode, prompts), expected, strict=True):
            torch.testing.assert_close(received, whole, **ROUNDING)


@pytest.mark.slow
def test_compiled_models_break_their_graphs(tokens):
    model = made(llama)
    compiled, cache = torch.compile(model, backend="eager"), LinearCache(model)
    pieces = [compiled(piece, past_key_values=cache).logits for piece in tokens.split([CUT, 3, 1], 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), model(tokens, use_cache=False).logits, **ROUNDING)
    torch.compiler.reset()


# Copies, files, and batches in another order.


@pytest.mark.parametrize("steps", [0, 1])  # one token more, and the compiled core holds the state
@pytest.mark.parametrize("build", [llama, gemma])
def test_copies_branch(build, steps, tokens):
    model, cut = made(build), CUT + steps
    cache, other = begun(model, tokens), tokens.flip(0)
    stepped(model, cache, tokens[:, CUT:cut]) if steps else None
    branch = copy.deepcopy(cache)
    expected = [
        model(torch.cat([tokens[:, :cut], u[:, cut:]], 1), use_cache=False).logits for u in (other, tokens)
    ]
    for own, rest, whole in ((branch, other, expected[0]), (cache, tokens, expected[1])):
        torch.testing.assert_close(stepped(model, own, rest[:, cut:]), whole[:, cut:], **ROUNDING)


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("build", [llama, gemma])
def test_files(build, steps, tokens, tmp_path):
    model, cut = made(build), CUT + steps
    cache = begun(model, tokens)
    stepped(model, cache, tokens[:, CUT:cut]) if steps else None
    cache.save(tmp_path / "cache.safetensors")
    expected = stepped(model, cache, tokens[:, cut:])
    received = LinearCache.load(
        tmp_path / "cache.safetensors", made(build)
    )  # the same seed draws the same maps
    assert received.get_seq_length() == cut
    received.save(tmp_path / "copy.safetensors")
    assert (tmp_path / "copy.safetensors").read_bytes() == (tmp_path / "cache.safetensors").read_bytes()
    received.reorder_cache(torch.tensor([1, 0]))
    last = stepped(model, copy.deepcopy(received), tokens.flip(0)[:, cut:])
    torch.testing.assert_close(last, expected.flip(0), **ROUNDING)


def test_files_of_other_models_are_refused(tokens, tmp_path):
    model, path = made(llama), tmp_path / "cache.safetensors"
    begun(model, tokens).save(path)
    with pytest.raises(
        ValueError, match="which do not fit the 2 layers of a LinearCache for this Gemma3ForCausalLM"
    ):
        LinearCache.load(path, made(gemma))
    register("hrf", MAPS["positive"], seed=5)
    other = made(llama)
    with pytest.raises(ValueError, match="filled with another feature map"):
        stepped(other, LinearCache.load(path, other), tokens[:, CUT:])
    hrf.Positive(4, n_projections=8).save(path)
    with pytest.raises(ValueError, match="holds no LinearCache"):
        LinearCache.load(path, model)


@pytest.mark.parametrize("steps", [0, 1])
def test_batches_are_reordered_repeated_and_selected(steps, tokens):
    model = made(llama)
    whole = model(tokens, use_cache=False).logits

    def changed(change):
        cache = begun(model, tokens)
        stepped(model, cache, tokens[:, CUT : CUT + steps]) if steps else None
        change(cache)
        return cache

    cut = CUT + steps
    for change, rows in (
        (lambda cache: cache.reorder_cache(torch.tensor([1, 1, 0])), [1, 1, 0]),
        (lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1]),
        (lambda cache: cache.batch_select_indices(torch.tensor([False, True])), [1]),
    ):
        last = stepped(model, changed(change), tokens[rows, cut:])
        torch.testing.assert_close(last, whole[rows, cut:], **ROUNDING)
    cache = changed(LinearCache.reset)
    assert cache.get_seq_length() == 0
    torch.testing.assert_close(stepped(model, cache, tokens), whole, **ROUNDING)


# Refusals: one sentence each.


def test_tokens_cannot_be_taken_back(tokens):
    model = made(gemma)
    cache = begun(model, tokens)
    with pytest.raises(NotImplementedError, match="copy the cache before these tokens"):
        cache.crop(-1)
    assert {layer.get_seq_length() for layer in cache.layers} == {CUT}
    assisted = {"prompt_lookup_num_tokens": 3, "max_new_tokens": 20, "eos_token_id": 0, **QUIET}
    model = made(llama)
    with pytest.raises(NotImplementedError, match="none can be taken back"):
        model.generate(tokens[:1].repeat(1, 4), past_key_values=LinearCache(model), **assisted)


def test_exact_attention_is_refused(tokens):
    model = made(llama, "sdpa")
    with pytest.raises(ValueError, match="attention of this LlamaForCausalLM is 'sdpa'"):
        LinearCache(model)
    cache = LinearCache(made(llama))
    model(tokens, past_key_values=cache)
    with pytest.raises(RuntimeError, match="11 tokens of a LinearCache reached no attention of hrf"):
        model(tokens, past_key_values=cache)


def test_maps_of_another_name_do_not_continue(tokens):
    model = made(gpt2)
    cache = begun(model, tokens)
    register("hrf", MAPS["positive"], seed=5)
    with pytest.raises(ValueError, match="filled with another feature map"):
        model(tokens[:, CUT:], past_key_values=cache)


def test_what_needs_all_keys_is_refused(tokens):
    model = made(llama)
    with pytest.raises(ValueError, match="output_attentions asks for the weights of all keys"):
        model(tokens, past_key_values=LinearCache(model), output_attentions=True)
    decoder = made(bart)
    with pytest.raises(
        ValueError, match=r"expected past_key_values=EncoderDecoderCache\(LinearCache\(model\)"
    ):
        decoder(tokens, decoder_input_ids=tokens, past_key_values=LinearCache(decoder))
    twice = made(lambda: DiffLlamaForCausalLM(DiffLlamaConfig(**SIZES, **GROUPED)))
    with pytest.raises(ValueError, match="DiffLlamaAttention attends to keys that a LinearCache has added"):
        twice(tokens, past_key_values=LinearCache(twice))
    local = made(mistral)
    with pytest.raises(ValueError, match="this MistralAttention has a sliding window"):
        local(tokens, past_key_values=LinearCache(model))

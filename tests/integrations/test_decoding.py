"""The state beside a cache: a step maps the new tokens only, and a cache that was changed is mapped anew."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from transformers import DynamicCache, StaticCache

import hrf
from hrf.integrations.transformers import convert, decoding, register
from hrf.integrations.transformers import decoding as module
from hrf.integrations.transformers.decoding import hashes
from integrations.models import LAYERS, LENGTH, ROUNDING, VOCABULARY, batches, gpt2, llama, made, padded

CUT = 7

MAPS = {
    "positive": partial(hrf.Positive, n_projections=32),
    "trigonometric": partial(hrf.Trigonometric, n_projections=32),
    "angular": "angular",
}


@pytest.fixture
def mapped(monkeypatch):
    """Record the number of tokens that each call of a state gets."""
    found, prefill = [], decoding.AttentionState.prefill

    def recorded(self, query, key, value, **options):
        found.append(key.shape[2])
        return prefill(self, query, key, value, **options)

    monkeypatch.setattr(decoding.AttentionState, "prefill", recorded)
    return found


def caches(model):
    return {"dynamic": DynamicCache(), "static": StaticCache(config=model.config, max_cache_len=2 * LENGTH)}


def begun(model, tokens, kind="dynamic", **options):
    cache = caches(model)[kind]
    model(tokens[:, :CUT], past_key_values=cache, **options)
    return cache


def without_states(cache):
    """Copy a cache; states stay with the original."""
    return copy.deepcopy(cache)


@pytest.mark.parametrize(
    ("build", "name", "kind"),
    [(gpt2, "positive", "dynamic"), (gpt2, "angular", "static"), (llama, "trigonometric", "static")],
)
def test_a_step_maps_new_tokens_only_and_changes_nothing(build, name, kind, tokens, mapped):
    register("hrf", MAPS[name])
    model = made(build)
    whole = model(tokens, use_cache=False).logits
    cache = begun(model, tokens, kind)
    mapped.clear()
    steps = [tokens[:, CUT : CUT + 2], *tokens[:, CUT + 2 :].split(1, 1)]
    logits = torch.cat([model(step, past_key_values=cache).logits for step in steps], 1)
    torch.testing.assert_close(logits, whole[:, CUT:], **ROUNDING)
    assert {*mapped} == {1, 2}


@pytest.mark.parametrize("exact_share", [0.0, 0.6])
def test_converted_models_decode_from_a_state(exact_share, tokens, mapped):
    """Causal attention leaves the centres of clusters where they were fitted, with a cache too."""
    model, options = made(llama), {"base": "separable", "n_clusters": (3, 3), "recenter": True}
    fit = partial(hrf.ClusteredHybrid.fit, exact_share=exact_share, **options)
    convert(model, batches(), feature_map=fit, progress=False)
    whole, cache = model(tokens, use_cache=False).logits, begun(model, tokens)
    mapped.clear()
    last = [model(step, past_key_values=cache).logits for step in tokens[:, CUT:].split(1, 1)]
    torch.testing.assert_close(torch.cat(last, 1), whole[:, CUT:], rtol=1e-5, atol=1e-5)  # maps in float32
    assert {*mapped} == {1}


@pytest.mark.parametrize("side", ["left", "middle"])
def test_padding_is_remembered(side, tokens):
    model, mask = made(llama), padded(side)
    whole = model(tokens, attention_mask=mask, use_cache=False).logits
    cache = begun(model, tokens, attention_mask=mask[:, :CUT])
    last = model(tokens[:, CUT:], attention_mask=mask, past_key_values=cache).logits
    torch.testing.assert_close(last, whole[:, CUT:], **ROUNDING)


def test_another_padding_of_the_same_keys_is_noticed(tokens):
    model, mask = made(gpt2), torch.ones_like(tokens)
    cache = begun(model, tokens, attention_mask=mask[:, :CUT])
    before = model(tokens[:, CUT:], attention_mask=mask, past_key_values=copy.deepcopy(cache)).logits
    mask[:, 2:4] = 0
    after = model(tokens[:, CUT:], attention_mask=mask, past_key_values=cache).logits
    assert not torch.allclose(before, after)


def test_a_cache_without_a_state_gets_one(tokens, mapped):
    model = made(gpt2)
    whole, cache = model(tokens, use_cache=False).logits, without_states(begun(model, tokens))
    mapped.clear()
    steps = [model(step, past_key_values=cache).logits for step in tokens[:, CUT:].split(1, 1)]
    torch.testing.assert_close(torch.cat(steps, 1), whole[:, CUT:], **ROUNDING)
    assert mapped == [CUT + 1] * LAYERS + [1] * LAYERS * (LENGTH - CUT - 1)


@pytest.mark.parametrize(
    ("name", "padding"), [("positive", None), ("trigonometric", "left"), ("angular", None)]
)
def test_a_reordered_cache_keeps_its_state(name, padding, tokens, mapped):
    """Beam search reorders the cache at every step."""
    register("hrf", MAPS[name])
    model, order = made(llama), torch.tensor([1, 0])
    mask = torch.ones_like(tokens) if padding is None else padded(padding)
    cache = begun(model, tokens, attention_mask=mask[:, :CUT])
    whole = [
        model(tokens[rows], attention_mask=mask[rows], use_cache=False).logits for rows in ([0, 1], order)
    ]
    mapped.clear()
    for i in range(CUT, LENGTH):
        cache.reorder_cache(order)
        flipped = (i - CUT) % 2 == 0
        rows = order if flipped else slice(None)
        step = model(tokens[rows, i : i + 1], attention_mask=mask[rows, : i + 1], past_key_values=cache)
        torch.testing.assert_close(step.logits[:, 0], whole[flipped][:, i], **ROUNDING)
    assert {*mapped} == {1}


def test_a_state_is_taken_once(tokens):
    """Two caches share a tensor of keys; the first to continue writes to the state."""
    model, other = made(llama), DynamicCache()
    cache = begun(model, tokens)
    model(tokens[:, CUT : CUT + 1], past_key_values=cache)
    for i, layer in enumerate(cache.layers):
        other.update(layer.keys, layer.values, i)
        other.layers[i].keys, other.layers[i].values = layer.keys, layer.values
    whole = model(tokens, use_cache=False).logits[:, CUT + 1 :]
    for own in (cache, other):
        steps = [model(step, past_key_values=own).logits for step in tokens[:, CUT + 1 :].split(1, 1)]
        torch.testing.assert_close(torch.cat(steps, 1), whole, **ROUNDING)


def test_maps_of_another_name_do_not_continue(tokens):
    model = made(gpt2)
    cache = begun(model, tokens)
    register("hrf", MAPS["positive"], seed=5)
    expected = model(tokens[:, CUT:], past_key_values=without_states(cache)).logits
    torch.testing.assert_close(model(tokens[:, CUT:], past_key_values=cache).logits, expected, **ROUNDING)


def test_beam_search_in_inference_mode(tokens):
    model = made(llama)
    options = {"max_new_tokens": 4, "do_sample": False, "attention_mask": torch.ones_like(tokens)}
    with torch.inference_mode():
        beams = [model.generate(tokens, num_beams=3, use_cache=use, **options) for use in (True, False)]
    assert torch.equal(*beams)


def test_threads_do_not_share_states():
    model = made(llama)
    prompts = torch.randint(1, VOCABULARY, (4, 1, LENGTH), generator=torch.Generator().manual_seed(4))

    def decode(prompt):
        with torch.no_grad():
            cache = DynamicCache()
            return torch.cat([model(step, past_key_values=cache).logits for step in prompt.split(1, 1)], 1)

    expected = [model(prompt, use_cache=False).logits for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        for received, whole in zip(pool.map(decode, prompts), expected, strict=True):
            torch.testing.assert_close(received, whole, **ROUNDING)


# Hashes of keys and values.


SHAPE = 2, 3, 9, 8

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def vectors(dtype=torch.float32):
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_core_and_pytorch_agree_on_hashes_of_any_layout(dtype, monkeypatch):
    whole, forms = hashes(vectors(dtype), 4), [vectors(dtype), vectors(dtype).mT.contiguous().mT]
    forms.append(vectors(dtype).transpose(1, 2).contiguous().transpose(1, 2))
    forms.append(torch.cat([vectors(dtype)] * 2, 2)[:, :, :9])
    assert all(torch.equal(hashes(form, 4), whole) for form in forms)
    ends = [hashes(vectors(dtype), before) for before in (0, 9)]
    monkeypatch.setattr(module.core, "instructions", lambda: None)
    monkeypatch.setattr(module, "_TOKENS", 12)
    assert all(torch.equal(hashes(form, 4), whole) for form in forms)
    assert all(torch.equal(hashes(vectors(dtype), before), ends[before > 0]) for before in (0, 9))


def test_the_first_tokens_are_a_hash_of_their_own():
    assert not hashes(vectors()[:, :, :0], 0).any()
    long = torch.randn(1, 1, 3000, 2)
    assert torch.equal(hashes(long, 1000)[0], hashes(long[:, :, :1000], 0)[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_change_shows(dtype):
    before = hashes(vectors(dtype), 9)
    for change in (
        lambda u: u.neg_(),
        lambda u: u[0, 1, 2:4].neg_(),
        lambda u: u.copy_(u.flip(2)),
        lambda u: u.copy_(u.flip(3)),
        lambda u: u[1, 2, 3, 4].mul_(2),
        lambda u: u.mul_(2),
        lambda u: u[0, 0, 0].zero_(),
    ):
        changed = vectors(dtype)
        change(changed)
        assert not torch.equal(hashes(changed, 9), before)

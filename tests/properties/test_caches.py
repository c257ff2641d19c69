"""A cache, whatever is done to it in place or otherwise, gives what one without states gives."""

from __future__ import annotations

import copy
from functools import cache as remembered
from functools import partial

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache, StaticCache

import hrf
from hrf.integrations.transformers import register
from integrations.models import BATCH, LENGTH, ROUNDING, VOCABULARY, gpt2, llama, made
from properties.strategies import cases, seeds

MAPS = {"positive": partial(hrf.Positive, n_projections=8), "angular": "angular"}
# Signed features cancel: a denominator that is just not too small has lost half of its 16 digits, and layers lose more.
# Stale states are wrong in the second digit.
SLACK = {"positive": ROUNDING, "angular": {"rtol": 1e-5, "atol": 1e-5}}


@remembered
def model(build, name):
    register(f"cached-{name}", MAPS[name])
    return made(build, f"cached-{name}")


def some(tensor, seed):
    """Return a view of a random part of a tensor."""
    generator = torch.Generator().manual_seed(seed)
    for axis in range(tensor.ndim):
        start, stop = sorted(torch.randint(tensor.shape[axis] + 1, (2,), generator=generator).tolist())
        tensor = tensor.narrow(axis, start, stop - start)
    return tensor


WRITES = {
    "zero": torch.Tensor.zero_,
    "negate": torch.Tensor.neg_,
    "double": lambda u: u.mul_(2),
    "swap tokens": lambda u: u.copy_(u.flip(2)),
    "swap sequences": lambda u: u.copy_(u.flip(0)),
    "nothing": lambda u: u,
}


@st.composite
def changes(draw):
    """Draw a change: to tensors in place, or of the whole cache."""
    name, seed = draw(st.sampled_from([*WRITES, "reorder", "crop", "copy"])), draw(seeds)
    of_keys, layer = draw(st.booleans()), draw(st.integers(0, 1))

    def change(cache):
        if name == "reorder":
            cache.reorder_cache(torch.tensor([1, seed % 2]))
        elif name == "crop":
            if isinstance(cache, DynamicCache) and cache.get_seq_length() > 1:
                cache.crop(-1)
        elif name == "copy":
            return copy.deepcopy(cache)
        else:
            own = cache.layers[layer]
            WRITES[name](some(own.keys if of_keys else own.values, seed))
        return cache

    return change


@given(
    build=st.sampled_from([gpt2, llama]),
    name=st.sampled_from([*MAPS]),
    kind=st.sampled_from(["dynamic", "static"]),
    mode=st.sampled_from([torch.no_grad, torch.inference_mode]),
    steps=st.lists(st.tuples(st.integers(1, 3), st.lists(changes(), max_size=2)), min_size=2, max_size=5),
    seed=seeds,
)
@cases(4)
def test_a_cache_gives_what_one_without_states_gives(build, name, kind, mode, steps, seed):
    decoder, generator = model(build, name), torch.Generator().manual_seed(seed)
    with mode():
        cache = DynamicCache()
        if kind == "static":
            cache = StaticCache(config=decoder.config, max_cache_len=2 * LENGTH)
        for length, done in steps:
            tokens = torch.randint(1, VOCABULARY, (BATCH, length), generator=generator)
            expected = decoder(
                tokens, past_key_values=copy.deepcopy(cache)
            ).logits  # a copy leaves states behind
            torch.testing.assert_close(decoder(tokens, past_key_values=cache).logits, expected, **SLACK[name])
            for change in done:
                cache = change(cache)

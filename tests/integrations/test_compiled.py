"""Models compiled to one graph give what they give uncompiled: outputs and gradients."""

from __future__ import annotations

import pytest
import torch

from hrf.integrations.transformers import convert
from integrations.models import (
    DECODERS,
    FAMILIES,
    LENGTH,
    ROUNDING,
    batches,
    bert,
    final,
    llama,
    made,
    padded,
)


def assert_compiled_is_the_same(model, backend="aot_eager", **inputs):
    """Compare logits, or the last hidden states, and the gradients of all parameters."""
    received = []
    for function in (model, torch.compile(model, backend=backend, fullgraph=True)):
        model.zero_grad()
        with torch.enable_grad():
            output = final(function(**inputs, use_cache=False))
            output.square().sum().backward()
        # The compiler gives zeros to parameters without effect.
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
        received.append([output.detach(), *gradients])
    torch.compiler.reset()
    for mine, theirs in zip(*received, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9 * float(theirs.abs().max()))


@pytest.mark.parametrize("build", FAMILIES)
def test_one_graph_gives_the_same(build, tokens):
    assert_compiled_is_the_same(made(build), input_ids=tokens, attention_mask=padded("right"))


def test_one_graph_with_fitted_maps(tokens):
    model = made(llama)
    convert(model, batches(), feature_map="fitted")
    assert_compiled_is_the_same(model, input_ids=tokens, attention_mask=padded("left"))


def test_compiled_layers_share_their_maps_with_uncompiled_layers(tokens):
    """Maps come from the seed and the index of a layer, whoever makes them."""
    compiled = torch.compile(made(bert), backend="eager", fullgraph=True)
    torch.testing.assert_close(final(compiled(tokens)), final(made(bert)(tokens)), **ROUNDING)
    torch.compiler.reset()


@pytest.mark.parametrize("build", DECODERS)
def test_compiled_decoders_need_no_mask(build, tokens):
    assert_compiled_is_the_same(made(build), input_ids=tokens)


def test_compiled_decoders_refuse_packed_sequences(tokens):
    places = torch.cat([torch.arange(4), torch.arange(LENGTH - 4)])[None]
    compiled = torch.compile(made(llama), backend="aot_eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="neither causal nor bidirectional"):
        compiled(tokens[:1], position_ids=places, use_cache=False)
    torch.compiler.reset()

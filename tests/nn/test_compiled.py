"""Layers compiled to one graph give what they give uncompiled: outputs and gradients."""

from __future__ import annotations

import pytest
import torch

import hrf

LENGTH, WIDTH = 9, 16
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
PADDED = torch.zeros(2, LENGTH, dtype=torch.bool)
PADDED[1, -3:] = True


def assert_compiled_is_the_same(layer, call, backend="aot_eager"):
    received = []
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64, requires_grad=True)
    for function in (call, torch.compile(call, backend=backend, fullgraph=True)):
        output = function(x)
        inputs = [x, *(p for p in layer.parameters())]
        received.append([output.detach(), *torch.autograd.grad(output.square().sum(), inputs)])
    torch.compiler.reset()
    for mine, theirs in zip(*received, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9 * float(theirs.abs().max()))


@pytest.mark.parametrize("feature_map", ["positive", "angular", "trigonometric"])
@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"attn_mask": CAUSAL}, {"key_padding_mask": PADDED}, {"need_weights": True}],
    ids=lambda options: next(iter(options), "plain"),
)
def test_one_graph_of_attention(feature_map, options):
    layer = hrf.nn.MultiheadAttention(
        WIDTH, 4, batch_first=True, dtype=torch.float64, feature_map=feature_map, seed=0
    )
    assert_compiled_is_the_same(layer, lambda x: layer(x, x, x, **options)[0])


def test_one_graph_of_an_encoder_layer():
    options = {"batch_first": True, "dtype": torch.float64, "dropout": 0.0, "seed": 0}
    layer = hrf.nn.TransformerEncoderLayer(WIDTH, 4, 24, **options)
    assert_compiled_is_the_same(layer, lambda x: layer(x, src_key_padding_mask=PADDED))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
def test_one_graph_by_the_default_compiler():
    layer = hrf.nn.MultiheadAttention(WIDTH, 4, batch_first=True, dtype=torch.float64, seed=0)
    assert_compiled_is_the_same(layer, lambda x: layer(x, x, x, is_causal=True)[0], backend="inductor")


def test_a_map_that_learns_gets_gradients_from_a_graph():
    layer = hrf.nn.MultiheadAttention(WIDTH, 4, batch_first=True, dtype=torch.float64, seed=0)
    omega = next(layer.feature_map.all_projections()).omega.requires_grad_()
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    found = []
    for function in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
        found += torch.autograd.grad(function(x, x, x)[0].square().sum(), omega)
    torch.compiler.reset()
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9 * float(found[0].abs().max()))


def test_layers_alike_share_a_graph():
    """Handles of maps are tensors: a number would mean a graph per layer, up to the compiler's limit."""
    layers = [hrf.nn.MultiheadAttention(WIDTH, 4, batch_first=True, seed=seed) for seed in range(3)]
    x, graphs = torch.randn(2, LENGTH, WIDTH), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(lambda layer, x: layer(x, x, x)[0], backend=backend, fullgraph=True)
    for layer in layers:
        assert torch.equal(compiled(layer, x), layer(x, x, x)[0])
    torch.compiler.reset()
    assert len(graphs) == 1

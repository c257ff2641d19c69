"""Training with multi-head attention: gradients, redraws, dropout."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch.nn import functional as F

import hrf
from nn.layers import HEADS, LENGTH, ROUNDING, WIDTH, pair, positive


def test_every_parameter_gets_a_gradient():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, bias=True, dropout=0.1, redraw_every=1)
    x = torch.randn(LENGTH, WIDTH)
    layer(x, x, x)[0].square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("widths", [{}, {"kdim": 9, "vdim": 8}])
def test_parameters_can_be_drawn_again(widths):
    layers = pair(**widths)
    for layer in layers:
        torch.manual_seed(1)
        layer._reset_parameters()
    for name, parameter in layers[0].named_parameters():
        assert torch.equal(layers[1].get_parameter(name), parameter)


def test_redraws_are_counted_in_training_only():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, feature_map=positive, redraw_every=2)
    x, seen = torch.randn(LENGTH, WIDTH), []
    for training in (True, False, True, False, True, True, True):
        layer.train(training)
        layer(x, x, x)
        seen.append(layer.feature_map.projection.omega.clone())
    same = [torch.equal(a, b) for a, b in itertools.pairwise(seen)]
    assert same == [True, True, True, False, True, False]  # after passes 2 and 4 in training
    assert layer.passes == 5


def test_without_redraws_nothing_changes():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS)
    before = copy.deepcopy(layer.state_dict())
    x = torch.randn(LENGTH, WIDTH)
    layer(x, x, x)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_gradients_are_those_of_the_map_that_was_used():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, feature_map=positive, redraw_every=1)
    x = torch.randn(LENGTH, WIDTH)
    output, _ = layer(x, x, x)
    expected = torch.autograd.grad(output.sum(), layer.in_proj_weight, retain_graph=True)
    layer(x, x, x)  # with a new ω
    torch.testing.assert_close(torch.autograd.grad(output.sum(), layer.in_proj_weight), expected, **ROUNDING)


def test_dropout_drops_keys_in_training_only(monkeypatch):
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, dropout=0.5, feature_map=positive)
    x = torch.randn(LENGTH, WIDTH)
    kept = torch.tensor([2.0, 0, 2, 0, 2]).expand(HEADS, -1).unsqueeze(-1)
    monkeypatch.setattr(F, "dropout", lambda ones, p: ones * kept)
    dropped, _ = layer(x, x, x)
    q, k, v = layer._projected(x, x, x)
    mixed = hrf.attention(q, k, v * kept, layer.feature_map)
    torch.testing.assert_close(dropped, layer.out_proj(mixed.transpose(-3, -2).flatten(-2)), **ROUNDING)
    layer.eval()
    mixed = hrf.attention(q, k, v, layer.feature_map)
    output, _ = layer(x, x, x)
    torch.testing.assert_close(output, layer.out_proj(mixed.transpose(-3, -2).flatten(-2)), **ROUNDING)


@pytest.mark.stat
def test_dropout_keeps_the_mean():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, dropout=0.3, feature_map=positive)
    x, n = torch.randn(LENGTH, WIDTH), 2000
    many = x.unsqueeze(1).expand(-1, n, -1)
    outputs = layer(many, many, many)[0].detach()
    error = outputs.std(1) / n**0.5
    assert ((outputs.mean(1) - layer.eval()(x, x, x)[0]).abs() < 5 * error).all()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler's own, where it hands over
def test_compiled_layers_redraw():
    layer = hrf.nn.MultiheadAttention(8, 2, batch_first=True, redraw_every=2, seed=0)
    compiled = torch.compile(layer, backend="eager")
    x, omegas, outputs = torch.randn(1, 5, 8), [], []
    for _ in range(7):
        output, _ = compiled(x, x, x)
        output.sum().backward()
        omegas.append(layer.feature_map.projection.omega.clone())
        outputs.append(output.detach())
    same = [torch.equal(a, b) for a, b in itertools.pairwise(omegas)]
    assert same == [True, False, True, False, True, False]
    assert torch.equal(outputs[-1], layer.eval()(x, x, x)[0])
    torch.compiler.reset()

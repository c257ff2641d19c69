"""Arguments of layers and of the loss: seeds, options, and one sentence for each mistake."""

from __future__ import annotations

from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from torch import Generator

import hrf
from hrf.nn import MapName
from nn.layers import HEADS, LENGTH, WIDTH

LAYERS = [hrf.nn.MultiheadAttention, hrf.nn.TransformerEncoderLayer]


def omega(layer):
    attention = getattr(layer, "self_attn", layer)
    return attention.feature_map.projection.omega


@pytest.mark.parametrize("kind", LAYERS)
def test_a_seed_stands_for_a_generator(kind):
    expected = omega(kind(WIDTH, HEADS, generator=Generator().manual_seed(3)))
    assert omega(kind(WIDTH, HEADS, seed=3)).equal(expected)
    assert not omega(kind(WIDTH, HEADS, seed=4)).equal(expected)
    with pytest.raises(TypeError, match=r"^generator is 0; expected a torch\.Generator .*seed=0\)$"):
        kind(WIDTH, HEADS, generator=0)
    with pytest.raises(ValueError, match="generator and seed are both given; expected one of them"):
        kind(WIDTH, HEADS, generator=Generator(), seed=0)


def test_the_seed_of_a_converted_layer():
    reference = torch.nn.MultiheadAttention(WIDTH, HEADS)
    drawn = [omega(hrf.nn.MultiheadAttention.from_torch(reference, seed=seed)) for seed in (3, 3, 4)]
    assert drawn[0].equal(drawn[1])
    assert not drawn[0].equal(drawn[2])


def test_the_seed_of_a_loss():
    weight, hidden, targets = torch.randn(12, 5), torch.randn(4, 5), torch.arange(4)
    loss = hrf.nn.SampledSoftmaxLoss(hrf.sampling.UniformSampler(12), 3)
    expected = loss(hidden, targets, weight, generator=Generator().manual_seed(3))
    assert loss(hidden, targets, weight, seed=3).equal(expected)
    for mode in (True, False):
        loss.train(mode)
        with pytest.raises(TypeError, match=r"generator is 0; expected a torch\.Generator"):
            loss(hidden, targets, weight, generator=0)
        with pytest.raises(ValueError, match="generator and seed are both given"):
            loss(hidden, targets, weight, generator=Generator(), seed=0)


def test_arrays_are_no_tensors():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS)
    x = torch.randn(LENGTH, WIDTH)
    for name in ("query", "key", "value"):
        with pytest.raises(TypeError, match=f"^{name} is of type ndarray; expected a tensor"):
            layer(**{"query": x, "key": x, "value": x, name: x.numpy()})
    for name, mask in (
        ("key_padding_mask", np.zeros(LENGTH, bool)),
        ("attn_mask", np.ones((LENGTH, LENGTH))),
    ):
        with pytest.raises(TypeError, match=f"^{name} is of type ndarray; expected a tensor"):
            layer(x, x, x, **{name: mask})
    given = {
        "hidden": torch.randn(4, 5),
        "targets": torch.arange(4),
        "weight": torch.randn(12, 5),
        "bias": torch.zeros(12),
    }
    loss = hrf.nn.SampledSoftmaxLoss(hrf.sampling.UniformSampler(12), 3)
    for name, value in given.items():
        with pytest.raises(TypeError, match=f"^{name} is of type ndarray; expected a tensor"):
            loss(**{**given, name: value.numpy()})


@pytest.mark.parametrize("wrong", [3, None, lambda dim, heads, generator: "a map"])
def test_a_map_is_a_name_a_map_or_its_maker(wrong):
    with pytest.raises(TypeError, match=r"feature_map is or returned .*; expected one of positive"):
        hrf.nn.MultiheadAttention(WIDTH, HEADS, feature_map=wrong)


def test_layers_list_the_names_of_maps():
    for kind in LAYERS:
        assert MapName in get_args(get_type_hints(kind.__init__)["feature_map"])

"""Parameters, maps and state of multi-head attention."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hrf
from nn.layers import HEADS, KEYS, LENGTH, WIDTH, pair, positive


class Model(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer


def test_state_dict_of_pytorch_leaves_the_map_alone():
    reference, _ = pair()
    model = Model(hrf.nn.MultiheadAttention(WIDTH, HEADS, feature_map=positive))
    omega = model.layer.feature_map.projection.omega.clone()
    model.load_state_dict(Model(reference).state_dict())
    assert torch.equal(model.layer.in_proj_weight, reference.in_proj_weight)
    assert torch.equal(model.layer.feature_map.projection.omega, omega)


def test_own_state_dict_brings_map_and_count():
    first, second = (hrf.nn.MultiheadAttention(WIDTH, HEADS, redraw_every=2) for _ in range(2))
    x = torch.randn(LENGTH, WIDTH)
    for _ in range(3):
        first(x, x, x)
    second.load_state_dict(first.state_dict())
    assert second.passes == 3
    assert torch.equal(second(x, x, x)[0], first(x, x, x)[0])


def test_a_state_dict_with_part_of_a_map_is_refused():
    layer = hrf.nn.MultiheadAttention(WIDTH, HEADS, feature_map=positive)
    state = layer.state_dict()
    del state["feature_map.projection.omega"]
    with pytest.raises(RuntimeError, match="omega"):
        layer.load_state_dict(state)


def test_conversion_keeps_what_a_module_is():
    reference = nn.MultiheadAttention(
        WIDTH, HEADS, dropout=0.25, kdim=9, batch_first=True, dtype=torch.bfloat16
    )
    reference.eval().out_proj.requires_grad_(False)
    layer = hrf.nn.MultiheadAttention.from_torch(reference, feature_map="positive")
    assert (layer.dropout, layer.kdim, layer.batch_first, layer.training) == (0.25, 9, True, False)
    assert {n: p.requires_grad for n, p in layer.named_parameters()} == {
        n: p.requires_grad for n, p in reference.named_parameters()
    }
    assert layer.k_proj_weight.dtype == torch.bfloat16
    assert layer.feature_map.projection.omega.dtype == torch.float32  # features need it
    x, y = torch.randn(1, LENGTH, WIDTH).bfloat16(), torch.randn(1, KEYS, 9).bfloat16()
    assert layer(x, y, torch.randn(1, KEYS, WIDTH).bfloat16())[0].dtype == torch.bfloat16


@pytest.mark.parametrize("feature_map", ["angular", "positive", "trigonometric"])
def test_maps_by_name(feature_map):
    draws = [
        hrf.nn.MultiheadAttention(
            WIDTH, HEADS, feature_map=feature_map, generator=torch.Generator().manual_seed(seed)
        )
        for seed in (1, 1, 2)
    ]
    assert draws[0].feature_map.heads == HEADS
    omegas = [next(layer.feature_map.all_projections()).omega for layer in draws]
    assert torch.equal(omegas[0], omegas[1])
    assert not torch.equal(omegas[0], omegas[2])


@pytest.mark.parametrize("feature_map", ["angular", "positive", "trigonometric"])
@pytest.mark.parametrize("kind", [hrf.nn.MultiheadAttention, hrf.nn.TransformerEncoderLayer])
def test_layers_are_built_on_the_meta_device_and_filled_later(kind, feature_map):
    filled = kind(WIDTH, HEADS, feature_map=feature_map).eval()
    with torch.device("meta"):
        layer = kind(WIDTH, HEADS, feature_map=feature_map).eval()
    assert all(tensor.is_meta for tensor in layer.state_dict().values())
    layer.to_empty(device="cpu").load_state_dict(filled.state_dict())
    x = [torch.randn(LENGTH, WIDTH)] * (3 if kind is hrf.nn.MultiheadAttention else 1)
    outputs = [made(*x) for made in (layer, filled)]
    mine, theirs = (out[0] if isinstance(out, tuple) else out for out in outputs)
    assert mine.equal(theirs)


def test_a_given_map_is_used_as_it_is():
    phi = hrf.Positive(WIDTH // HEADS, n_projections=4)
    assert hrf.nn.MultiheadAttention(WIDTH, HEADS, feature_map=phi).feature_map is phi

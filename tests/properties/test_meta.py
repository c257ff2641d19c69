"""Maps and layers made on the meta device: shapes without values, then the tensors of the constructor's seed."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hrf
from hrf.projections import KINDS
from properties.strategies import cases, either, seeds

MAKERS = {
    "positive": hrf.Positive,
    "trigonometric": hrf.Trigonometric,
    "exponential": hrf.Exponential,
    "angular": partial(hrf.AngularHybrid, n_coefficient_projections=4),
    "angular, apart": partial(hrf.AngularHybrid, n_coefficient_projections=3, share_projections=False),
}


@given(
    st.sampled_from(sorted(MAKERS)),
    st.sampled_from(KINDS),
    st.sampled_from([None, 1, 3]),
    st.integers(2, 20),
    st.integers(1, 30),
    seeds,
    either,
)
@cases(4)
def test_a_map_has_shapes_on_the_meta_device_and_its_seed_afterwards(
    name, kind, heads, dim, n_projections, seed, is_causal
):
    make = partial(
        MAKERS[name], dim, n_projections=n_projections, projection=kind, heads=heads, seed=seed % 2**31
    )
    with torch.device("meta"):
        phi = make()
    x = torch.empty(2, heads or 3, 7, dim, device="meta")
    assert all(tensor.is_meta for tensor in phi.buffers())
    assert phi.queries(x).shape == phi.keys(x).shape == (*x.shape[:-1], phi.feature_dim)
    assert phi.estimate(x, x).shape == (2, heads or 3, 7, 7)
    output = hrf.attention(x, x, x[..., :2], phi, is_causal=is_causal)
    assert output.is_meta
    assert output.shape == (*x.shape[:-1], 2)
    phi.to_empty(device="cpu")
    for tensor in phi.buffers():
        tensor.fill_(torch.nan)  # empty memory holds anything
    phi.reset_parameters()
    for received, expected in zip(phi.buffers(), make().buffers(), strict=True):
        assert torch.equal(received, expected)


@given(
    st.sampled_from([hrf.nn.MultiheadAttention, hrf.nn.TransformerEncoderLayer]),
    st.sampled_from(["positive", "trigonometric", "angular"]),
    seeds,
)
@cases(1)
def test_a_layer_is_filled_module_by_module(kind, feature_map, seed):
    make = partial(kind, 16, 2, batch_first=True, feature_map=feature_map, seed=seed % 2**31)
    with torch.device("meta"):
        layer = make()
    layer.to_empty(device="cpu")
    for tensor in (*layer.parameters(), *layer.buffers()):
        tensor.detach().copy_(torch.full_like(tensor.double(), 1e10))
    for module in layer.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    own, expected = (
        made if kind is hrf.nn.MultiheadAttention else made.self_attn for made in (layer, make())
    )
    for received, buffer in zip(own.buffers(), expected.buffers(), strict=True):
        assert torch.equal(received, buffer)
    assert all(parameter.abs().max() <= 1 for parameter in layer.parameters())


def test_without_a_seed_a_reset_draws_anew():
    phi = hrf.Positive(4, n_projections=4)
    before = phi.projection.omega.clone()
    phi.reset_parameters()
    assert not torch.equal(before, phi.projection.omega)


def test_fitted_tensors_cannot_be_drawn():
    phi = hrf.Exponential(2, n_projections=4, matrix=torch.tensor([2.0, 1.0]))
    with pytest.raises(ValueError, match=r"query_matrix\.real"):
        phi.reset_parameters()


def test_moving_centres_need_values():
    x = torch.randn(60, 4)
    sizes = {"n_clusters": (2, 2), "n_projections": 4, "base": "shifted", "recenter": True}
    phi = hrf.ClusteredHybrid.fit(x, x, **sizes, seed=0).to("meta")
    u = torch.empty(1, 1, 5, 4, device="meta")
    with pytest.raises(NotImplementedError, match="needs their values"):
        hrf.attention(u, u, u, phi)

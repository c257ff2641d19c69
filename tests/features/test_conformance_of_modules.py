"""Every map as a module: heads, batches, blocks, files, seeds, precisions, compilation and wrong inputs."""

from __future__ import annotations

import copy

import pytest
import torch

import hrf
from features.registry import DIM, MAPS, X, Y, build

every_map = pytest.mark.parametrize("name", MAPS)


@every_map
def test_heads_are_maps_of_their_own(name):
    many, single = build(name, heads=3, seed=5), build(name)
    x = X.expand(2, 3, *X.shape) * torch.tensor([1.0, 0.5, -1.0], dtype=torch.float64)[:, None, None]
    together = many.queries(x), many.keys(x), many.estimate(x, x)
    for head in range(3):
        state = {k: v.unflatten(0, (3, -1))[head] for k, v in many.state_dict().items()}
        state = {k: v.view(single.state_dict()[k].shape) for k, v in state.items()}
        single.load_state_dict(state)
        alone = single.queries(x[:, head]), single.keys(x[:, head]), single.estimate(x[:, head], x[:, head])
        for of_all, own in zip(together, alone, strict=True):
            torch.testing.assert_close(of_all[:, head], own)


@every_map
def test_one_map_for_all_heads_and_batches(name):
    phi = build(name)
    batch = torch.stack([X, -X, 2 * X]).unsqueeze(0).expand(2, 3, *X.shape)
    torch.testing.assert_close(phi.queries(batch)[1, 2], phi.queries(2 * X))
    torch.testing.assert_close(phi.estimate(batch, batch)[0, 1], phi.estimate(-X, -X))


@every_map
def test_streamed_features_equal_whole_ones(name, monkeypatch):
    phi = build(name)
    x = torch.randn(2, 7, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = phi.queries(x), phi.keys(x)
    monkeypatch.setattr(type(phi), "_block", 3 * phi.feature_dim)
    for streamed, expected in zip((phi.queries(x), phi.keys(x)), whole, strict=True):
        torch.testing.assert_close(streamed, expected, rtol=1e-13, atol=1e-15)


@every_map
def test_save_and_load(name, tmp_path):
    phi = build(name, seed=3)
    phi.save(tmp_path / "map.safetensors")
    state = torch.get_rng_state()
    copied = hrf.load(tmp_path / "map.safetensors")
    assert torch.equal(torch.get_rng_state(), state)
    assert type(copied) is type(phi)
    assert repr(copied) == repr(phi)
    assert torch.equal(copied.queries(X), phi.queries(X))
    assert torch.equal(copied.keys(Y), phi.keys(Y))
    copied.redraw_(torch.Generator().manual_seed(9))
    phi.redraw_(torch.Generator().manual_seed(9))
    assert torch.equal(copied.estimate(X, Y), phi.estimate(X, Y))  # shared projections are still shared


@every_map
def test_redraw_deepcopy_and_state_dict(name):
    phi = build(name)
    before, twin, state = phi.queries(X), copy.deepcopy(phi), copy.deepcopy(phi.state_dict())
    phi.redraw_(torch.Generator().manual_seed(8))
    assert torch.equal(phi.queries(X), before) == (name == "clustered separable")  # nothing is random there
    assert torch.equal(twin.queries(X), before)
    phi.load_state_dict(state)
    assert torch.equal(phi.queries(X), before)


@every_map
def test_same_seed_same_map(name):
    assert torch.equal(build(name, seed=4).queries(X), build(name, seed=4).queries(X))
    random = name != "clustered separable"
    assert torch.equal(build(name, seed=4).queries(X), build(name, seed=5).queries(X)) != random


@every_map
def test_dtype_follows_inputs_and_map(name):
    phi = build(name)
    assert phi.queries(X.float()).dtype == torch.float64
    phi.to(torch.float32)
    assert phi.queries(X.float()).dtype == torch.float32
    assert phi.queries(X.half()).dtype == torch.float32
    assert phi.queries(X).dtype == torch.float64
    torch.testing.assert_close(phi.queries(X.float()).double(), phi.queries(X), rtol=1e-4, atol=1e-5)
    phi.to(torch.bfloat16)
    assert phi.queries(X.bfloat16()).dtype == torch.float32


@every_map
def test_empty_and_single_sequences(name):
    phi = build(name)
    assert phi.queries(X[:0]).shape == (0, phi.feature_dim)
    assert phi.scaled_keys(X[:0]).values.shape == (0, phi.feature_dim)
    assert phi.estimate(X[:0], Y).shape == (0, len(Y))
    assert build(name, kind="iid").mse(X, Y[:0]).shape == (len(X), 0)
    torch.testing.assert_close(phi.queries(X[1:2]), phi.queries(X)[1:2])


@every_map
def test_compiles_in_one_graph(name):
    phi = build(name)
    for side in (phi.queries, phi.keys):
        compiled = torch.compile(side, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(X), side(X), rtol=1e-12, atol=1e-14)
    torch.compiler.reset()


@every_map
def test_repr_names_class_and_width(name):
    phi = build(name)
    assert repr(phi).startswith(type(phi).__name__ + "(")
    assert f"feature_dim={phi.feature_dim}" in repr(phi)
    assert "\n" not in repr(phi)


@every_map
@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: X[:, :3], ValueError, "last dimension 3, the map was built for dim=4"),
        (lambda: X[0], ValueError, r"shape \(4,\); expected a shape \(..., L, 4\)"),
        (lambda: X.long(), TypeError, "torch.int64; expected a real floating-point"),
        (lambda: X.to(torch.complex64), TypeError, "torch.complex64; expected a real floating-point"),
        (lambda: X.tolist(), TypeError, "list; expected a real floating-point"),
        (lambda: X.index_fill(0, torch.tensor([1]), torch.nan), ValueError, "4 values that are NaN"),
        (lambda: X.index_fill(0, torch.tensor([1]), torch.inf), ValueError, "4 values that are NaN or inf"),
    ],
)
def test_bad_input_is_refused_in_words(name, make, error, says):
    phi = build(name)
    for call in (phi.queries, phi.scaled_keys, lambda u: phi.estimate(u, Y), lambda u: phi.log_mse(X, u)):
        with pytest.raises(error, match=says):
            call(make())


@every_map
def test_wrong_number_of_heads_is_refused(name):
    with pytest.raises(ValueError, match="2 heads, the map has 3"):
        build(name, heads=3).queries(X.expand(2, *X.shape))

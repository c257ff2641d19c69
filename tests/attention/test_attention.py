"""The fast engines are the quadratic twin: outputs, gradients and counts, for every map and every option."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hrf
from attention.data import assert_equals_reference, assert_same, inputs, padding
from features.registry import DIM, MAPS, PARTLY_EXACT, build
from hrf import tuning
from hrf._attention import reference

every_map = pytest.mark.parametrize("name", MAPS | PARTLY_EXACT)
both_ways = pytest.mark.parametrize("is_causal", [False, True], ids=["bidirectional", "causal"])
one_or_each = pytest.mark.parametrize("heads", [None, 4], ids=["one map", "map a head"])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks, chunks, parts of the rows and spans of a row, the last not full."""
    monkeypatch.setattr(tuning, "CAUSAL_CHUNK", 4)
    monkeypatch.setattr(tuning, "DENSE_FLOATS", 1)
    monkeypatch.setattr(tuning, "DENSE_LEAST_ROWS", 4)
    monkeypatch.setattr(tuning, "UNSCALED_FLOATS", 1)
    monkeypatch.setattr(tuning, "UNSCALED_ROWS", 4)
    monkeypatch.setattr(tuning, "ROWS_INFERENCE", 27)
    monkeypatch.setattr(tuning, "ROWS_FORWARD", 18)
    monkeypatch.setattr(tuning, "ROWS_BACKWARD", 9)
    monkeypatch.setattr(tuning, "CLUSTER_TOKENS", 4)
    monkeypatch.setattr(tuning, "PAIR_FLOATS", 128)


@every_map
@both_ways
@one_or_each
def test_equals_reference(name, is_causal, heads):
    assert_equals_reference(*inputs(2), build(name, heads=heads), is_causal=is_causal)


@every_map
def test_cross_attention(name):
    assert_equals_reference(*inputs(length=3, keys=11), build(name))


@every_map
@both_ways
@one_or_each
def test_grouped_queries(name, is_causal, heads):
    q, k, v = inputs(2, heads=4, key_heads=2)
    assert_equals_reference(q, k, v, build(name, heads=heads), is_causal=is_causal)


@every_map
@both_ways
def test_padding(name, is_causal):
    q, k, v = inputs(3, key_heads=2)
    ignore = padding(3, 9)
    ignore[2] = True  # nothing to see at all
    phi = build(name)
    assert_equals_reference(q, k, v, phi, is_causal=is_causal, key_padding_mask=ignore)
    out = hrf.attention(q, k, v, phi, is_causal=is_causal, key_padding_mask=ignore)
    assert (out[2] == 0).all()


@every_map
@both_ways
def test_packed_sequences(name, is_causal):
    q, k, v = inputs(1, key_heads=2, length=12)
    bounds = torch.tensor([0, 3, 3, 5, 11, 12], dtype=torch.int32)  # of lengths 3, 0, 2, 6 and 1
    assert_equals_reference(q, k, v, build(name), is_causal=is_causal, cu_seqlens=bounds)
    ignore = padding(1, 12)
    assert_equals_reference(
        q, k, v, build(name), is_causal=is_causal, cu_seqlens=bounds, key_padding_mask=ignore
    )


@both_ways
def test_scale_and_batch_axes(is_causal):
    q, k, v = inputs(2, 3, heads=2)
    phi = build("positive")
    assert_equals_reference(q, k, v, phi, is_causal=is_causal, scale=1.7)
    alone = hrf.attention(q[1, 2], k[1, 2], v[1, 2], phi, is_causal=is_causal)
    torch.testing.assert_close(hrf.attention(q, k, v, phi, is_causal=is_causal)[1, 2], alone)


@pytest.mark.parametrize("name", ["trigonometric", "partly exact moments"])
@both_ways
def test_where_denominators_are_clamped(name, is_causal):
    q, k, v = inputs(2)
    assert_equals_reference(q, k, v, build(name), is_causal=is_causal, scale=9.0)
    rule = hrf.Denominator()
    hrf.attention(q, k, v, build(name), is_causal=is_causal, scale=9.0, denominator=rule)
    assert 0 < rule.clamped < rule.rows


@every_map
def test_a_later_key_changes_nothing(name):
    q, k, v = (t.detach() for t in inputs(2))
    phi = build(name)
    before = hrf.attention(q, k, v, phi, is_causal=True)
    for position in (3, 5):  # at the end of a chunk and inside one
        changed = [t.clone() for t in (k, v)]
        for t in changed:
            t[..., position:, :] *= 30
        after = hrf.attention(q, *changed, phi, is_causal=True)
        # Exponents may be shifted otherwise: rounding is all that differs.
        torch.testing.assert_close(
            after[..., :position, :], before[..., :position, :], rtol=1e-12, atol=1e-13
        )
        assert not torch.equal(after[..., position:, :], before[..., position:, :])


@every_map
@both_ways
def test_an_ignored_key_changes_nothing(name, is_causal):
    q, k, v = (t.detach() for t in inputs(2))
    phi, ignore = build(name), padding(2, 9)
    before = hrf.attention(q, k, v, phi, is_causal=is_causal, key_padding_mask=ignore)
    garbage = [t.masked_fill(ignore[:, None, :, None], torch.nan) for t in (k, v)]
    after = hrf.attention(q, *garbage, phi, is_causal=is_causal, key_padding_mask=ignore)
    assert torch.equal(after, before)


@every_map
def test_order_of_keys_does_not_matter(name):
    q, k, v = (t.detach() for t in inputs(2))
    phi, order = build(name), torch.randperm(9, generator=torch.Generator().manual_seed(0))
    expected = hrf.attention(q, k, v, phi)
    received = hrf.attention(q, k[..., order, :], v[..., order, :], phi)
    assert (received - expected).abs().max() <= 1e-8 * expected.abs().max()


@both_ways
def test_empty_sequences(is_causal):
    phi = build("trigonometric")
    q, k, v = inputs(2, length=0 if is_causal else 3, keys=0)
    out = hrf.attention(q, k, v, phi, is_causal=is_causal)
    assert out.shape == (2, 4, q.shape[-2], 3)
    assert (out == 0).all()
    assert hrf.attention(q[..., :0, :], *inputs(2)[1:], phi).shape == (2, 4, 0, 3)
    out.sum().backward()
    assert (q.grad == 0).all()


@every_map
@both_ways
def test_empty_batches_and_values(name, is_causal):
    phi, (q, k, v) = build(name), inputs(2)
    assert hrf.attention(q[:0], k[:0], v[:0], phi, is_causal=is_causal).shape == (0, 4, 9, 3)
    out = hrf.attention(q.detach(), k.detach(), v.detach()[..., :0], phi, is_causal=is_causal)
    assert out.shape == (2, 4, 9, 0)


@every_map
@both_ways
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_finite_for_norms_from_0_to_100(name, is_causal, dtype):
    phi = build(name).float()
    q, k, v = (nn.functional.normalize(t.detach(), dim=-1) for t in inputs(1, length=6))
    norms = torch.tensor([0.0, 1e-4, 1.0, 10.0, 50.0, 100.0])[:, None]
    q, k, v = (q * norms).to(dtype), (k * norms.flip(0)).to(dtype), v.to(dtype)
    out = hrf.attention(q, k, v, phi, is_causal=is_causal, scale=1.0)
    assert out.dtype == dtype
    assert out.isfinite().all()


class Learned(hrf.FeatureMap):
    """Positive features of Ax with a learned A."""

    nonnegative = True

    def __init__(self) -> None:
        super().__init__()
        self.inner = build("positive")
        self.weight = nn.Parameter(torch.eye(DIM, dtype=torch.float64) * 0.8)
        self.dim, self.heads, self.feature_dim = DIM, None, self.inner.feature_dim

    def scaled(self, x, side):
        return self.inner.scaled(x @ self.weight, side)


@both_ways
def test_learnable_parameters_of_a_map_get_gradients(is_causal):
    q, k, v = inputs(2, key_heads=2)
    phi = Learned()
    received = hrf.attention(q, k, v, phi, is_causal=is_causal)
    expected = reference.attention(q, k, v, phi, is_causal=is_causal)
    assert_same(received, expected, [q, k, v, phi.weight])


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("angular hybrid", ["bases.0.projection.omega"]),
        ("angular hybrid independent", ["bases.0.projection.omega", "bases.1.projection.omega"]),
        ("clustered paper", ["feature_map.projection.omega"]),
        ("clustered shrunk", ["query_centers", "key_centers", "shrinkage", "feature_map.projection.omega"]),
    ],
)
@one_or_each
def test_learned_parts_of_structured_maps_get_gradients(name, parts, heads):
    q, k, v = inputs(2)
    phi = build(name, heads=heads)
    learned = [phi.get_buffer(part).requires_grad_() for part in parts]
    received, expected = (attend(q, k, v, phi) for attend in (hrf.attention, reference.attention))
    assert_same(received, expected, [q, k, v, *learned])


def test_gradients_of_some_inputs_only():
    q, k, v = inputs(2)
    phi = build("angular hybrid")
    expected = torch.autograd.grad(hrf.attention(q, k, v, phi).sum(), [k, v])
    alone = torch.autograd.grad(hrf.attention(q.detach(), k, v, phi).sum(), [k, v])
    for mine, theirs in zip(alone, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def _clustered(**arguments) -> hrf.ClusteredHybrid:
    q, k, _ = inputs(heads=1, length=60)
    return hrf.ClusteredHybrid.fit(
        q[0].detach(), k[0].detach(), n_clusters=(3, 3), n_projections=8, **arguments
    ).double()


@pytest.mark.parametrize("arguments", [{"exact_share": 0.3}, {"recenter": True}], ids=["exact", "recenter"])
def test_maps_without_features(arguments):
    phi = _clustered(**arguments)
    assert not phi.factorised
    assert not hrf.GaussianKernel(phi).factorised
    assert_equals_reference(*inputs(2, key_heads=2), phi)
    assert_equals_reference(*inputs(2, length=5, keys=9), phi, key_padding_mask=padding(2, 9))


@pytest.mark.parametrize("exact_share", [0.0, 0.3])
def test_centres_stay_where_they_are_in_causal_attention(exact_share):
    phi = _clustered(recenter=True, exact_share=exact_share)
    q, k, v = inputs(2)
    fixed = hrf.attention(q, k, v, phi, is_causal=True)
    assert phi.recenter
    phi.recenter = False
    assert torch.equal(fixed, hrf.attention(q, k, v, phi, is_causal=True))


@both_ways
@pytest.mark.parametrize("arguments", [{"exact_share": 0.3}, {"recenter": True}], ids=["exact", "recenter"])
def test_maps_of_maps_without_features_are_refused(arguments, is_causal):
    phi = hrf.GaussianKernel(_clustered(**arguments))
    with pytest.raises(NotImplementedError, match="GaussianKernel is made of maps without"):
        hrf.attention(*inputs(2), phi, is_causal=is_causal)
    with pytest.raises(NotImplementedError, match="GaussianKernel is made of maps without"):
        hrf.AttentionState(phi)

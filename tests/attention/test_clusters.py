"""Attention by clusters against the matrix of estimates."""

from __future__ import annotations

import pytest
import torch

from attention import data
from attention.engines import check_equal, inputs, reference
from features.registry import PARTLY_EXACT, build
from hrf import tuning
from hrf._attention import clustered as clusters
from hrf.features.clustered import BASES, ClusteredHybrid

DIM = 4


def make(base="separable", heads=None, n_clusters=(3, 4), **arguments) -> ClusteredHybrid:
    generator = torch.Generator().manual_seed(0)
    lead = (60,) if heads is None else (heads, 60)
    queries, keys = (torch.randn(*lead, DIM, generator=generator) for _ in range(2))
    phi = ClusteredHybrid.fit(
        queries,
        keys,
        n_clusters=n_clusters,
        n_projections=3,
        base=base,
        heads=heads,
        generator=generator,
        **arguments,
    )
    return phi.double()


VARIANTS = {
    "plain": {},
    "exact": {"exact_share": 0.4},
    "recentred": {"recenter": True},
    "default": {"default": "positive", "default_share": 0.4},
    "all": {"exact_share": 0.3, "recenter": True, "default": "trigonometric", "default_share": 0.4},
}


@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("base", BASES)
def test_equals_the_reference(base, variant, heads):
    phi = make(base, heads, **VARIANTS[variant])
    torch.manual_seed(1)
    check_equal(clusters.sums, *inputs(2, 3, length=70, keys=50, dim=DIM), phi)


@pytest.mark.parametrize("base", BASES)
def test_masked_keys_are_as_if_they_were_not_there(base):
    phi = make(base, 3, **VARIANTS["all"])
    torch.manual_seed(2)
    x, y, values = inputs(2, 3, length=30, keys=40, dim=DIM)
    order = torch.rand(2, 3, 40).argsort(-1)
    keep = order < 25  # as many in every row, so that the reference can be computed without the others
    kept = [t[keep].view(2, 3, 25, -1) for t in (y, values)]
    expected, size = reference(x, *kept, phi)
    masked = ~keep.unsqueeze(-1)
    for fill in (0.0, 1e3):
        result = clusters.sums(
            x, y.masked_fill(masked, fill), values.masked_fill(masked, torch.nan), phi, keep
        )
        assert ((result.unscaled() - expected).abs() <= 1e-8 * size).all()


@pytest.mark.parametrize("base", BASES)
def test_no_key_at_all_for_a_row(base):
    phi = make(base, **VARIANTS["all"])
    keep = torch.ones(2, 1, 40, dtype=torch.bool)
    keep[1] = False
    x, y, values = inputs(2, 3, length=30, keys=40, dim=DIM)
    expected, size = reference(x, y, values, phi, keep)
    for watched in (False, True):
        tensors = [t.requires_grad_(watched) for t in (x, y, values)]
        result = clusters.sums(*tensors, phi, keep).unscaled()
        assert ((result - expected).abs() <= 1e-8 * size).all()
        assert not result[1].any()
    for gradient in torch.autograd.grad(result.sum(), tensors):
        assert gradient.isfinite().all()
        assert not gradient[1].any()
    assert not clusters.sums(x, y, values, phi, torch.zeros_like(keep)).unscaled().any()


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("length", "keys"), [(1, 1), (1, 40), (40, 1)])
def test_any_length(base, length, keys):
    check_equal(clusters.sums, *inputs(2, length=length, keys=keys, dim=DIM), make(base, **VARIANTS["exact"]))


@pytest.mark.parametrize(("length", "keys"), [(0, 5), (5, 0), (0, 0)])
def test_nothing_sums_to_zero(length, keys):
    result = clusters.sums(*inputs(2, 3, length=length, keys=keys, dim=DIM), make())
    assert result.values.shape == (2, 3, length, 5)
    assert not result.unscaled().any()


def test_more_blocks_than_one_piece_holds(monkeypatch):
    monkeypatch.setattr(tuning, "CLUSTER_FLOATS", 500)
    torch.manual_seed(3)
    for base in BASES:
        check_equal(clusters.sums, *inputs(2, length=90, keys=80, dim=DIM), make(base, **VARIANTS["all"]))


@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("base", BASES)
def test_rows_longer_than_what_is_done_at_a_time(base, variant, heads, monkeypatch):
    monkeypatch.setattr(tuning, "CLUSTER_TOKENS", 20)
    monkeypatch.setattr(tuning, "PAIR_FLOATS", 1_000)
    torch.manual_seed(5)
    tensors = inputs(3, length=70, keys=50, dim=DIM)
    tensors[1] *= torch.linspace(0.2, 3, 50).unsqueeze(-1)  # the largest logarithms are not in the first span
    phi = make(base, heads, **VARIANTS[variant])
    check_equal(clusters.sums, *tensors, phi)
    if not phi.recenter:  # the reference has masked keys in the means
        check_equal(clusters.sums, *tensors, phi, torch.rand(3, 50) < 0.6)


def test_all_pairs_exact_is_softmax_attention():
    phi = make(n_clusters=(3, 3))
    exact = ClusteredHybrid(
        phi.query_centers, phi.key_centers, base="separable", exact=torch.ones(3, 3, dtype=torch.bool)
    )
    x, y, values = inputs(2, length=40, keys=50, dim=DIM)
    sums = clusters.sums(x, y, values, exact).unscaled()
    expected = torch.softmax(x @ y.mT, -1) @ values
    torch.testing.assert_close(sums / sums[..., -1:], expected)


@pytest.mark.parametrize("name", ["partly exact moments", "partly exact shifted"])
def test_keys_of_which_nothing_is_estimated_have_no_scale(name):
    """A finite one could hide other keys, if it is the largest so far."""
    phi = build(name)
    _, y, _ = inputs(2, length=1, keys=40, dim=DIM)
    exact = phi.assign(y, "key") == 0
    assert 0 < exact.sum() < exact.numel()
    assert torch.equal(phi.estimated_features(y, "key").log_scale.isneginf().squeeze(-1), exact)


@pytest.mark.parametrize("norm", [0.0, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("base", BASES)
def test_finite_in_float32(base, variant, norm):
    torch.manual_seed(4)
    x, y, values = (t.float() for t in inputs(2, 3, length=50, keys=60, dim=DIM))
    x, y = (norm * torch.nn.functional.normalize(u, dim=-1) for u in (x, y))
    tensors = [t.requires_grad_() for t in (x, y, values)]
    result = clusters.sums(*tensors, make(base, **VARIANTS[variant]).float())
    assert result.values.isfinite().all()
    assert result.log_scale.isfinite().all()
    gradients = torch.autograd.grad(result.values.sum(), tensors)
    assert all(g.isfinite().all() for g in gradients)
    if base == "separable" and variant in ("plain", "exact", "recentred"):
        assert (result.values[..., -1] > 0).all()  # all terms are positive: none of the sums is lost


@pytest.mark.parametrize("name", ["clustered separable", "clustered with default", *PARTLY_EXACT])
@pytest.mark.parametrize("length", [8, 11])
def test_causal_in_several_chunks(name, length, monkeypatch):
    phi = build(name)
    monkeypatch.setattr(tuning, "CAUSAL_CHUNK", 1)
    monkeypatch.setattr(tuning, "CLUSTER_FLOATS", 50)  # and several pieces
    q, k, v = data.inputs(2, key_heads=2, length=length)
    data.assert_equals_reference(q, k, v, phi, is_causal=True)
    ignore = data.padding(2, length)
    data.assert_equals_reference(q, k, v, phi, is_causal=True, key_padding_mask=ignore)

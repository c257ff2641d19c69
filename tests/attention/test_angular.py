"""Attention by sign codes against the matrix of estimates."""

from __future__ import annotations

import pytest
import torch

import hrf
from attention.engines import check_equal, inputs, reference
from hrf import tuning
from hrf._attention import angular


def make(n=8, m=6, heads=None, share=True, dim=5, kind="iid"):
    torch.manual_seed(0)
    return hrf.AngularHybrid(
        dim,
        n_projections=m,
        n_coefficient_projections=n,
        share_projections=share,
        heads=heads,
        projection=kind,
    ).double()


@pytest.mark.parametrize("n", [1, 3, 4, 8, 17])
@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("share", [True, False])
def test_equals_the_reference(n, heads, share):
    phi = make(n, heads=heads, share=share)
    check_equal(angular.sums, *inputs(2, 3, length=70, keys=50, dim=5), phi)


@pytest.mark.parametrize("m", [1, 16])
def test_any_number_of_projections(m):
    check_equal(angular.sums, *inputs(3, length=20, keys=30, dim=5), make(m=m))


def test_other_hybrids_of_two_exponential_bases():
    torch.manual_seed(0)
    single = hrf.Exponential(5, n_projections=4, antithetic=False)
    coefficient = hrf.coefficients.Angular(5, n_projections=3)
    phi = hrf.Hybrid([hrf.Trigonometric(5, n_projections=7), single], [coefficient]).double()
    assert angular.serves(phi)
    check_equal(angular.sums, *inputs(2, length=20, keys=30, dim=5), phi)


def test_serves_no_other_map():
    gaussian = hrf.GaussianHybrid(5, n_projections=4, n_coefficient_projections=4, sigma=1, radius=1)
    shifted = hrf.Exponential(5, n_projections=4, query_shift=torch.ones(5))
    hybrid = hrf.Hybrid([shifted, hrf.Positive(5, n_projections=4)], list(make(2).float().coefficients))
    for phi in (gaussian, hybrid, hrf.Positive(5, n_projections=4)):
        assert not angular.serves(phi)


@pytest.mark.parametrize(("length", "keys"), [(1, 1), (1, 40), (40, 1), (700, 9000)])
def test_any_length(length, keys):
    torch.manual_seed(1)
    phi = make(n=6)
    x, y, values = inputs(1, length=length, keys=keys, dim=5)
    expected, size = reference(x, y, values, phi)
    assert ((angular.sums(x, y, values, phi).unscaled() - expected).abs() <= 1e-8 * size).all()


@pytest.mark.parametrize(("length", "keys"), [(0, 5), (5, 0), (0, 0)])
def test_nothing_sums_to_zero(length, keys):
    result = angular.sums(*inputs(2, 3, length=length, keys=keys, dim=5), make())
    assert result.values.shape == (2, 3, length, 5)
    assert result.log_scale.shape == (2, 3, length, 1)
    assert not result.unscaled().any()


@pytest.fixture
def short(monkeypatch):
    """Rows of more than 16 tokens are long, with and without a graph."""
    monkeypatch.setattr(tuning, "ANGULAR_TOKENS", 16)
    monkeypatch.setattr(tuning, "ANGULAR_GRAPH_TOKENS", 16)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize(("length", "keys"), [(5, 50), (50, 5), (16, 17), (70, 50)])
def test_long_rows_are_taken_in_parts(heads, length, keys):
    phi = make(heads=heads)
    check_equal(angular.sums, *inputs(2, 3, length=length, keys=keys, dim=5), phi)
    keep = torch.rand(2, 1, keys) < 0.5
    check_equal(angular.sums, *inputs(2, 3, length=length, keys=keys, dim=5), phi, keep)


@pytest.mark.parametrize("heads", [None, 3])
def test_learned_projections_have_the_gradients_of_all_parts(heads, monkeypatch):
    phi, tensors = make(heads=heads), inputs(2, 3, length=40, keys=50, dim=5)
    omega = phi.bases[0].projection.omega.requires_grad_()
    weight = torch.randn(2, 3, 40, 5, dtype=torch.float64)

    def gradient():
        return torch.autograd.grad((angular.sums(*tensors, phi).unscaled() * weight).sum(), omega)[0]

    expected = gradient()
    monkeypatch.setattr(tuning, "ANGULAR_TOKENS", 16)
    monkeypatch.setattr(tuning, "ANGULAR_GRAPH_TOKENS", 16)
    assert ((gradient() - expected).abs() <= 1e-8 * expected.abs().amax()).all()


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("long", [0, 1, 2])
def test_parts_on_scales_of_their_own(long):
    x, y, values = inputs(2, length=40, keys=48, dim=5)
    some = y[..., 16 * long : 16 * (long + 1), :]
    some *= 30 / some.norm(dim=-1, keepdim=True)  # exponents of 450, above a third of the range of float64
    check_equal(angular.sums, x, y, values, make())


@pytest.mark.usefixtures("short")
def test_parts_without_keys_have_no_scale():
    torch.manual_seed(0)  # for |ωᵀx| above 43, products of features underflow in float32
    x = 20 * torch.nn.functional.normalize(torch.randn(2, 1, 5), dim=-1)
    y, keep = torch.zeros(2, 17, 5), torch.arange(17) == 16
    y[:, 16:] = -x  # the last part; features of the first base, the only one that counts, are exp(−200)
    values, log_scale = angular.sums(x, y, torch.ones(2, 17, 1), make().float(), keep)
    expected = -x.double().square().sum(-1)
    received = values.squeeze(-1).double().log() + log_scale.squeeze(-1)
    assert ((received - expected).abs() <= 8 * 400 * torch.finfo(torch.float32).eps).all()


@pytest.mark.parametrize("train", [False, True])
def test_attention_puts_parts_of_long_rows_where_they_belong(train, monkeypatch):
    torch.manual_seed(3)
    phi = make()
    tensors = [t.requires_grad_(train) for t in torch.randn(3, 2, 3, 50, 5, dtype=torch.float64)]
    expected = hrf.attention(*tensors, phi)
    monkeypatch.setattr(tuning, "ANGULAR_TOKENS", 16)
    monkeypatch.setattr(tuning, "ANGULAR_GRAPH_TOKENS", 16)
    received = hrf.attention(*tensors, phi)
    assert ((received - expected).abs() <= 1e-8 * expected.abs().amax()).all()
    if train:
        pairs = zip(
            *(torch.autograd.grad(t.square().sum(), tensors) for t in (received, expected)), strict=True
        )
        assert all(((mine - theirs).abs() <= 1e-8 * theirs.abs().amax()).all() for mine, theirs in pairs)


def test_codes_that_are_not_balanced():
    x, y, values = inputs(2, length=300, keys=300, dim=5)
    y[..., :290, :] = y[..., :1, :]  # nearly all keys in one code
    check_equal(angular.sums, x, y, values, make())


def test_masked_keys_change_nothing():
    phi = make()
    x, y, values = inputs(2, 3, length=30, keys=40, dim=5)
    keep = torch.rand(2, 1, 40) < 0.6
    check_equal(angular.sums, x, y, values, phi, keep)
    masked = ~keep.expand(2, 3, 40).unsqueeze(-1)
    other = angular.sums(
        x, y.masked_fill(masked, 1e3), values.masked_fill(masked, torch.nan), phi, keep
    ).unscaled()
    assert torch.equal(other, angular.sums(x, y, values, phi, keep).unscaled())


def test_no_key_at_all_for_a_row():
    keep = torch.ones(2, 3, 40, dtype=torch.bool)
    keep[1, 2] = False
    x, y, values = inputs(2, 3, length=30, keys=40, dim=5)
    check_equal(angular.sums, x, y, values, make(), keep)
    assert not angular.sums(x, y, values, make(), keep).unscaled()[1, 2].any()


@pytest.mark.parametrize("norm", [0.0, 1.0, 10.0, 100.0])
def test_finite_in_float32(norm):
    x, y, values = (t.float() for t in inputs(2, 3, length=50, keys=60, dim=5))
    x, y = (norm * torch.nn.functional.normalize(u, dim=-1) for u in (x, y))
    tensors = [t.requires_grad_() for t in (x, y, values)]
    result = angular.sums(*tensors, make().float())
    assert result.values.isfinite().all()
    assert result.log_scale.isfinite().all()
    gradients = torch.autograd.grad(result.values.sum(), tensors)
    assert all(g.isfinite().all() for g in gradients)


def test_opposite_vectors_keep_their_digits():
    """At x = −y all bits differ and only the first base counts, however much smaller it is."""
    phi = make().float()
    x = 8 * torch.nn.functional.normalize(torch.randn(2, 1, 5), dim=-1)
    values, log_scale = angular.sums(x, -x, torch.ones(2, 1, 1), phi)
    expected = -x.double().square().sum(-1)  # positive features are exact there
    received = values.squeeze(-1).double().log() + log_scale.squeeze(-1)
    # Exponents of at most 64, rounded a few times; those of the second base are 128 larger.
    assert ((received - expected).abs() <= 8 * 64 * torch.finfo(torch.float32).eps).all()

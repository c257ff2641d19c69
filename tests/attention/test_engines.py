"""Engines of attention against the matrix of estimates: sign codes and clusters."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch

import hrf
from attention import data
from attention.engines import check_equal, inputs, reference, sums
from features.registry import MAPS, PARTLY_EXACT, build
from hrf import tuning
from hrf._attention import angular, clusters, dispatch, map_kernels
from hrf.features.clustered import BASES, ClusteredHybrid


@pytest.mark.parametrize("name", MAPS | PARTLY_EXACT)
def test_every_map_has_an_engine(name):
    expected = "clustered" if name in PARTLY_EXACT or name.startswith("clustered") else "dense"
    if expected == "clustered" and name.endswith(("paper", "moments")):
        expected = "clustered by pair"
    if name.startswith("angular hybrid"):
        expected = "angular"
    assert dispatch.engine_for(build(name)).name == expected


# Sign codes.


def angular_hybrid(n=8, m=6, share=True, **arguments):
    torch.manual_seed(0)
    sizes = {"n_projections": m, "n_coefficient_projections": n, "projection": "iid"}
    return hrf.AngularHybrid(5, share_projections=share, **sizes, **arguments).double()


@pytest.mark.parametrize(
    ("n", "m", "heads", "share"),
    [(1, 6, None, True), (3, 1, 3, False), (4, 16, None, False), (8, 6, 3, True), (17, 6, 3, True)],
)
def test_equals_the_reference(n, m, heads, share):
    phi = angular_hybrid(n, m, heads=heads, share=share)
    check_equal(angular, *inputs(2, 3, length=70, keys=50, dim=5), phi)
    crowded = inputs(2, 3, length=60, keys=70, dim=5)
    crowded[1][..., :60, :] = crowded[1][..., :1, :]  # nearly all keys in one code
    check_equal(angular, *crowded, phi)


def test_other_hybrids_of_two_exponential_bases():
    torch.manual_seed(0)
    single = hrf.Exponential(5, n_projections=4, antithetic=False)
    coefficient = hrf.coefficients.Angular(5, n_projections=3)
    phi = hrf.Hybrid([hrf.Trigonometric(5, n_projections=7), single], [coefficient]).double()
    assert angular.serves(phi)
    check_equal(angular, *inputs(2, length=20, keys=30, dim=5), phi)


def test_serves_no_other_map():
    gaussian = hrf.GaussianHybrid(5, n_projections=4, n_coefficient_projections=4, sigma=1, radius=1)
    shifted = hrf.Exponential(5, n_projections=4, query_shift=torch.ones(5))
    hybrid = hrf.Hybrid(
        [shifted, hrf.Positive(5, n_projections=4)], list(angular_hybrid(2).float().coefficients)
    )
    for phi in (gaussian, hybrid, hrf.Positive(5, n_projections=4)):
        assert not angular.serves(phi)


@pytest.mark.parametrize(("length", "keys"), [(1, 1), (1, 40), (40, 1), (300, 9000)])
def test_any_length(length, keys):
    torch.manual_seed(1)
    phi = angular_hybrid(n=6)
    x, y, values = inputs(1, length=length, keys=keys, dim=5)
    expected, size = reference(x, y, values, phi)
    assert ((sums(angular, x, y, values, phi).unscaled() - expected).abs() <= 1e-8 * size).all()


@pytest.mark.parametrize(("length", "keys"), [(0, 5), (5, 0), (0, 0)])
def test_nothing_sums_to_zero(length, keys):
    for engine, phi in ((angular, angular_hybrid()), (clusters, clustered(dim=5))):
        result = sums(engine, *inputs(2, 3, length=length, keys=keys, dim=5), phi)
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
    phi, tensors = angular_hybrid(heads=heads), inputs(2, 3, length=length, keys=keys, dim=5)
    check_equal(angular, *tensors, phi)
    keep = torch.rand(2, 1, keys) < 0.5
    check_equal(angular, *tensors, phi, keep)


@pytest.mark.parametrize("heads", [None, 3])
def test_learned_projections_have_the_gradients_of_all_parts(heads, monkeypatch):
    phi, tensors = angular_hybrid(heads=heads), inputs(2, 3, length=40, keys=50, dim=5)
    omega = phi.bases[0].projection.omega.requires_grad_()
    weight = torch.randn(2, 3, 40, 5, dtype=torch.float64)

    def gradient():
        return torch.autograd.grad((sums(angular, *tensors, phi).unscaled() * weight).sum(), omega)[0]

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
    check_equal(angular, x, y, values, angular_hybrid())


@pytest.mark.usefixtures("short")
def test_parts_without_keys_have_no_scale():
    torch.manual_seed(0)  # for |ωᵀx| above 43, products of features underflow in float32
    x = 20 * torch.nn.functional.normalize(torch.randn(2, 1, 5), dim=-1)
    y, keep = torch.zeros(2, 17, 5), torch.arange(17) == 16
    y[:, 16:] = -x  # the last part; features of the first base, the only one that counts, are exp(−200)
    values, log_scale = sums(angular, x, y, torch.ones(2, 17, 1), angular_hybrid().float(), keep)
    expected = -x.double().square().sum(-1)
    received = values.squeeze(-1).double().log() + log_scale.squeeze(-1)
    assert ((received - expected).abs() <= 8 * 400 * torch.finfo(torch.float32).eps).all()


def test_no_key_at_all_for_a_row():
    keep = torch.ones(2, 3, 40, dtype=torch.bool)
    keep[1, 2] = False
    x, y, values = inputs(2, 3, length=30, keys=40, dim=5)
    check_equal(angular, x, y, values, angular_hybrid(), keep)
    assert not sums(angular, x, y, values, angular_hybrid(), keep).unscaled()[1, 2].any()


def test_opposite_vectors_keep_their_digits():
    """At x = −y all bits differ and only the first base counts, however much smaller it is."""
    phi = angular_hybrid().float()
    x = 8 * torch.nn.functional.normalize(torch.randn(2, 1, 5), dim=-1)
    values, log_scale = sums(angular, x, -x, torch.ones(2, 1, 1), phi)
    expected = -x.double().square().sum(-1)  # positive features are exact there
    received = values.squeeze(-1).double().log() + log_scale.squeeze(-1)
    # Exponents of at most 64, rounded a few times; those of the second base are 128 larger.
    assert ((received - expected).abs() <= 8 * 64 * torch.finfo(torch.float32).eps).all()


# Clusters.


DIM = 4


def clustered(base="separable", heads=None, n_clusters=(3, 4), dim=DIM, **arguments) -> ClusteredHybrid:
    generator = torch.Generator().manual_seed(0)
    lead = (60,) if heads is None else (heads, 60)
    points = [torch.randn(*lead, dim, generator=generator) for _ in range(2)]
    options = {"n_clusters": n_clusters, "n_projections": 3, "base": base, "heads": heads}
    return ClusteredHybrid.fit(*points, generator=generator, **options, **arguments).double()


VARIANTS = {
    "plain": {},
    "exact": {"exact_share": 0.4},
    "recentred": {"recenter": True},
    "default": {"default": "positive", "default_share": 0.4},
    "all": {"exact_share": 0.3, "recenter": True, "default": "trigonometric", "default_share": 0.4},
}


# Every base with every variant; one map and a map per head in turn.
FITS = [
    (base, variant, (None, 3)[(i + j) % 2])
    for i, base in enumerate(BASES)
    for j, variant in enumerate(VARIANTS)
]


@pytest.mark.parametrize(("base", "variant", "heads"), FITS)
def test_clusters_equal_the_reference_whole_and_in_parts(base, variant, heads, monkeypatch):
    torch.manual_seed(5)
    phi, tensors = clustered(base, heads, **VARIANTS[variant]), inputs(3, length=70, keys=50, dim=DIM)
    tensors[1] *= torch.linspace(0.2, 3, 50).unsqueeze(-1)  # the largest logarithms are not in the first span
    check_equal(clusters, *tensors, phi)
    monkeypatch.setattr(tuning, "CLUSTER_TOKENS", 20)
    monkeypatch.setattr(tuning, "PAIR_FLOATS", 1_000)
    monkeypatch.setattr(tuning, "CLUSTER_FLOATS", 500)
    check_equal(clusters, *tensors, phi)
    if not phi.recenter:  # the reference has masked keys in the means
        check_equal(clusters, *tensors, phi, torch.rand(3, 50) < 0.6)


@pytest.mark.parametrize("base", BASES)
def test_masked_keys_are_as_if_they_were_not_there(base):
    phi = clustered(base, 3, **VARIANTS["all"])
    torch.manual_seed(2)
    x, y, values = inputs(2, 3, length=30, keys=40, dim=DIM)
    order = torch.rand(2, 3, 40).argsort(-1)
    keep = order < 25  # as many in every row, so that the reference can be computed without the others
    kept = [t[keep].view(2, 3, 25, -1) for t in (y, values)]
    expected, size = reference(x, *kept, phi)
    masked = ~keep.unsqueeze(-1)
    for fill in (0.0, 1e3):
        result = sums(
            clusters, x, y.masked_fill(masked, fill), values.masked_fill(masked, torch.nan), phi, keep
        )
        assert ((result.unscaled() - expected).abs() <= 1e-8 * size).all()


@pytest.mark.parametrize("base", BASES)
def test_no_key_of_a_cluster_for_a_row(base):
    phi = clustered(base, **VARIANTS["all"])
    keep = torch.ones(2, 1, 40, dtype=torch.bool)
    keep[1] = False
    x, y, values = inputs(2, 3, length=30, keys=40, dim=DIM)
    expected, size = reference(x, y, values, phi, keep)
    for watched in (False, True):
        tensors = [t.requires_grad_(watched) for t in (x, y, values)]
        result = sums(clusters, *tensors, phi, keep).unscaled()
        assert ((result - expected).abs() <= 1e-8 * size).all()
        assert not result[1].any()
    for gradient in torch.autograd.grad(result.sum(), tensors):
        assert gradient.isfinite().all()
        assert not gradient[1].any()
    assert not sums(clusters, x, y, values, phi, torch.zeros_like(keep)).unscaled().any()


@pytest.mark.parametrize("base", BASES)
def test_clusters_of_any_length(base):
    phi = clustered(base, **VARIANTS["exact"])
    for length, keys in ((1, 1), (1, 40), (40, 1)):
        check_equal(clusters, *inputs(2, length=length, keys=keys, dim=DIM), phi)


def test_all_pairs_exact_is_softmax_attention():
    phi = clustered(n_clusters=(3, 3))
    exact = ClusteredHybrid(
        phi.query_centers, phi.key_centers, base="separable", exact=torch.ones(3, 3, dtype=torch.bool)
    )
    x, y, values = inputs(2, length=40, keys=50, dim=DIM)
    found = sums(clusters, x, y, values, exact).unscaled()
    expected = torch.softmax(x @ y.mT, -1) @ values
    torch.testing.assert_close(found / found[..., -1:], expected)


@pytest.mark.parametrize("name", ["partly exact moments", "partly exact shifted"])
def test_keys_of_which_nothing_is_estimated_have_no_scale(name):
    """A finite one could hide other keys, if it is the largest so far."""
    phi = build(name)
    _, y, _ = inputs(2, length=1, keys=40, dim=DIM)
    exact = phi.assign(y, "key") == 0
    assert 0 < exact.sum() < exact.numel()
    assert torch.equal(phi.estimated_features(y, "key").log_scale.isneginf().squeeze(-1), exact)


@pytest.mark.parametrize("name", ["clustered separable", "clustered with default", *PARTLY_EXACT])
def test_causal_in_several_chunks(name, monkeypatch):
    phi = build(name)
    monkeypatch.setattr(tuning, "CAUSAL_CHUNK", 1)
    monkeypatch.setattr(tuning, "CLUSTER_FLOATS", 50)  # and several pieces
    q, k, v = data.inputs(2, key_heads=2, length=11)
    ignore = data.padding(2, 11)
    data.assert_equals_reference(q, k, v, phi, is_causal=True)
    data.assert_equals_reference(q, k, v, phi, is_causal=True, key_padding_mask=ignore)


@pytest.mark.parametrize(("version", "serves"), [("3.4.0", False), ("3.5.0+git1", True), ("3.10.1", True)])
def test_old_tritons_do_not_serve(version, serves, monkeypatch):
    triton = ModuleType("triton")
    triton.__version__, triton.__spec__ = version, ModuleSpec("triton", None)
    monkeypatch.setitem(sys.modules, "triton", triton)
    assert map_kernels.is_installed.__wrapped__() is serves

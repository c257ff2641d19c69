"""Clustered hybrids and mixtures: fits, exact pairs, default maps, heads, files and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

import hrf
from features.registry import X, Y, build
from hrf.features.clustered import BASES


def clouds(n: int, *leading: int, seed: int, spread: float = 0.2) -> Tensor:
    """Points around three centres: ``(*leading, n, 6)``."""
    g = Generator().manual_seed(seed)
    centers = 0.6 * torch.randn(3, 6, generator=g, dtype=torch.float64)
    labels = torch.randint(3, (*leading, n), generator=g)
    return centers[labels] + spread * torch.randn(*leading, n, 6, generator=g, dtype=torch.float64)


Q, K = clouds(80, seed=0), clouds(90, seed=1)


def fit(**arguments) -> hrf.ClusteredHybrid:
    defaults = {"n_projections": 8, "generator": Generator().manual_seed(0)}
    return hrf.ClusteredHybrid.fit(Q, K, **(defaults | arguments)).double()


EXTRAS = [{}, {"default": "positive"}, {"default": "trigonometric", "default_share": 0.2}]
FITS = [
    ("separable", "real-diagonal"),
    ("paper", "complex-diagonal"),
    ("paper", "real-diagonal"),
    *((base, kind) for base in ("moments", "shifted", "shrunk") for kind in hrf.fitting.KINDS),
]


@pytest.mark.parametrize(
    ("base", "matrix", "extra"), [(*case, EXTRAS[i % len(EXTRAS)]) for i, case in enumerate(FITS)]
)
def test_sparse_evaluation_equals_the_explicit_features(base, matrix, extra):
    phi = fit(base=base, matrix=matrix, n_clusters=(3, 2), **extra)
    assert_features_equal_the_estimate(phi)


def assert_features_equal_the_estimate(phi: hrf.FeatureMap) -> None:
    q, k = phi.queries(Q), phi.keys(K)
    bound = (phi.feature_dim + 100) * torch.finfo(torch.float64).eps * (q.abs() @ k.abs().mT)
    assert ((q @ k.mT - phi.estimate(Q, K)).abs() <= bound).all()


@pytest.mark.parametrize("base", ["paper", "moments", "shifted"])
def test_complex_matrices_leave_no_variance_at_the_centres(base):
    points = 3 * torch.eye(6, dtype=torch.float64)[:3] + 0.5
    mirrored = points.flip(0) * torch.tensor([1, -1, 1, -1, 1, -1], dtype=torch.float64)
    options = {"n_clusters": (3, 3), "n_projections": 4, "matrix": "complex-diagonal"}
    phi = hrf.ClusteredHybrid.fit(points, mirrored, base=base, **options).double()
    # Centres and matrices are rounded to float32; the ridge of the moments leaves a small error.
    assert phi.relative_error(points, mirrored).max() < (0.1 if base == "moments" else 1e-5)


def test_exact_pairs_are_exact_heavy_and_reported():
    phi = fit(base="separable", n_clusters=(4, 6), exact_share=0.3)
    exact, kernel = phi.log_mse(Q, K).isneginf(), hrf.kernels.softmax(Q, K)
    estimate = phi.estimate(Q, K)
    torch.testing.assert_close(estimate[exact], kernel[exact], rtol=1e-14, atol=0)
    assert not torch.isclose(estimate[~exact], kernel[~exact], rtol=1e-6).all()
    assert phi.exact_share(Q, K) == pytest.approx(exact.double().mean().item())
    assert 0.05 < phi.exact_share(Q, K) <= 0.3
    weights = kernel / kernel.sum(-1, keepdim=True)
    assert weights[exact].mean() > 1.5 * weights[~exact].mean()
    with pytest.raises(ValueError, match="exact pairs of clusters have no features; use estimate"):
        phi.queries(Q)


def test_dense_features_help_where_residuals_are_long():
    """FAVOR# against positive features of the residuals, at equal width, in closed form."""
    q, k = clouds(80, seed=0, spread=0.8), clouds(90, seed=1, spread=0.8)
    common = {"n_clusters": (3, 3), "base": "shifted", "matrix": "real-full", "projection": "iid"}
    dense = hrf.ClusteredHybrid.fit(q, k, features="dense", n_projections=16, **common)
    plain = hrf.ClusteredHybrid.fit(q, k, n_projections=8, **common)
    assert dense.feature_dim == plain.feature_dim
    assert dense.unbiased
    assert dense.relative_error(q, k).median() < plain.relative_error(q, k).median()


@pytest.mark.parametrize("features", ["exponential", "dense"])
def test_vectors_belong_to_the_centre_that_is_nearest_in_the_metric(features):
    phi = fit(base="shifted", matrix="real-full", features=features)
    for points, centers, metric, side in (
        (Q, phi.query_centers, phi.query_metric, "query"),
        (K, phi.key_centers, phi.key_metric, "key"),
    ):
        gap = points.unsqueeze(-2) - centers
        assert torch.equal(phi.assign(points, side), ((gap @ metric) * gap).sum(-1).argmin(-1))
    identity = torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(phi.query_metric @ phi.key_metric, identity, rtol=0, atol=1e-4)


def test_shrinkage_lies_between_its_neighbours_and_has_the_least_error():
    phi = fit(base="shrunk", matrix="real-full")
    s = float(phi.shrinkage)
    assert 0 < s < 1

    def weighted(value: float) -> float:
        phi.shrinkage.fill_(value)
        weight = hrf.kernels.softmax(Q, K).softmax(-1)
        return float((phi.mse(Q, K) / hrf.kernels.softmax(Q, K).square() * weight.square()).sum())

    assert weighted(s) < min(weighted(0.0), weighted(1.0))


def test_recentred_keys_are_the_means_of_the_sequence():
    phi = fit(base="separable", n_clusters=(3, 3), recenter=True)
    keys = K[:30] + 0.1
    fixed = phi.at(keys)
    assert not fixed.recenter
    torch.testing.assert_close(fixed.queries(Q) @ fixed.keys(keys).mT, phi.estimate(Q, keys))
    labels = phi.assign(keys, "key")
    for j in labels.unique():
        torch.testing.assert_close(fixed.key_centers[j], keys[labels == j].mean(0))
    with pytest.raises(ValueError, match="fix them with at"):
        phi.keys(keys)
    # Moved centres make the residuals smaller, and so the error.
    still = fit(base="separable", n_clusters=(3, 3))
    assert phi.relative_error(Q, keys).mean() < still.relative_error(Q, keys).mean()


@pytest.mark.parametrize("base", BASES)
def test_heads_are_fitted_one_by_one(base):
    q, k = clouds(40, 2, 3, seed=3), clouds(50, 2, 3, seed=4)
    options = {"n_clusters": (2, 3), "n_projections": 4, "base": base}
    phi = hrf.ClusteredHybrid.fit(q, k, heads=3, **options).double()
    torch.testing.assert_close(phi.queries(q) @ phi.keys(k).mT, phi.estimate(q, k))
    for head in range(3):
        alone = hrf.ClusteredHybrid.fit(q[:, head], k[:, head], **options).double()
        torch.testing.assert_close(phi.query_centers[head], alone.query_centers)
        expected = alone.mse(q[:, head], k[:, head])
        torch.testing.assert_close(phi.mse(q, k)[:, head], expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("base", BASES)
def test_refit_and_files(base, tmp_path):
    phi = fit(base=base, exact_share=0.4)
    other = clouds(60, seed=8), clouds(70, seed=9)
    before = phi.query_centers.clone()
    phi.refit_(*other)
    assert not torch.equal(phi.query_centers, before)
    again = hrf.ClusteredHybrid.fit(*other, **phi.settings, generator=Generator().manual_seed(0)).double()
    torch.testing.assert_close(phi.estimate(*other), again.estimate(*other), rtol=1e-5, atol=0)
    phi.save(tmp_path / "map.safetensors")
    loaded = hrf.load(tmp_path / "map.safetensors")
    assert torch.equal(loaded.estimate(*other), phi.estimate(*other))
    loaded.refit_(*other)


def test_one_cluster_per_side_is_the_shifted_map():
    phi = fit(base="shifted", n_clusters=(1, 1))
    shifts = {"query_shift": phi.query_centers[0], "key_shift": phi.key_centers[0]}
    a, omega = phi.feature_map.query_matrix.matrix(), phi.feature_map.projection
    plain = hrf.Exponential(6, n_projections=8, matrix=a, projection=omega, **shifts).double()
    # A and A⁻ᵀ are each rounded to float32, so exponents of up to 10 err by a few times 1e-7.
    torch.testing.assert_close(phi.estimate(Q, K), plain.estimate(Q, K), rtol=5e-6, atol=0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"base": "best"}, "base is 'best'; expected one of paper, moments"),
        ({"n_clusters": (100, 3)}, "n_clusters is 100; expected between 1 and 80"),
        ({"base": "paper", "matrix": "real-full"}, "kind is 'real-full'; expected"),
        ({"exact_share": 1.5}, "exact_share is 1.5; expected between 0 and 1"),
        ({"exact_share": 0.01}, "exact_share is 0.01, but no cluster holds less than 0"),
        ({"features": "sharp"}, "features is 'sharp'; expected 'exponential', or 'dense' for"),
        ({"base": "paper", "features": "dense"}, "features is 'dense'; expected 'exponential'"),
        ({"default": "cosine"}, "default is 'cosine'; expected None, 'positive'"),
        ({"default": "positive", "default_share": 2.0}, "default_share is 2; expected between"),
        ({"heads": 3}, r"queries have shape \(80, 6\); expected \(..., 3, L, d\)"),
    ],
)
def test_bad_settings_are_refused_in_words(arguments, says):
    with pytest.raises(ValueError, match=says):
        fit(**({"base": "shifted"} | arguments))


def test_bad_data_is_refused_in_words():
    with pytest.raises(ValueError, match=r"keys of shape .* are empty or not all finite"):
        hrf.ClusteredHybrid.fit(Q, K / 0)
    with pytest.raises(TypeError, match="queries are not a real floating-point tensor"):
        hrf.ClusteredHybrid.fit(Q.long(), K)


POSITIVE = hrf.Positive(4, n_projections=2)


@pytest.mark.parametrize(
    ("base", "parts", "says"),
    [
        ("separable", {"key_centers": torch.zeros(3, 5)}, r"shapes \(2, 4\) and \(3, 5\)"),
        ("shifted", {}, "base 'shifted' got feature_map=None"),
        ("paper", {"feature_map": POSITIVE}, r"heads = \(4, None\); expected \(4, 6\)"),
        ("shrunk", {"feature_map": POSITIVE}, "shrinkage=None; it belongs to 'shrunk'"),
        ("separable", {"exact": torch.ones(2, 2)}, r"exact has shape \(2, 2\); expected \(2, 3\)"),
        ("separable", {"metric": torch.eye(3)}, r"metric has shape \(3, 3\); expected \(4, 4\)"),
        ("separable", {"served": torch.ones(2, 3)}, "default and served belong together"),
    ],
)
def test_parts_that_do_not_fit_are_refused_in_words(base, parts, says):
    centers = {"query_centers": torch.zeros(2, 4), "key_centers": torch.zeros(3, 4)}
    with pytest.raises(ValueError, match=says):
        hrf.ClusteredHybrid(**(centers | parts), base=base)


def test_only_fits_are_refitted():
    with pytest.raises(ValueError, match="not made by fit"):
        build("clustered shifted").refit_(X, Y)


# Mixtures of Gaussians.


def fit_mixture(**arguments) -> hrf.GaussianMixture:
    defaults = {"n_projections": 6, "n_coefficient_projections": 8, "scale": 0.8, "projection": "iid"}
    return hrf.GaussianMixture.fit(
        Q, K, generator=Generator().manual_seed(0), **(defaults | arguments)
    ).double()


def test_a_coefficient_is_one_at_its_own_centres_where_the_base_is_exact():
    points = torch.tensor([[1.0, -0.8, 0.6], [-0.7, 0.9, 1.1]], dtype=torch.float64)
    keys = torch.tensor([[0.9, 1.2, 0.5], [-1.1, 0.6, -0.8]], dtype=torch.float64)
    phi = hrf.GaussianMixture.fit(points, keys, n_clusters=(2, 2), n_projections=4).double()
    for base, lam in zip(phi.bases[:-1], phi.coefficients, strict=True):
        exact, error = lam.exact(points, keys), base.relative_error(points, keys)
        assert (exact > 1 - 1e-9).sum() == 1
        at = exact.argmax()
        assert error.flatten()[at] < 1e-6
        torch.testing.assert_close(lam.double().estimate(points, keys).flatten()[at].item(), 1.0)


@pytest.mark.stat
def test_unbiased_and_as_wrong_as_predicted():
    phi, draws = fit_mixture(n_clusters=(2, 2)), 500
    x, y = Q[:3] / 3, K[:4] / 3  # short: tails are heavy
    kernel, g = hrf.kernels.softmax(x, y), Generator().manual_seed(1)
    estimates = torch.stack([phi.redraw_(g).estimate(x, y) for _ in range(draws)])
    assert phi.unbiased
    assert ((estimates.mean(0) - kernel).abs() <= 5 * estimates.std(0) / draws**0.5).all()
    squares = (estimates - kernel).square()
    assert ((squares.mean(0) - phi.mse(x, y)).abs() <= 5 * squares.std(0) / draws**0.5).all()


def test_features_of_mixtures_equal_the_estimate_and_survive_a_file(tmp_path):
    phi = fit_mixture(n_clusters=(2, 1))
    assert_features_equal_the_estimate(phi)
    phi.save(tmp_path / "map.safetensors")
    assert torch.equal(hrf.load(tmp_path / "map.safetensors").estimate(Q, K), phi.estimate(Q, K))

"""Landmarks: the projection of the kernel, choices of rows, precision, gradients, files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.kernel_approximation import Nystroem

import hrf
from hrf.features.landmarks import Landmarks

X = torch.randn(300, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
CHOICES = ("uniform", "k-means++", "leverage")


def gaussian(n=60, **arguments):
    return hrf.GaussianKernel(
        Landmarks.fit(X, n_landmarks=n, generator=torch.Generator().manual_seed(1), **arguments)
    )


def test_it_is_nystroem():
    """scikit-learn's features at the same rows have the same products, up to ε over the smallest eigenvalue kept."""
    points = X[:40].float().double().numpy()  # landmarks are kept in float32
    theirs = Nystroem(gamma=0.5, n_components=40, random_state=0).fit(points).transform(X.numpy())
    found = hrf.GaussianKernel(Landmarks(X[:40])).estimate(X, X).numpy()
    np.testing.assert_allclose(found, theirs @ theirs.T, atol=1e-5)


@pytest.mark.parametrize("choice", CHOICES)
def test_it_is_the_kernel_at_landmarks_and_smaller_elsewhere(choice):
    phi = gaussian(choice=choice)
    points = phi.feature_map.points.double()
    torch.testing.assert_close(phi.estimate(X, points), hrf.kernels.gaussian(X, points), atol=1e-5, rtol=0)
    missing = hrf.kernels.gaussian(X, X) - phi.estimate(X, X)
    assert torch.linalg.eigvalsh(missing).min() > -1e-5
    assert 0 < missing.diagonal().mean() < 0.2
    assert not phi.unbiased


def test_the_softmax_kernel_at_any_norm():
    phi = Landmarks(X[:100])
    exact = hrf.kernels.softmax(X, X[:100])
    assert (phi.estimate(X, X[:100]) / exact - 1).abs().median() < 1e-5  # far from the mean ε has more weight
    far = phi.scaled_queries(1e3 * X)
    assert far.values.isfinite().all()
    assert far.log_scale.isfinite().all()


def test_wide_maps_take_half_of_the_products(monkeypatch):
    phi = gaussian(n=90)
    whole = phi.queries(X)
    monkeypatch.setattr("hrf.features.landmarks._COLUMNS", 32)
    torch.testing.assert_close(phi.queries(X), whole, rtol=1e-12, atol=1e-12)
    values, scale = phi.unwhitened(X)
    torch.testing.assert_close((values * scale.exp()) @ phi.whitening.mT, whole, rtol=1e-9, atol=1e-9)


def test_unwhitened_features_of_other_maps_are_their_features():
    phi = hrf.Trigonometric(3, n_projections=4, seed=0)
    assert phi.whitening is None
    assert torch.equal(phi.unwhitened(X).values, phi.scaled_queries(X).values)


def test_precision_heads_and_gradients():
    single = gaussian().queries(X.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), gaussian().queries(X), atol=2e-3, rtol=0)
    per_head = Landmarks(X[:20].view(2, 10, 3))
    x = X[:8].view(2, 4, 3)
    for head in range(2):
        alone = Landmarks(X[10 * head : 10 * (head + 1)]).queries(x[head])
        torch.testing.assert_close(per_head.queries(x)[head], alone)
    assert torch.autograd.gradcheck(Landmarks(X[:5]).queries, X[10:13].clone().requires_grad_())


@pytest.mark.parametrize("choice", CHOICES)
def test_choices(choice):
    given = {"n_landmarks": 25, "choice": choice}
    maps = [Landmarks.fit(X, **given, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(maps[0].points, maps[1].points)
    assert not torch.equal(maps[0].points, maps[2].points)
    assert (X.float() == maps[0].points[:, None]).all(-1).any(1).all()
    assert len(maps[0].points.unique(dim=0)) == 25
    assert Landmarks.fit(X[:7], **given).feature_dim == 7
    twice = Landmarks.fit(X[:5].repeat(6, 1), **given).queries(X)
    assert twice.isfinite().all()
    if choice == "k-means++":
        assert twice.shape[1] == 5


def test_leverage_takes_what_is_rare():
    rows = torch.cat([0.01 * X, X[:10] + 5])
    phi = Landmarks.fit(rows, n_landmarks=30, choice="leverage", generator=torch.Generator().manual_seed(0))
    assert (phi.points.norm(dim=1) > 1).sum() >= 5  # of 10 among 310


def test_files_states_and_refusals(tmp_path):
    phi = gaussian()
    phi.save(tmp_path / "map.safetensors")
    assert torch.equal(hrf.load(tmp_path / "map.safetensors").queries(X), phi.queries(X))
    assert (tmp_path / "map.safetensors").stat().st_size < 10_000  # L⁻¹ is made from the landmarks
    other = Landmarks(X[-60:])
    other.load_state_dict(phi.feature_map.state_dict())
    assert torch.equal(other.queries(X), phi.feature_map.queries(X))
    with pytest.raises(ValueError, match="has tensors that come from data"):
        phi.reset_parameters()
    with pytest.raises(ValueError, match=r"points is \(3,\); expected a real tensor \(m, d\)"):
        Landmarks(torch.zeros(3))
    with pytest.raises(ValueError, match=r"points is \(0, 3\); expected one landmark and one column or more"):
        Landmarks(X[:0])
    with pytest.raises(ValueError, match=r"rows is \(9, 2\); expected a tensor \(N, d\) of finite numbers"):
        Landmarks.fit(torch.full((9, 2), torch.nan), n_landmarks=3, choice="k-means++")
    with pytest.raises(ValueError, match="points has values that are NaN or infinite"):
        Landmarks(torch.full((2, 2), torch.nan))
    with pytest.raises(ValueError, match="choice is 'best'; expected one of uniform, k-means"):
        Landmarks.fit(X, n_landmarks=3, choice="best")
    with pytest.raises(ValueError, match="x has 1 value that is NaN"):
        phi.queries(torch.tensor([[0.0, torch.nan, 0.0]]))

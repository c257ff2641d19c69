from __future__ import annotations

import pytest
import torch
from torch import Generator

import hrf
from features.test_clustered import K, Q


def fit(**arguments) -> hrf.GaussianMixture:
    defaults = {"n_projections": 6, "n_coefficient_projections": 8, "scale": 0.8, "projection": "iid"}
    return hrf.GaussianMixture.fit(
        Q, K, generator=Generator().manual_seed(0), **(defaults | arguments)
    ).double()


@pytest.mark.parametrize("matrix", ["real-diagonal", "complex-diagonal"])
def test_coefficients_stay_in_the_unit_interval(matrix):
    for lam in fit(matrix=matrix).coefficients:
        exact = lam.exact(Q, K)
        assert exact.min() >= 0
        assert exact.max() <= 1


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


@pytest.mark.slow
@pytest.mark.stat
def test_unbiased_and_as_wrong_as_predicted():
    phi, draws = fit(), 1500
    x, y = Q[:3] / 3, K[:4] / 3  # short: tails are heavy
    kernel, g = hrf.kernels.softmax(x, y), Generator().manual_seed(1)
    estimates = torch.stack([phi.redraw_(g).estimate(x, y) for _ in range(draws)])
    assert phi.unbiased
    assert ((estimates.mean(0) - kernel).abs() <= 5 * estimates.std(0) / draws**0.5).all()
    squares = (estimates - kernel).square()
    assert ((squares.mean(0) - phi.mse(x, y)).abs() <= 5 * squares.std(0) / draws**0.5).all()


def test_features_equal_the_estimate_and_survive_a_file(tmp_path):
    phi = fit(n_clusters=(2, 1))
    q, k = phi.queries(Q), phi.keys(K)
    bound = (phi.feature_dim + 100) * torch.finfo(torch.float64).eps * (q.abs() @ k.abs().mT)
    assert ((q @ k.mT - phi.estimate(Q, K)).abs() <= bound).all()
    phi.save(tmp_path / "map.safetensors")
    assert torch.equal(hrf.load(tmp_path / "map.safetensors").estimate(Q, K), phi.estimate(Q, K))

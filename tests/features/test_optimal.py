"""FAVOR++ and FAVOR#: fitted parameters against the formulas of their papers, and as minima of the objective."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import hrf

DIM, M = 3, 5
G = torch.Generator().manual_seed(0)
# Anisotropic, with means, and of different lengths: no term of the moments vanishes or equals another.
SCALES = torch.tensor([0.3, 0.7, 1.1], dtype=torch.float64)
MIXING = torch.tensor([[1.0, 0.4, -0.2], [0.0, 0.9, 0.5], [0.1, 0.0, 0.8]], dtype=torch.float64)


def vectors(n: int, mean: float) -> Tensor:
    return (mean + SCALES * torch.randn(n, DIM, generator=G, dtype=torch.float64)) @ MIXING


X, Y = vectors(7, 0.4), vectors(9, -0.2)
SUMS = (X[:, None] + Y).flatten(0, 1)  # x + y of all pairs


def fitted(kind: type[hrf.FeatureMap]) -> hrf.FeatureMap:
    return kind(DIM, n_projections=M, projection="iid").double().fit(X, Y)


def favor_pp_curvature(sums: Tensor) -> float:
    """A = (1 − 1/ρ)/8 with ρ from the mean φ of ‖x + y‖² (Likhosherstov et al. 2022)."""
    phi = float(sums.square().sum(-1).mean())
    rho = (math.sqrt((2 * phi + DIM) ** 2 + 8 * DIM * phi) - 2 * phi - DIM) / (4 * phi)
    return (1 - 1 / rho) / 8


def favor_sharp_form(x: Tensor, y: Tensor) -> Tensor:
    """Q diag(A_l) Qᵀ with QΛQᵀ = E xxᵀ + E yyᵀ + μ_xμ_yᵀ + μ_yμ_xᵀ (Likhosherstov et al. 2023)."""
    second = [sum(torch.outer(v, v) for v in u) / len(u) for u in (x, y)]
    cross = torch.outer(x.mean(0), y.mean(0))
    eigenvalues, q = torch.linalg.eigh(second[0] + second[1] + cross + cross.T)
    a = [(1 - 2 * s - math.sqrt((2 * s + 1) ** 2 + 8 * s)) / 16 for s in eigenvalues.tolist()]
    return q @ torch.diag(torch.tensor(a, dtype=torch.float64)) @ q.T


def form(phi: hrf.FeatureMap) -> Tensor:
    return (phi.basis * phi.curvature) @ phi.basis.mT


def test_favor_pp_is_the_formula_of_its_paper():
    phi = fitted(hrf.OptimalPositive)
    expected = torch.full((1, DIM), favor_pp_curvature(SUMS), dtype=torch.float64)
    torch.testing.assert_close(phi.curvature, expected, rtol=1e-12, atol=0)
    assert torch.equal(phi.basis, torch.eye(DIM, dtype=torch.float64))


def test_favor_sharp_is_the_formula_of_its_paper():
    phi = fitted(hrf.DenseExponential)
    torch.testing.assert_close(form(phi), favor_sharp_form(X, Y), rtol=0, atol=1e-13)
    torch.testing.assert_close(phi.basis @ phi.basis.mT, torch.eye(DIM, dtype=torch.float64))


def objective(phi: hrf.FeatureMap) -> float:
    """The mean over pairs of the logarithm of a row's second moment over K², 1 + m·MSE/K²."""
    return float(torch.log1p(M * phi.relative_error(X, Y).square()).mean())


def turned(phi: hrf.FeatureMap, i: int, j: int, angle: float) -> Tensor:
    """Q with its columns i and j turned in their plane."""
    basis = phi.basis.clone()
    basis[:, i] = math.cos(angle) * phi.basis[:, i] + math.sin(angle) * phi.basis[:, j]
    basis[:, j] = math.cos(angle) * phi.basis[:, j] - math.sin(angle) * phi.basis[:, i]
    return basis


@pytest.mark.parametrize("step", [-1e-3, 1e-3])
def test_favor_pp_minimises_its_objective(step):
    phi = fitted(hrf.OptimalPositive)
    least = objective(phi)
    phi.curvature += step
    assert objective(phi) > least


@pytest.mark.parametrize("step", [-1e-3, 1e-3])
def test_favor_sharp_minimises_its_objective(step):
    phi = fitted(hrf.DenseExponential)
    least = objective(phi)
    assert least < objective(fitted(hrf.OptimalPositive))
    for k in range(DIM):
        phi.curvature[0, k] += step
        assert objective(phi) > least
        phi.curvature[0, k] -= step
    best = phi.basis.clone()
    for i, j in ((0, 1), (0, 2), (1, 2)):
        phi.basis.copy_(turned(phi, i, j, step))
        assert objective(phi) > least
        phi.basis.copy_(best)


@pytest.mark.parametrize("kind", [hrf.OptimalPositive, hrf.DenseExponential])
def test_heads_are_fitted_each_to_its_own_data(kind):
    scales = torch.tensor([0.5, 1.0, 1.7], dtype=torch.float64)[:, None, None]
    phi = kind(DIM, n_projections=M, heads=3).double().fit(scales * X, Y.expand(3, -1, -1))
    for head, scale in enumerate(scales):
        alone = kind(DIM, n_projections=M).double().fit(scale * X, Y)
        torch.testing.assert_close(form(phi)[head], form(alone), rtol=0, atol=1e-13)
    assert not torch.allclose(form(phi)[0], form(phi)[1], rtol=0.1)


@pytest.mark.parametrize("kind", [hrf.OptimalPositive, hrf.DenseExponential])
def test_an_unfitted_map_is_the_positive_map_with_single_rows(kind):
    omega = hrf.Projections("iid", M, DIM)
    phi = kind(DIM, n_projections=M, projection=omega).double()
    plain = hrf.Exponential(DIM, n_projections=M, antithetic=False, projection=omega).double()
    torch.testing.assert_close(phi.estimate(X, Y), plain.estimate(X, Y), rtol=1e-13, atol=0)
    torch.testing.assert_close(phi.log_mse(X, Y), plain.log_mse(X, Y), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kind", [hrf.OptimalPositive, hrf.DenseExponential])
def test_flops(kind):
    """For each feature d products and d − 1 sums for ωᵀBu, a sum for ωᵀ𝐀ω, an exponential, and its scale."""
    dim, m = 16, 32
    assert kind(dim, n_projections=m).flops() == m * (dim + (dim - 1) + 1 + 1 + 1)

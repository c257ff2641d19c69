"""The paper's rule for a matrix from two centres."""

from __future__ import annotations

import pytest
import torch

import hrf
from fitting.data import (
    DIAGONAL,
    normal,
    relative_mse,
)
from hrf import theory
from hrf.fitting import (
    SecondMoments,
    fit_matrix,
    matrix_from_centers,
)


def test_complex_rule_is_exact_at_the_centres():
    r, s = normal(2, 3, 7), normal(2, 4, 7, seed=1)
    matrices = matrix_from_centers(r, s, "complex-diagonal", limit=1e6)
    assert matrices.shape == (2, 3, 4, 7)
    z = matrices * r.unsqueeze(-2) + s.unsqueeze(-3) / matrices
    assert z.abs().max() < 1e-14
    mse = theory.exponential_mse(r[0, 0], s[0, 1], 1, matrices[0, 0, 1])
    assert mse < 1e-24


def test_rules_are_the_minima_at_one_pair():
    r, s = normal(1, 7), normal(1, 7, seed=1)
    for kind in DIAGONAL:
        rule = matrix_from_centers(r, s, kind, limit=1e6)[0, 0]
        moments = SecondMoments.of(r, s)
        torch.testing.assert_close(rule, fit_matrix(moments, kind, ridge=0.0))


def test_rules_by_sign_and_zero():
    r = torch.tensor([[4.0, 4.0, 0.0, 0.0, 1.0, 1e-200, 1.0]], dtype=torch.float64)
    s = torch.tensor([[1.0, -1.0, 0.0, -2.0, 0.0, 1.0, -1e-9]], dtype=torch.float64)
    expected = torch.tensor([0.5, 0.5, 1, 10, 0.1, 10, 0.1], dtype=torch.float64)
    real = matrix_from_centers(r, s, "real-diagonal", limit=10)
    torch.testing.assert_close(real[0, 0], expected)
    units = torch.tensor([1j, 1, 1, 1, 1, 1j, 1], dtype=torch.complex128)
    complex_ = matrix_from_centers(r, s, "complex-diagonal", limit=10)
    torch.testing.assert_close(complex_[0, 0], expected * units)


@pytest.mark.parametrize("kind", DIAGONAL)
def test_any_centres_give_a_usable_map(kind):
    tiny = torch.finfo(torch.float64).tiny
    values = torch.tensor([0.0, 1.0, -1.0, tiny, -tiny, 1e300], dtype=torch.float64)
    r, s = torch.cartesian_prod(values, values).T
    matrix = matrix_from_centers(r.unsqueeze(0), s.unsqueeze(0), kind)[0, 0]
    assert matrix.isfinite().all()
    assert (matrix.abs() >= 1 / 3 - 1e-12).all()
    assert (matrix.abs() <= 3 + 1e-12).all()
    hrf.Exponential(len(r), n_projections=2, matrix=matrix)


def test_moments_serve_spread_points_better_than_centres():
    r, s = normal(1, 20) / 5, normal(1, 20, seed=1) / 5
    x, y = r + 0.1 * normal(500, 20, seed=2), s + 0.1 * normal(500, 20, seed=3)
    for kind in DIAGONAL:
        rule, fitted = matrix_from_centers(r, s, kind)[0, 0], fit_matrix(SecondMoments.of(x, y), kind)
        errors = [relative_mse(x, y, matrix).mean() for matrix in (None, rule, fitted)]
        assert errors[0] > errors[1] > errors[2]

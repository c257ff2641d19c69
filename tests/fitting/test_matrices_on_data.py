"""Fitted matrices lower the error of the maps they are for, and cope with degenerate data."""

from __future__ import annotations

import math

import pytest
import torch

import hrf
from fitting.data import (
    COMPLEX,
    anisotropic,
    as_matrix,
    correlated,
    normal,
    relative_mse,
    rotated,
)
from hrf.fitting import (
    KINDS,
    RIDGE,
    SecondMoments,
    fit_matrix,
    optimal_loss,
)


def test_diagonal_fits_axes_that_differ():
    x, y = anisotropic()
    fitted = fit_matrix(SecondMoments.of(x, y), "real-diagonal")
    before, after = relative_mse(x, y, None), relative_mse(x, y, fitted)
    assert before.median() > 30 > 3 > after.median()
    assert before.mean() > 10 * after.mean()


def test_full_fits_axes_that_are_rotated():
    x, y = rotated()
    moments = SecondMoments.of(x, y)
    before, diagonal, full = (
        relative_mse(x, y, matrix)
        for matrix in (None, fit_matrix(moments, "real-diagonal"), fit_matrix(moments, "real-full"))
    )
    assert before.median() > 30 > 3 > full.median()
    assert before.mean() > 10 * full.mean()
    assert diagonal.median() > 5 * full.median()


def test_complex_full_fits_pairs_that_are_correlated():
    x, y = correlated()
    moments = SecondMoments.of(x, y, paired=True)
    real, complex_ = (relative_mse(x, y, fit_matrix(moments, kind)) for kind in KINDS[2:])
    assert relative_mse(x, y, None).median() > 30 > 4 > real.median() > 1 > 0.1 > complex_.median()
    assert real.mean() > 10 * complex_.mean()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("x", "y"),
    [
        (normal(1, 6), normal(1, 6, seed=1)),
        (normal(3, 6), normal(4, 6, seed=1)),
        (normal(1, 6).expand(20, 6), normal(20, 6, seed=1)),
        (normal(20, 6) * torch.tensor([1, 1, 0, 1, 1, 1]), normal(20, 6, seed=1)),
        (normal(20, 6), torch.ones(20, 6, dtype=torch.float64)),
        (torch.zeros(5, 6, dtype=torch.float64), normal(5, 6, seed=1)),
        (normal(5, 6), torch.zeros(5, 6, dtype=torch.float64)),
        (torch.zeros(5, 6, dtype=torch.float64), torch.zeros(5, 6, dtype=torch.float64)),
        (1e-9 * normal(5, 6), normal(5, 6, seed=1)),
        (1e-160 * normal(5, 6), normal(5, 6, seed=1)),
    ],
    ids=["one", "few", "copies", "zero column", "constant", "zero x", "zero y", "zeros", "small", "denormal"],
)
def test_degenerate_data_give_a_usable_map(x, y, kind):
    moments = SecondMoments.of(x, y)
    matrix = fit_matrix(moments, kind)
    full = as_matrix(matrix, kind)
    assert full.isfinite().all()
    assert torch.linalg.cond(full) <= math.sqrt(1 + 6 / RIDGE) * (1 + 1e-9)
    assert optimal_loss(moments, kind).isfinite()
    phi = hrf.Exponential(
        6, n_projections=4, matrix=matrix.to(torch.complex64 if kind in COMPLEX else torch.float32)
    )
    assert phi.estimate(x.float(), y.float()).isfinite().all()


def test_one_pair_in_many_dimensions():
    x, y = normal(1, 64), normal(1, 64, seed=1)
    moments = SecondMoments.of(x, y).with_ridge(1e-6)
    mean = fit_matrix(moments, "real-full", ridge=0.0)
    mean = mean @ mean
    torch.testing.assert_close(mean @ moments.queries @ mean, moments.keys, rtol=1e-6, atol=1e-6)

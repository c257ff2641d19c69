import math

import numpy as np
import pytest
import torch

from hrf.theory.map_errors import exponential_log_mse, optimal_log_mse, optimal_mse
from theory.references import haar_blocks, within_five_standard_errors

X = torch.tensor([0.5, -0.3], dtype=torch.float64)
Y = torch.tensor([0.2, 0.6], dtype=torch.float64)
A = torch.tensor([-0.15, 0.03], dtype=torch.float64)
ROTATION = torch.tensor(
    [[math.cos(0.4), -math.sin(0.4)], [math.sin(0.4), math.cos(0.4)]], dtype=torch.float64
)


def features(omega, u, a, basis):
    """D exp(ωᵀ𝐀ω + ωᵀBu − ‖u‖²/2) of every row ω."""
    stretch = (1 - 4 * a).sqrt()
    exponent = (omega.square() * a).sum(-1) + omega @ (stretch * (basis.mT @ u)) - u.square().sum() / 2
    return (1 - 4 * a).prod() ** 0.25 * exponent.exp()


@pytest.mark.parametrize("a", [A, torch.full((2,), -0.2, dtype=torch.float64)])
def test_the_estimator_is_unbiased_and_its_mse_equals_quadrature(a):
    # Plain sums on a fine grid: exponentially accurate for these Gaussian-like integrands.
    line = torch.from_numpy(np.linspace(-16, 16, 801))
    weight = (-line.square() / 2).exp()
    weight = torch.outer(weight, weight).flatten() / weight.sum() ** 2
    omega = torch.cartesian_prod(line, line)
    row = features(omega, X, a, ROTATION) * features(omega, Y, a, ROTATION)
    kernel = math.exp(X @ Y)
    torch.testing.assert_close((weight * row).sum().item(), kernel, rtol=1e-11, atol=0)
    expected = (weight * (row - kernel).square()).sum() / 7
    torch.testing.assert_close(optimal_mse(X, Y, 7, a, ROTATION), expected, rtol=1e-10, atol=0)


def test_without_curvature_it_is_the_single_positive_map():
    for scale in (1e-8, 1.0, 100.0):
        for orthogonal in (True, False):
            torch.testing.assert_close(
                optimal_log_mse(scale * X, scale * Y, 7, 0.0, orthogonal=orthogonal),
                exponential_log_mse(scale * X, scale * Y, 7, antithetic=False, orthogonal=orthogonal),
                rtol=1e-12,
                atol=1e-12,
            )


def test_one_number_stands_for_equal_curvatures_and_the_basis_then_does_not_matter():
    equal = torch.full((2,), -0.1, dtype=torch.float64)
    expected = optimal_mse(X, Y, 7, equal, ROTATION)
    torch.testing.assert_close(optimal_mse(X, Y, 7, -0.1), expected, rtol=1e-13, atol=0)
    assert optimal_mse(X, Y, 7, A, ROTATION) != optimal_mse(X, Y, 7, A)


def test_vectors_broadcast_over_batches_of_bases():
    x, y = X.expand(2, 3, 1, 2), Y.expand(4, 2)
    bases = torch.stack([ROTATION, torch.eye(2, dtype=torch.float64)])[:, None, None]
    curvatures = torch.stack([A, 2 * A])[:, None, None]
    log_mse = optimal_log_mse(x, y, 7, curvatures, bases)
    assert log_mse.shape == (2, 3, 4)
    torch.testing.assert_close(log_mse[0, 1, 2], optimal_log_mse(X, Y, 7, A, ROTATION), rtol=1e-13, atol=0)
    torch.testing.assert_close(log_mse[1, 2, 3], optimal_log_mse(X, Y, 7, 2 * A), rtol=1e-13, atol=0)


@pytest.mark.stat
def test_orthogonal_rows_have_the_mse_of_haar_blocks():
    generator = torch.Generator().manual_seed(4)
    dim, m = 3, 4
    x, y = 0.4 * torch.randn(2, dim, dtype=torch.float64, generator=generator)
    rows = haar_blocks(60_000, m, dim, generator)
    a, basis = torch.full((dim,), -0.1, dtype=torch.float64), torch.eye(dim, dtype=torch.float64)
    estimates = (features(rows, x, a, basis) * features(rows, y, a, basis)).mean(-1)
    kernel = math.exp(x @ y)
    assert within_five_standard_errors(estimates, kernel, optimal_mse(x, y, m, -0.1, orthogonal=True))
    assert not within_five_standard_errors(estimates, kernel, optimal_mse(x, y, m, -0.1))


def test_what_has_no_closed_form_is_refused_in_words():
    with pytest.raises(NotImplementedError, match="different a_l"):
        optimal_mse(X, Y, 7, A, ROTATION, orthogonal=True)
    with pytest.raises(ValueError, match=r"below 1/8 .* got 0\.2"):
        optimal_mse(X, Y, 7, 0.2)

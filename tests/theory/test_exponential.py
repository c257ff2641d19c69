import itertools
import math

import pytest
import torch

from hrf.theory import exponential_mse
from hrf.theory.map_errors import exponential_covariance, exponential_log_mse, shifted_sum
from theory.references import gauss_hermite, haar_blocks, terms, within_five_standard_errors

X = torch.tensor([0.5, -0.3], dtype=torch.float64)
Y = torch.tensor([0.2, 0.6], dtype=torch.float64)
IMAGINARY = torch.full((2,), 1j, dtype=torch.complex128)
MATRICES = {
    "identity": None,
    "imaginary": IMAGINARY,
    "real diagonal": torch.tensor([1.3, 0.7], dtype=torch.float64),
    "complex diagonal": torch.tensor([0.9 + 0.4j, 1.2j], dtype=torch.complex128),
    "real full": torch.tensor([[1.1, 0.3], [-0.2, 0.8]], dtype=torch.float64),
    "complex full": torch.tensor([[0.9 + 0.3j, 0.2j], [-0.3, 0.4 + 0.8j]], dtype=torch.complex128),
}
PAIRS = list(itertools.combinations_with_replacement(MATRICES, 2))


@pytest.mark.parametrize("antithetic", list(itertools.product([True, False], repeat=2)))
@pytest.mark.parametrize("names", PAIRS)
def test_covariance_equals_quadrature(names, antithetic):
    omega, weight = gauss_hermite()
    first, second = (
        terms(omega, X, Y, MATRICES[name], antithetic=flag) / math.exp(X @ Y)
        for name, flag in zip(names, antithetic, strict=True)
    )
    expected = (weight * (first - 1) * (second - 1)).sum() / 5
    matrices = (MATRICES[names[0]], MATRICES[names[1]])
    covariance = exponential_covariance(X, Y, 5, matrices, antithetic).value()
    torch.testing.assert_close(covariance, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("antithetic", [True, False])
def test_mse_is_the_covariance_with_itself_times_the_squared_kernel(antithetic):
    omega, weight = gauss_hermite()
    matrix = MATRICES["complex full"]
    expected = (weight * (terms(omega, X, Y, matrix, antithetic=antithetic) - math.exp(X @ Y)).square()).sum()
    mse = exponential_mse(X, Y, 3, matrix, antithetic=antithetic)
    torch.testing.assert_close(mse, expected / 3, rtol=1e-11, atol=0)


def test_the_norm_of_a_complex_vector_in_place_of_its_square_would_be_biased():
    omega, weight = gauss_hermite()
    matrix = torch.tensor([0.9 + 0.4j, 0.5 + 1.1j], dtype=torch.complex128)
    mean = (weight * terms(omega, X, Y, matrix, antithetic=False)).sum()
    kernel = math.exp(X @ Y)
    torch.testing.assert_close(mean.item(), kernel, rtol=1e-12, atol=0)
    sides = (matrix * X, Y / matrix)
    wrong = math.exp(sum((u * u).real.sum() - u.abs().square().sum() for u in sides) / 2)
    assert wrong < 0.9


@pytest.mark.parametrize("name", MATRICES)
def test_the_sum_of_both_sides_is_the_matrix_formula(name):
    matrix = MATRICES[name]
    full = torch.eye(2, dtype=torch.complex128) if matrix is None else matrix.to(torch.complex128)
    full = torch.diag(full) if full.ndim == 1 else full
    expected = full @ X.to(full) + torch.linalg.inv(full).mT @ Y.to(full)
    x, y = X.expand(3, 1, 2), Y.expand(4, 2)
    u, v = shifted_sum(x, y, matrix)
    assert u.shape == v.shape == (3, 4, 2)
    torch.testing.assert_close(torch.complex(u, v), expected.expand(3, 4, 2), rtol=1e-14, atol=1e-15)


def test_a_matrix_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"shape \(3,\), x has last dimension 2"):
        shifted_sum(X, Y, torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("antithetic", [True, False])
@pytest.mark.parametrize("orthogonal", [True, False])
def test_mse_vanishes_where_both_sides_cancel(antithetic, orthogonal):
    flags = {"antithetic": antithetic, "orthogonal": orthogonal}
    assert exponential_mse(X, -X, 4, None, **flags).item() == 0
    assert exponential_mse(X, X, 4, IMAGINARY, **flags).item() == 0
    real = MATRICES["real full"]
    x = -torch.linalg.solve(real.mT @ real, Y)
    assert exponential_mse(x, Y, 4, real, **flags).item() < 1e-30


@pytest.mark.parametrize("orthogonal", [True, False])
def test_tiny_variances_keep_their_digits(orthogonal):
    step = torch.tensor([3e-7, -4e-7], dtype=torch.float64)
    share = 1 / 16 if orthogonal else 0.0  # f/(d + 2) with f = ¼ for m = 4, d = 2
    for y, matrix, antithetic in ((step - X, None, True), (X - step, IMAGINARY, False)):
        covariance = exponential_covariance(X, y, 4, (matrix,) * 2, (antithetic,) * 2, orthogonal)
        square = (X + y if matrix is None else X - y).square().sum().square()
        torch.testing.assert_close(covariance.value(), square / 2 * (1 / 4 - share), rtol=1e-10, atol=0)


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("antithetic", [True, False])
@pytest.mark.parametrize("orthogonal", [True, False])
def test_logarithms_stay_finite_for_huge_norms(name, antithetic, orthogonal):
    x = 100 * X / X.norm()
    y = torch.stack([100 * Y / Y.norm(), -0.1 * Y, 30 * X])
    log_mse = exponential_log_mse(x, y, 8, MATRICES[name], antithetic=antithetic, orthogonal=orthogonal)
    u, v = shifted_sum(x, y, MATRICES[name])
    leading = u.square().sum(-1) + v.square().sum(-1) + 2 * (x * y).sum(-1)
    assert bool(log_mse.isfinite().all())
    # (1/m) ½ f(h), f = exp or cosh, and at most as much again from f(u² − v²) cos 2uᵀv
    assert bool(((log_mse - leading + math.log(8)).abs() <= math.log(4) + 1e-6).all())


@pytest.mark.stat
@pytest.mark.parametrize(("dim", "n_rows"), [(3, 3), (4, 6)])
@pytest.mark.parametrize("antithetic", [(True, True), (True, False), (False, False)])
def test_orthogonal_covariance_is_that_of_haar_blocks(dim, n_rows, antithetic):
    generator = torch.Generator().manual_seed(10 * dim)
    rows = haar_blocks(40_000, n_rows, dim, generator)
    x, y = 0.45 * torch.randn(2, dim, dtype=torch.float64, generator=generator) / math.sqrt(dim / 3)
    matrices = (
        None,
        torch.full((dim,), 1j, dtype=torch.complex128),
        torch.eye(dim) + 0.3j * torch.rand(dim, dim, dtype=torch.float64, generator=generator),
    )
    estimates = {
        (k, flag): terms(rows, x, y, matrix, antithetic=flag).mean(-1) / math.exp(x @ y)
        for k, matrix in enumerate(matrices)
        for flag in (True, False)
    }
    for a, b in itertools.combinations_with_replacement(range(3), 2):
        products = (estimates[a, antithetic[0]] - 1) * (estimates[b, antithetic[1]] - 1)
        pair = (matrices[a], matrices[b])
        expected = exponential_covariance(x, y, n_rows, pair, antithetic, orthogonal=True).value()
        assert abs(products.mean() - expected) <= 5 * products.std() / math.sqrt(len(products))


@pytest.mark.stat
def test_orthogonal_rows_lower_the_mse_by_more_than_chance():
    generator = torch.Generator().manual_seed(3)
    x, y = 0.5 * torch.randn(2, 4, dtype=torch.float64, generator=generator)
    estimates = terms(haar_blocks(40_000, 4, 4, generator), x, y, antithetic=True).mean(-1)
    kernel = math.exp(x @ y)
    assert within_five_standard_errors(estimates, kernel, exponential_mse(x, y, 4, orthogonal=True))
    assert not within_five_standard_errors(estimates, kernel, exponential_mse(x, y, 4))

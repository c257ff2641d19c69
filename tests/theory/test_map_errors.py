"""Errors of maps in closed form: lemmas of the paper, quadrature, many digits, and Haar blocks of orthogonal rows."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from scipy.special import hyp1f1

from hrf.theory.map_errors import (
    exponential_covariance,
    exponential_log_mse,
    optimal_log_mse,
    positive_log_mse,
    shifted_sum,
    trigonometric_log_mse,
)
from hrf.theory.orthogonal import angular_pair_covariance, orthogonal_excess, orthogonal_share
from theory.references import gauss_hermite, haar_blocks, rotated_pair, terms, within_five_standard_errors


def vectors(scale, dim=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, y = scale * torch.randn(2, 6, dim, dtype=torch.float64, generator=generator)
    return x[:, None], y[None, :]


def imaginary(dim):
    return torch.full((dim,), 1j, dtype=torch.complex128)


def test_mses_are_those_of_the_lemma():
    x, y = vectors(0.5)
    m, kernel = 7, (x * y).sum(-1).exp()
    z, delta = (x + y).square().sum(-1), (x - y).square().sum(-1)
    trigonometric = z.exp() / kernel**2 * (1 - (-delta).exp()) ** 2 / (2 * m)
    positive = z.exp() * kernel**2 * (1 - (-z).exp()) ** 2 / (2 * m)
    torch.testing.assert_close(trigonometric_log_mse(x, y, m).exp(), trigonometric, rtol=1e-11, atol=0)
    torch.testing.assert_close(positive_log_mse(x, y, m).exp(), positive, rtol=1e-11, atol=0)


@pytest.mark.parametrize("orthogonal", [True, False])
@pytest.mark.parametrize("scale", [1e-8, 0.3, 2.0, 50.0])
def test_mses_are_those_of_exponential_estimators(scale, orthogonal):
    x, y = vectors(scale)
    for log_mse, matrix, antithetic in (
        (trigonometric_log_mse, imaginary(5), False),
        (trigonometric_log_mse, imaginary(5), True),  # which gains nothing from antithetic rows
        (positive_log_mse, None, True),
    ):
        if antithetic and matrix is not None and orthogonal:
            continue
        expected = exponential_log_mse(x, y, 7, matrix, antithetic=antithetic, orthogonal=orthogonal)
        torch.testing.assert_close(log_mse(x, y, 7, orthogonal=orthogonal), expected, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("m", [1, 3, 5, 12])
def test_orthogonal_rows_subtract_a_confluent_function(m):
    x, y = vectors(0.4)
    squared_kernel, share = (2 * (x * y).sum(-1)).exp(), orthogonal_share(m, 5)
    for log_mse, sign in ((positive_log_mse, 1), (trigonometric_log_mse, -1)):
        z = sign * (x + sign * y).square().sum(-1)
        gain = 1 - (-z).exp() * torch.from_numpy(hyp1f1(5, 2.5, z.numpy() / 2))
        expected = log_mse(x, y, m).exp() - share * squared_kernel * gain
        torch.testing.assert_close(log_mse(x, y, m, orthogonal=True).exp(), expected, rtol=1e-9, atol=0)


def test_logarithms_follow_the_exponent_for_huge_norms():
    x = torch.tensor([100.0, 0.0], dtype=torch.float64)
    y = torch.tensor([0.0, 100.0], dtype=torch.float64)
    for log_mse in (trigonometric_log_mse, positive_log_mse):
        assert math.isclose(log_mse(x, y, 2).item(), 2e4 - math.log(4), rel_tol=1e-14)
        assert math.isclose(log_mse(x, y, 2, orthogonal=True).item(), 2e4 - math.log(4), rel_tol=1e-14)


# Exponential estimators with any matrix.


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


FLAGS = list(itertools.product([True, False], repeat=2))


@pytest.mark.parametrize(("names", "antithetic"), [(pair, FLAGS[k % 4]) for k, pair in enumerate(PAIRS * 2)])
def test_covariance_equals_quadrature(names, antithetic):
    omega, weight = gauss_hermite()
    matrices = (MATRICES[names[0]], MATRICES[names[1]])
    first, second = (
        terms(omega, X, Y, matrix, antithetic=flag) / math.exp(X @ Y)
        for matrix, flag in zip(matrices, antithetic, strict=True)
    )
    expected = (weight * (first - 1) * (second - 1)).sum() / 5
    covariance = exponential_covariance(X, Y, 5, matrices, antithetic).value()
    torch.testing.assert_close(covariance, expected, rtol=1e-10, atol=1e-13)
    if names[0] == names[1] and antithetic[0] == antithetic[1]:
        mse = exponential_log_mse(X, Y, 5, matrices[0], antithetic=antithetic[0]).exp()
        torch.testing.assert_close(mse, expected * math.exp(2 * X @ Y), rtol=1e-10, atol=1e-13)


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


@pytest.mark.parametrize("antithetic", [True, False])
@pytest.mark.parametrize("orthogonal", [True, False])
def test_mse_vanishes_where_both_sides_cancel(antithetic, orthogonal):
    flags = {"antithetic": antithetic, "orthogonal": orthogonal}
    assert exponential_log_mse(X, -X, 4, None, **flags).item() == -math.inf
    assert exponential_log_mse(X, X, 4, IMAGINARY, **flags).item() == -math.inf
    real = MATRICES["real full"]
    x = -torch.linalg.solve(real.mT @ real, Y)
    assert exponential_log_mse(x, Y, 4, real, **flags).item() < math.log(1e-30)


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


# FAVOR++ and FAVOR#.


A = torch.tensor([-0.15, 0.03], dtype=torch.float64)

ROTATION = torch.linalg.matrix_exp(torch.tensor([[0.0, -0.4], [0.4, 0.0]], dtype=torch.float64))


def optimal_features(omega, u, a, basis):
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
    row = optimal_features(omega, X, a, ROTATION) * optimal_features(omega, Y, a, ROTATION)
    kernel = math.exp(X @ Y)
    torch.testing.assert_close((weight * row).sum().item(), kernel, rtol=1e-11, atol=0)
    expected = (weight * (row - kernel).square()).sum() / 7
    torch.testing.assert_close(optimal_log_mse(X, Y, 7, a, ROTATION).exp(), expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_without_curvature_it_is_the_single_positive_map(orthogonal):
    for scale in (1e-8, 1.0, 100.0):
        x, y = scale * X, scale * Y
        expected = exponential_log_mse(x, y, 7, antithetic=False, orthogonal=orthogonal)
        found = optimal_log_mse(x, y, 7, 0.0, orthogonal=orthogonal)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.stat
def test_orthogonal_rows_have_the_mse_of_haar_blocks():
    generator = torch.Generator().manual_seed(4)
    dim, m = 3, 4
    x, y = 0.4 * torch.randn(2, dim, dtype=torch.float64, generator=generator)
    rows = haar_blocks(60_000, m, dim, generator)
    a, basis = torch.full((dim,), -0.1, dtype=torch.float64), torch.eye(dim, dtype=torch.float64)
    estimates = (optimal_features(rows, x, a, basis) * optimal_features(rows, y, a, basis)).mean(-1)
    kernel = math.exp(x @ y)
    assert within_five_standard_errors(
        estimates, kernel, optimal_log_mse(x, y, m, -0.1, orthogonal=True).exp()
    )
    assert not within_five_standard_errors(estimates, kernel, optimal_log_mse(x, y, m, -0.1).exp())


def test_what_has_no_closed_form_is_refused_in_words():
    with pytest.raises(NotImplementedError, match="different a_l"):
        optimal_log_mse(X, Y, 7, A, ROTATION, orthogonal=True)
    with pytest.raises(ValueError, match=r"below 1/8 .* got 0\.2"):
        optimal_log_mse(X, Y, 7, 0.2)
    with pytest.raises(ValueError, match=r"shape \(3,\), x has last dimension 2"):
        shifted_sum(X, Y, torch.ones(3, dtype=torch.float64))


# Covariances of orthogonal rows.


# α, β, γ: real, imaginary and complex vectors, equal and different, small and large
ARGUMENTS = [
    (1.0, 1.0, 1.0),
    (0.7, 0.4, -0.5),
    (2.0, -3.0, 1.5j),
    (-1.0, -2.0, 0.8),
    (40.0, -40.0, 30.0j),
    (10.0, -60.0, 5.0j),
    (3 + 4j, 3 + 4j, 3 + 4j),
    (3 + 4j, 3 - 4j, 6.0),
    (-30 + 40j, -30 - 40j, 60.0),
    (0.0, 0.0, 50.0),
    (1e-7, 2e-7, -1e-7),
    (1e-7, -2e-7, 1e-7j),
]


def humbert_excess(alpha, beta, gamma, dim):
    """The defining double series in 80 digits: Σ_k w_k ((αβ − γ²)/4)^k Φ₂, times e^{−(α+β)/2}, minus 1."""
    with mpmath.workdps(80):
        alpha, beta, gamma = (mpmath.mpmathify(v) for v in (alpha, beta, gamma))
        c, x, y = mpmath.mpf(dim) / 2, alpha / 2, beta / 2
        delta = (alpha * beta - gamma**2) / 4
        total, weight = mpmath.mpf(0), mpmath.mpf(1)
        for k in range(200):
            b, bottom = c + k, c + 2 * k
            older, old = mpmath.mpf(1), b * (x + y)
            phi, pochhammer = older + old / bottom, bottom
            for n in range(2, 500):
                older, old = old, ((n - 1 + b) * (x + y) * old - (n - 2 + 2 * b) * x * y * older) / n
                pochhammer *= bottom + n - 1
                term = old / pochhammer
                phi += term
                if n % 2 == 0 and abs(term) < mpmath.mpf(10) ** -60:
                    break
            total += weight * phi
            if abs(weight * phi) < mpmath.mpf(10) ** -50:
                break
            weight *= delta * (c + k) ** 2 / ((c - 0.5 + k) * bottom * (bottom + 1) * (k + 1))
        return complex(mpmath.exp(-(alpha + beta) / 2) * total - 1)


@pytest.mark.parametrize("dim", [2, 3, 8])
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_excess_equals_its_defining_series_up_to_the_rounding_of_the_variance(arguments, dim):
    size = max(abs(arguments[0]) + abs(arguments[1]), 2 * abs(arguments[2]))
    variance = math.cosh(size / 2) - 1 if size > 1e-3 else size**2 / 8
    excess = orthogonal_excess(*(torch.tensor(v, dtype=torch.complex128) for v in arguments), dim)
    assert abs(complex(excess) - humbert_excess(*arguments, dim)) <= 1e-14 * variance


@pytest.mark.parametrize("dim", [2, 3, 4, 64])
def test_excess_of_equal_vectors_is_a_confluent_function(dim):
    alpha = torch.tensor([-30.0, -5.0, -1.0, -0.1, 0.1, 1.0, 5.0, 30.0], dtype=torch.float64)
    expected = torch.from_numpy(hyp1f1(dim, dim / 2, alpha.numpy() / 2)) * (-alpha).exp() - 1
    excess = orthogonal_excess(alpha, alpha, alpha, dim)
    assert excess.dtype == torch.float64
    assert bool(((excess - expected).abs() <= 1e-13 * alpha.abs().exp()).all())


def test_excess_beyond_the_limit_is_zero_and_was_negligible_before():
    alpha = torch.tensor([79.0, 81.0, 1e4], dtype=torch.float64)
    for sign, dim in ((1, 3), (1, 64), (-1, 2), (-1, 4), (-1, 64)):
        excess = orthogonal_excess(sign * alpha, sign * alpha, sign * alpha, dim)
        assert excess[1:].tolist() == [0, 0]
        assert 0 < abs(excess[0].item()) < 1e-12 * math.exp(79)
    odd = orthogonal_excess(-alpha, -alpha, -alpha, 3)[0].item()
    assert 1e-6 * math.exp(79) < abs(odd) < 1e-5 * math.exp(79)


def test_excess_is_computed_for_many_pairs_as_for_one():
    generator = torch.Generator().manual_seed(0)
    alpha, beta, gamma = torch.rand(3, 5, 4000, generator=generator, dtype=torch.float64) * 3
    whole = orthogonal_excess(alpha, beta, gamma, 4)
    part = orthogonal_excess(alpha[-1:, -1:], beta[-1:, -1:], gamma[-1:, -1:], 4)
    assert whole.shape == (5, 4000)
    torch.testing.assert_close(whole[-1:, -1:], part, rtol=1e-13, atol=0)
    assert orthogonal_excess(alpha[:, :0], beta[:, :0], gamma[:, :0], 4).shape == (5, 0)


@pytest.mark.stat
@pytest.mark.parametrize("dim", [2, 3, 5])
def test_excess_is_the_mean_over_haar_pairs(dim):
    generator = torch.Generator().manual_seed(dim)
    rows = haar_blocks(60_000, 2, dim, generator).to(torch.complex128)
    vectors = 0.6 * torch.randn(2, dim, 2, dtype=torch.float64, generator=generator) / math.sqrt(dim)
    a, b = torch.view_as_complex(vectors)
    samples = torch.exp(rows[:, 0] @ a - (a * a).sum() / 2 + rows[:, 1] @ b - (b * b).sum() / 2) - 1
    excess = orthogonal_excess((a * a).sum(), (b * b).sum(), (a * b).sum(), dim)
    difference = samples.mean() - excess
    assert abs(difference.real) <= 5 * samples.real.std() / math.sqrt(len(samples))
    assert abs(difference.imag) <= 5 * samples.imag.std() / math.sqrt(len(samples))


def test_one_dimension_has_no_orthogonal_pairs():
    one = torch.ones((), dtype=torch.float64)
    assert orthogonal_share(7, 1) == 0
    with pytest.raises(ValueError, match="dim=1"):
        orthogonal_excess(one, one, one, 1)
    with pytest.raises(ValueError, match="dim=1"):
        angular_pair_covariance(one, 1)


@pytest.mark.parametrize(("n_rows", "dim"), [(1, 4), (3, 4), (4, 4), (6, 4), (9, 4), (5, 2)])
def test_share_counts_ordered_pairs_within_blocks(n_rows, dim):
    pairs = sum(i != j and i // dim == j // dim for i in range(n_rows) for j in range(n_rows))
    assert orthogonal_share(n_rows, dim) == pairs / n_rows**2


@pytest.mark.stat
@pytest.mark.parametrize("dim", [2, 3, 8])
def test_angular_covariance_is_that_of_haar_directions(dim):
    generator = torch.Generator().manual_seed(dim)
    rows = haar_blocks(60_000, 2, dim, generator)
    for theta in (0.4, 1.2, math.pi / 2, 2.5):
        x, y = rotated_pair(dim, theta, generator)
        signs = (rows @ x).sign() * (rows @ y).sign()
        product = signs[:, 0] * signs[:, 1]
        covariance = angular_pair_covariance(torch.tensor(theta, dtype=torch.float64), dim)
        expected = covariance + (1 - 2 * theta / math.pi) ** 2
        # a product of signs that never varies (d = 2, θ = π/2) leaves only rounding
        assert abs(product.mean() - expected) <= 5 * product.std() / math.sqrt(len(product)) + 1e-12


@pytest.mark.parametrize("dim", [3, 8, 64, 4096])
def test_angular_covariance_is_smooth_symmetric_and_zero_at_the_ends(dim):
    theta = torch.tensor([0.0, 0.99e-4, 1.01e-4, 0.3, 1.0], dtype=torch.float64)
    covariance = angular_pair_covariance(theta, dim)
    mirrored = angular_pair_covariance(math.pi - theta, dim)
    torch.testing.assert_close(mirrored, covariance, rtol=1e-9, atol=1e-17)
    assert covariance[0].item() == 0
    leading = -4 / math.pi**2 * theta.square() / (dim - 1)
    torch.testing.assert_close(covariance[1:3], leading[1:3], rtol=1e-5, atol=0)
    assert bool((covariance[3:] < -1e-6 / dim).all())


def test_angular_covariance_equals_its_fourier_series_in_four_dimensions():
    theta = torch.tensor([0.009, 0.5, 1.3, 2.2], dtype=torch.float64)
    k = torch.arange(1, 401, dtype=torch.float64)
    s = torch.linspace(0, 1, 20001, dtype=torch.float64)
    w = (1 - s) / (1 + s)
    moments = torch.stack([torch.trapezoid(2 * s * w**power, s) for power in k])  # s has density 2s for d = 4
    series = (8 / math.pi**2) * ((-1) ** k * (k * theta[:, None]).sin().square() / k**2 * moments).sum(-1)
    torch.testing.assert_close(angular_pair_covariance(theta, 4), series, rtol=2e-6, atol=0)


def test_series_and_dilogarithm_agree_in_many_dimensions(monkeypatch):
    theta = torch.linspace(0, math.pi, 31, dtype=torch.float64)
    series = angular_pair_covariance(theta, 16)
    monkeypatch.setattr("hrf.theory.orthogonal._TERMS", 1)  # too few terms: the other route
    torch.testing.assert_close(angular_pair_covariance(theta, 16), series, rtol=1e-9, atol=1e-16)

"""Errors of coefficients and hybrids in closed form, errors and bounds on spheres, and numbers beyond float64."""

import math

import pytest
import torch

from hrf.theory import (
    Moments,
    Scaled,
    angle,
    angular_hybrid_log_mse,
    angular_moments,
    gaussian_hybrid_log_mse,
    hybrid_covariance,
    log_corrected_bound,
    log_limit_ratio,
    log_max_relative_error,
    log_max_relative_error_base,
    log_paper_bound,
    log_sphere_relative_error_angular,
    log_sphere_relative_error_positive,
    log_sphere_relative_error_trigonometric,
    log_tight_bound,
    log_w,
    pairwise_angle,
    positive_log_mse,
    scaled_sum,
    trigonometric_log_mse,
)
from hrf.theory.hybrid_errors import bipolar_log_mse, gaussian_moments
from hrf.theory.map_errors import exponential_covariance
from hrf.theory.orthogonal import complement
from theory.references import gauss_hermite, haar_blocks, rotated_pair, terms, within_five_standard_errors


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("theta", [1e-12, 1e-5, 0.7, math.pi / 2, 3.0, math.pi - 1e-9])
def test_the_angle_keeps_its_digits_where_the_arccosine_loses_them(theta):
    x, y = rotated_pair(5, theta, torch.Generator().manual_seed(0), length_x=2.0, length_y=0.3)
    assert abs(angle(x, y).item() - theta) <= 1e-15


def test_a_zero_vector_is_at_the_angle_that_its_sign_bits_give():
    generator = torch.Generator().manual_seed(0)
    x, zero = tensor(0.3, -1.7), tensor(0.0, 0.0)
    assert angle(x, zero).item() == pytest.approx(math.pi / 2, abs=1e-15)
    assert angle(zero, zero).item() == 0
    tau = torch.randn(10_000, 2, dtype=torch.float64, generator=generator)
    bits = [tau @ v >= 0 for v in (x, zero)]
    assert abs((bits[0] != bits[1]).double().mean() - 0.5) <= 5 * 0.5 / 100


@pytest.mark.parametrize("n", [1, 2, 5])
def test_angular_moments_are_those_of_a_binomial_share(n):
    theta = tensor(0.0, 0.4, 1.9, math.pi)
    q, k = theta / math.pi, torch.arange(n + 1, dtype=torch.float64)
    choose = tensor(*(math.comb(n, i) for i in range(n + 1)))
    weight = choose * q[:, None] ** k * (1 - q[:, None]) ** (n - k)
    share = k / n
    moments = angular_moments(theta, n)
    for value, function in (
        (moments.mean, share),
        (moments.square, share**2),
        (moments.complement_square, (1 - share) ** 2),
        (moments.cross, share * (1 - share)),
    ):
        torch.testing.assert_close(value.value(), (weight * function).sum(-1), rtol=1e-13, atol=1e-16)


def test_angular_moments_are_the_formulas_of_the_lemma():
    theta, n = tensor(0.2, 1.0, 2.7), 3
    q = theta / math.pi
    moments = angular_moments(theta, n)
    for value, formula in (
        (moments.square, q * (q - q / n + 1 / n)),
        (moments.complement_square, (1 - q) * (1 - q + q / n)),
        (moments.cross, q * (1 - 1 / n - q + q / n)),
    ):
        torch.testing.assert_close(value.value(), formula, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dim", [None, 2, 3, 64])
def test_angular_moments_have_no_variance_at_the_poles_and_a_positive_one_next_to_them(dim):
    moments = angular_moments(tensor(0.0, math.pi), 7, dim=dim)
    assert moments.square.value().tolist() == [0, 1]
    assert moments.complement_square.value().tolist() == [1, 0]
    assert moments.cross.value().tolist() == [0, 0]
    assert bool((angular_moments(tensor(1e-300, 1e-16, 1e-6), 7, dim=dim).square.value() > 0).all())


@pytest.mark.stat
@pytest.mark.parametrize(("dim", "n"), [(2, 2), (2, 3), (3, 5), (8, 6)])
def test_angular_moments_of_orthogonal_directions_are_those_of_haar_blocks(dim, n):
    generator = torch.Generator().manual_seed(7)
    rows = haar_blocks(20_000, n, dim, generator)
    for theta in (0.5, 1.4, 2.3):
        x, y = rotated_pair(dim, theta, generator)
        share = ((rows @ x).sign() != (rows @ y).sign()).double().mean(-1)
        moments = angular_moments(tensor(theta), n, dim=dim)
        assert within_five_standard_errors(share, moments.mean.value(), moments.variance.value())
        independent = angular_moments(tensor(theta), n).variance.value()
        assert not within_five_standard_errors(share, moments.mean.value(), independent)


def test_gaussian_moments_equal_quadrature():
    x, y, sigma, radius = tensor(0.5, -0.3), tensor(0.2, 0.6), 1.7, 0.8
    omega, weight = gauss_hermite()
    rho = 1 - math.exp(-2 * sigma**2 * radius**2)
    row = (1 - torch.cos(sigma * omega @ (x - y))) / rho
    mean = (weight * row).sum()
    variance = (weight * (row - mean).square()).sum() / 3
    moments = gaussian_moments(x, y, 3, sigma=sigma, radius=radius)
    for value, reference in zip(moments, (mean, variance), strict=True):
        torch.testing.assert_close(value.value().squeeze(), reference, rtol=1e-11, atol=0)


@pytest.mark.stat
def test_gaussian_moments_of_orthogonal_directions_are_those_of_haar_blocks():
    generator = torch.Generator().manual_seed(1)
    x, y = rotated_pair(3, 1.2, generator)
    rows = haar_blocks(40_000, 3, 3, generator)
    estimates = (1 - torch.cos(1.5 * rows @ (x - y)).mean(-1)) / (1 - math.exp(-2 * 1.5**2))
    kwargs = {"sigma": 1.5, "radius": 1.0}
    for orthogonal in (True, False):
        moments = gaussian_moments(x, y, 3, orthogonal=orthogonal, **kwargs)
        mean, variance = (moment.value() for moment in moments)
        assert within_five_standard_errors(estimates, mean, variance) == orthogonal


def test_moments_do_not_overflow():
    """A coefficient of mean e^1000 and variance e^4000: float64 ends at e^709."""
    moments = Moments(Scaled.exp(tensor(1000.0)), Scaled.exp(tensor(4000.0)))
    assert moments.square.log().tolist() == moments.complement_square.log().tolist() == [4000]
    assert moments.cross.times(-1).log().tolist() == [4000]
    certain = Moments(Scaled.exp(tensor(1000.0)), Scaled.plain(tensor(0.0)))
    assert certain.square.log().tolist() == certain.complement_square.log().tolist() == [2000]


@pytest.mark.parametrize("n", [2, 3, 5])
def test_bits_of_a_zero_vector_are_fair_and_independent_even_for_orthogonal_directions(n):
    zero = torch.tensor([True, False, True])
    theta = tensor(math.pi / 2, math.pi / 2, 0.0)  # zero with x, x with y, zero with zero
    variance = angular_moments(theta, n, dim=3, zero=zero).variance.value()
    assert variance[0].item() == 1 / (4 * n)
    assert variance[1].item() < 0.9 / (4 * n)
    assert variance[2].item() == 0


def test_angles_of_all_pairs_are_the_angles():
    x = torch.randn(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[0, 0] = 0
    y = torch.cat([2 * x[0], -x[0], x[1]])
    expected = angle(x.unsqueeze(-2), y)
    torch.testing.assert_close(pairwise_angle(x, y), expected, rtol=0, atol=1e-15)
    # Kahan's formula is exact at the poles, in this form too
    assert pairwise_angle(x[0], x[0]).diagonal().eq(0).all()
    assert pairwise_angle(x[0, 1:], -x[0, 1:]).diagonal().eq(math.pi).all()


# Hybrids.


X = torch.tensor([0.9, -0.5], dtype=torch.float64)

Y = torch.tensor([0.1, 0.4], dtype=torch.float64)


def plain(value):
    return Scaled.plain(torch.as_tensor(value, dtype=torch.float64))


def quadrature_mse(moments, *, shared, n_projections):
    """The MSE of λ̂K̂⁺⁺ + (1 − λ̂)K̂^trig from moments of the two bases' rows, by quadrature."""
    omega, weight = gauss_hermite()
    imaginary = torch.full((2,), 1j, dtype=torch.complex128)
    positive = terms(omega, X, Y, antithetic=True) - math.exp(X @ Y)
    trigonometric = terms(omega, X, Y, imaginary, antithetic=False) - math.exp(X @ Y)
    between = (weight * positive * trigonometric).sum() if shared else 0
    return (
        moments.square.value() * (weight * positive.square()).sum()
        + moments.complement_square.value() * (weight * trigonometric.square()).sum()
        + 2 * moments.cross.value() * between
    ) / n_projections


@pytest.mark.parametrize("shared", [True, False])
def test_hybrids_equal_quadrature(shared):
    angular = quadrature_mse(angular_moments(angle(X, Y), 3), shared=shared, n_projections=5)
    mse = angular_hybrid_log_mse(X, Y, 5, 3, shared=shared).exp()
    torch.testing.assert_close(mse, angular, rtol=1e-10, atol=0)
    moments = gaussian_moments(X, Y, 3, sigma=0.9, radius=0.7)
    gaussian = quadrature_mse(moments, shared=shared, n_projections=5)
    mse = gaussian_hybrid_log_mse(X, Y, 5, 3, sigma=0.9, radius=0.7, shared=shared).exp()
    torch.testing.assert_close(mse, gaussian, rtol=1e-10, atol=0)


@pytest.mark.parametrize("shared", [True, False])
def test_the_angular_hybrid_is_the_theorem_of_the_paper(shared):
    generator = torch.Generator().manual_seed(0)
    x, y = 0.6 * torch.randn(2, 8, 4, dtype=torch.float64, generator=generator)
    m, n, q = 5, 3, angle(x, y) / math.pi
    expected = q * (q - q / n + 1 / n) * positive_log_mse(x, y, m).exp()
    expected += (1 - q) * (1 - q + q / n) * trigonometric_log_mse(x, y, m).exp()
    if shared:
        lengths = x.square().sum(-1) - y.square().sum(-1)
        expected -= (2 / m) * (2 * (x * y).sum(-1)).exp() * (1 - lengths.cos()) * q * (1 - 1 / n - q + q / n)
    mse = angular_hybrid_log_mse(x, y, m, n, shared=shared).exp()
    torch.testing.assert_close(mse, expected, rtol=1e-11, atol=0)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_the_angular_hybrid_is_exact_at_both_poles(orthogonal):
    poles = torch.stack([X, -X])
    for scale in (1, 100):
        log_mse = angular_hybrid_log_mse(scale * X, scale * poles, 5, 4, orthogonal=orthogonal)
        assert log_mse.tolist() == [-math.inf, -math.inf]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("orthogonal", [True, False])
def test_a_certain_coefficient_gives_back_a_base_even_for_huge_norms(shared, orthogonal):
    flags = {"shared": shared, "orthogonal": orthogonal}
    for scale in (1.0, 100.0):
        x, y = scale * X, scale * Y
        all_positive = bipolar_log_mse(x, y, Moments(plain(1.0), plain(0.0)), 5, **flags)
        expected = positive_log_mse(x, y, 5, orthogonal=orthogonal)
        torch.testing.assert_close(all_positive, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_a_constant_coefficient_weighs_the_covariance_of_the_bases(orthogonal):
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
    bases = (None, True), (torch.full((2,), 1j, dtype=torch.complex128), False)
    covariance = torch.stack(
        [
            exponential_covariance(X, Y, 5, (a, b), (flag, other), orthogonal).value()
            for a, flag in bases
            for b, other in bases
        ]
    ).reshape(2, 2)
    moments = Moments(plain(weights[0]), plain(0.0))
    mse = bipolar_log_mse(X, Y, moments, 5, shared=True, orthogonal=orthogonal).exp()
    expected = math.exp(2 * X @ Y) * weights @ covariance @ weights
    torch.testing.assert_close(mse, expected, rtol=1e-12, atol=0)


def test_logarithms_are_finite_for_huge_norms():
    y = torch.stack([100 * Y, -100 * X + Y, 99 * X])
    for orthogonal in (True, False):
        log_mse = angular_hybrid_log_mse(100 * X, y, 5, 4, orthogonal=orthogonal)
        assert bool(log_mse.isfinite().all())
        assert bool((log_mse > 500).any())


def test_three_bases_have_the_variance_of_their_sum():
    generator = torch.Generator().manual_seed(2)
    # two independent coefficients with two values each, and three correlated bases: enumerate everything
    values, chances = torch.tensor([[0.1, 0.6], [0.2, 0.5]]), torch.tensor([[0.3, 0.7], [0.5, 0.5]])
    values, chances = values.double(), chances.double()
    root = torch.randn(3, 3, dtype=torch.float64, generator=generator)
    covariance = root @ root.T
    expected = 0.0
    for i in range(2):
        for j in range(2):
            lam = torch.stack([values[0, i], values[1, j], 1 - values[0, i] - values[1, j]])
            expected += chances[0, i] * chances[1, j] * lam @ covariance @ lam
    means = (values * chances).sum(-1)
    variances = (values.square() * chances).sum(-1) - means.square()
    moments = [Moments(plain(m), plain(v)) for m, v in zip(means, variances, strict=True)]
    table = [[plain(c) for c in row] for row in covariance]
    torch.testing.assert_close(hybrid_covariance(moments, table).value(), expected, rtol=1e-13, atol=0)
    # independent bases: only the diagonal counts
    diagonal = [[plain(covariance[k, k]) if k == j else None for j in range(3)] for k in range(3)]
    zeros = [[plain(covariance[k, k] if k == j else 0.0) for j in range(3)] for k in range(3)]
    torch.testing.assert_close(
        hybrid_covariance(moments, diagonal).value(), hybrid_covariance(moments, zeros).value()
    )


def test_hybrids_do_not_overflow():
    """λ̂ with a variance of e^1000 on bases of variance e^500 and e^600: the largest product dominates."""
    moments = Moments(plain(0.5), Scaled.exp(torch.tensor(1000.0, dtype=torch.float64)))
    first, second = (Scaled.exp(torch.tensor(e, dtype=torch.float64)) for e in (500.0, 600.0))
    assert hybrid_covariance([moments], [[first, None], [None, second]]).log().item() == 1600


@pytest.mark.stat
def test_the_angular_hybrid_of_a_zero_vector_has_fair_and_independent_bits():
    generator = torch.Generator().manual_seed(6)
    dim, m, n, draws = 3, 3, 3, 40_000
    _, y = rotated_pair(dim, 1.0, generator, length_y=0.9)
    x = torch.zeros(dim, dtype=torch.float64)
    omega, tau = (haar_blocks(draws, rows, dim, generator) for rows in (m, n))
    lam = (tau @ y < 0).double().mean(-1)
    imaginary = torch.full((dim,), 1j, dtype=torch.complex128)
    positive = terms(omega, x, y, antithetic=True).mean(-1)
    trigonometric = terms(omega, x, y, imaginary, antithetic=False).mean(-1)
    estimates = lam * positive + (1 - lam) * trigonometric
    exact = angular_hybrid_log_mse(x, y, m, n, orthogonal=True).exp()
    assert within_five_standard_errors(estimates, 1.0, exact)
    # orthogonal directions would be this much better if the zero vector had one
    wrong = angular_moments(angle(x, y), n, dim=dim)
    wrong = bipolar_log_mse(x, y, wrong, m, shared=True, orthogonal=True).exp()
    assert not within_five_standard_errors(estimates, 1.0, wrong)


@pytest.mark.stat
@pytest.mark.parametrize("shared", [True, False])
def test_the_angular_hybrid_on_haar_blocks_has_the_orthogonal_mse(shared):
    generator = torch.Generator().manual_seed(5)
    dim, m, n, draws = 3, 3, 2, 40_000
    x, y = rotated_pair(dim, 1.3, generator, length_x=0.8, length_y=0.4)
    omega, other, tau = (haar_blocks(draws, rows, dim, generator) for rows in (m, m, n))
    lam = ((tau @ x).sign() != (tau @ y).sign()).double().mean(-1)
    imaginary = torch.full((dim,), 1j, dtype=torch.complex128)
    positive = terms(omega, x, y, antithetic=True).mean(-1)
    trigonometric = terms(omega if shared else other, x, y, imaginary, antithetic=False).mean(-1)
    estimates = lam * positive + (1 - lam) * trigonometric
    kernel = math.exp(x @ y)
    for orthogonal in (True, False):
        mse = angular_hybrid_log_mse(x, y, m, n, shared=shared, orthogonal=orthogonal).exp()
        assert within_five_standard_errors(estimates, kernel, mse) == orthogonal


# Spheres: errors and bounds.


THETA = torch.linspace(0, math.pi, 9, dtype=torch.float64)


def pairs(r):
    x = torch.tensor([r, 0.0], dtype=torch.float64)
    return x, r * torch.stack([THETA.cos(), THETA.sin()], -1)


@pytest.mark.parametrize("r", [0.3, 1.0, 2.5])
def test_errors_on_the_sphere_are_those_of_vectors(r):
    x, y = pairs(r)
    theta, dot = angle(x, y), (x * y).sum(-1)
    checked = [
        (log_sphere_relative_error_trigonometric(THETA, r, 7), trigonometric_log_mse(x, y, 7)),
        (log_sphere_relative_error_positive(THETA, r, 7), positive_log_mse(x, y, 7)),
    ]
    for shared in (True, False):
        of_vectors = angular_hybrid_log_mse(x, y, 7, 3, shared=shared)
        checked.append((log_sphere_relative_error_angular(theta, r, 7, 3), of_vectors))
    for on_sphere, log_mse in checked:
        torch.testing.assert_close(on_sphere.exp(), (log_mse / 2 - dot).exp(), rtol=1e-12, atol=1e-14)


def test_errors_vanish_exactly_at_the_poles():
    poles = torch.tensor([0.0, math.pi], dtype=torch.float64)
    assert log_sphere_relative_error_angular(poles, 3.0, 7, 3).tolist() == [-math.inf, -math.inf]
    assert log_sphere_relative_error_trigonometric(poles, 3.0, 7)[0].item() == -math.inf
    assert log_sphere_relative_error_positive(poles, 3.0, 7)[1].item() == -math.inf


def test_logarithms_are_finite_for_a_radius_of_a_hundred():
    inner = THETA[1:-1]
    log_error = log_sphere_relative_error_angular(inner, 100.0, 7, 3)
    assert bool(log_error.isfinite().all())
    assert log_error[0].item() > 1.9e4  # cos²(π/16) · 2r²


RADII = torch.linspace(1, 30, 146, dtype=torch.float64)


@pytest.mark.parametrize("n", [1, 2, 4, 8, 64, 10**6])
def test_the_corrected_and_the_tight_bound_hold(n):
    exact = log_max_relative_error(RADII, 3, n)
    corrected = (exact - log_corrected_bound(RADII, 3, n)).exp()
    tight = (exact - log_tight_bound(RADII, 3, n)).exp()
    assert corrected.max().item() < 0.5
    assert tight.min().item() > 0.5
    assert 0.9 < tight.max().item() < 0.951


@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.parametrize("r", [0.2, 1.0, 3.0, 25.0])
def test_the_maximum_is_that_of_a_fine_grid(r, n):
    theta = torch.linspace(0, math.pi, 400_001, dtype=torch.float64)
    grid = log_sphere_relative_error_angular(theta, r, 3, n).max()
    exact = log_max_relative_error(r, 3, n)
    assert grid <= exact + 1e-12
    torch.testing.assert_close(grid, exact, rtol=0, atol=1e-7)


def test_the_bases_reach_their_maximum_at_a_pole():
    poles = torch.tensor([0.0, math.pi], dtype=torch.float64)
    largest = log_max_relative_error_base(1.3, 5).item()
    value = math.exp(3.38) * (1 - math.exp(-6.76)) / math.sqrt(10)
    assert math.isclose(largest, math.log(value), rel_tol=1e-13)
    assert math.isclose(log_sphere_relative_error_positive(poles, 1.3, 5)[0].item(), largest, rel_tol=1e-13)
    assert math.isclose(
        log_sphere_relative_error_trigonometric(poles, 1.3, 5)[1].item(), largest, rel_tol=1e-13
    )
    assert log_max_relative_error(1.3, 5, 4) < largest


@pytest.mark.parametrize(
    "logarithm",
    [log_paper_bound, log_corrected_bound, log_tight_bound, log_limit_ratio, log_max_relative_error],
)
def test_errors_halve_with_four_times_the_projections_and_do_not_overflow(logarithm):
    gain = logarithm(1.5, 3, 4) - logarithm(1.5, 12, 4)
    assert math.isclose(gain.item(), math.log(2), rel_tol=1e-11)
    assert logarithm(100.0, 3, 4).isfinite()


def test_w_of_a_small_radius():
    assert math.isclose(log_w(1e-5).item(), math.log(4e-10), rel_tol=1e-9)


# Numbers beyond float64.


def test_sums_cancel_and_keep_their_sign():
    total = scaled_sum(Scaled(tensor(3.0), tensor(900.0)), Scaled(tensor(-5.0), tensor(900.0)))
    assert total.mantissa.item() * math.exp(total.exponent.item() - 900) == -2


def test_a_zero_with_a_huge_exponent_does_not_flush_the_rest():
    total = scaled_sum(Scaled(tensor(0.0, 0.0), tensor(9e4, 9e4)), Scaled(tensor(2.0, 0.0), tensor(1.0, 7.0)))
    torch.testing.assert_close(total.value(), tensor(2 * math.e, 0.0), rtol=1e-15, atol=0)


def test_products_of_huge_numbers_do_not_overflow():
    product = Scaled(tensor(-2.0), tensor(900.0)).times(Scaled(tensor(3.0), tensor(800.0)))
    assert product.mantissa.item() == -6
    assert product.exponent.item() == 1700
    assert Scaled.exp(tensor(-math.inf)).times(product).value().item() == 0


def test_complement_is_what_numbers_leave_of_one():
    halves = Scaled.plain(tensor(0.5, 0.25)), Scaled.exp(tensor(math.log(0.5), 1000.0))
    rest = complement(*halves)
    torch.testing.assert_close(rest.value(), tensor(0.0, -math.inf), rtol=0, atol=1e-16)
    assert rest.times(-1).log()[1].item() == 1000


def test_logarithms_of_huge_numbers_are_finite_and_of_negatives_are_not():
    assert math.isclose(Scaled(tensor(2.0), tensor(1e4)).log().item(), 1e4 + math.log(2), rel_tol=1e-15)
    assert Scaled(tensor(-1e-17), tensor(3.0)).log().item() == -math.inf
    assert Scaled(tensor(0.0), tensor(1e4)).value().item() == 0

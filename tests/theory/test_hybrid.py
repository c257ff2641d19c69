import math

import pytest
import torch

from hrf.theory import (
    Moments,
    Scaled,
    angle,
    angular_moments,
    gaussian_hybrid_mse,
    hybrid_covariance,
    positive_mse,
    trigonometric_mse,
)
from hrf.theory.hybrid_errors import (
    angular_hybrid_log_mse,
    angular_hybrid_mse,
    bipolar_log_mse,
    gaussian_moments,
)
from hrf.theory.map_errors import exponential_covariance, positive_log_mse
from theory.references import (
    gauss_hermite,
    haar_blocks,
    rotated_pair,
    terms,
    within_five_standard_errors,
)

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
    torch.testing.assert_close(angular_hybrid_mse(X, Y, 5, 3, shared=shared), angular, rtol=1e-10, atol=0)
    moments = gaussian_moments(X, Y, 3, sigma=0.9, radius=0.7)
    gaussian = quadrature_mse(moments, shared=shared, n_projections=5)
    mse = gaussian_hybrid_mse(X, Y, 5, 3, sigma=0.9, radius=0.7, shared=shared)
    torch.testing.assert_close(mse, gaussian, rtol=1e-10, atol=0)


@pytest.mark.parametrize("shared", [True, False])
def test_the_angular_hybrid_is_the_theorem_of_the_paper(shared):
    generator = torch.Generator().manual_seed(0)
    x, y = 0.6 * torch.randn(2, 8, 4, dtype=torch.float64, generator=generator)
    m, n, q = 5, 3, angle(x, y) / math.pi
    expected = q * (q - q / n + 1 / n) * positive_mse(x, y, m)
    expected += (1 - q) * (1 - q + q / n) * trigonometric_mse(x, y, m)
    if shared:
        lengths = x.square().sum(-1) - y.square().sum(-1)
        expected -= (2 / m) * (2 * (x * y).sum(-1)).exp() * (1 - lengths.cos()) * q * (1 - 1 / n - q + q / n)
    torch.testing.assert_close(angular_hybrid_mse(x, y, m, n, shared=shared), expected, rtol=1e-11, atol=0)


def test_sharing_rows_helps_only_where_the_cross_moment_is_positive():
    assert angular_hybrid_mse(X, Y, 5, 4) < angular_hybrid_mse(X, Y, 5, 4, shared=False)
    one_bit = [angular_hybrid_mse(X, Y, 5, 1, shared=shared) for shared in (True, False)]
    torch.testing.assert_close(*one_bit, rtol=1e-14, atol=0)
    far = {"sigma": 2.0, "radius": 0.2}  # λ leaves [0, 1]: E λ̂(1 − λ̂) < 0
    assert gaussian_hybrid_mse(X, Y, 5, 4, **far) > gaussian_hybrid_mse(X, Y, 5, 4, shared=False, **far)


def test_sharing_rows_changes_nothing_for_inputs_of_one_length():
    y = Y * X.norm() / Y.norm()
    for mse in (
        lambda shared: angular_hybrid_mse(X, y, 5, 4, shared=shared),
        lambda shared: gaussian_hybrid_mse(X, y, 5, 4, sigma=0.9, radius=1.0, shared=shared),
    ):
        torch.testing.assert_close(mse(True), mse(False), rtol=1e-13, atol=0)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_the_angular_hybrid_is_exact_at_both_poles(orthogonal):
    poles = torch.stack([X, -X])
    assert angular_hybrid_mse(X, poles, 5, 4, orthogonal=orthogonal).tolist() == [0, 0]
    huge = angular_hybrid_log_mse(100 * X, 100 * poles, 5, 4, orthogonal=orthogonal)
    assert huge.tolist() == [-math.inf, -math.inf]


def test_the_gaussian_hybrid_is_exact_at_one_pole_only():
    mse = gaussian_hybrid_mse(X, torch.stack([X, -X]), 5, 4, sigma=1.0, radius=X.norm().item())
    assert mse[0].item() == 0
    assert mse[1].item() > 1e-3


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
    imaginary = torch.full((2,), 1j, dtype=torch.complex128)
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64)
    matrices, flags = (None, imaginary), (True, False)
    covariance = torch.stack(
        [
            exponential_covariance(
                X, Y, 5, (matrices[k], matrices[j]), (flags[k], flags[j]), orthogonal
            ).value()
            for k in range(2)
            for j in range(2)
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
    exact = angular_hybrid_mse(x, y, m, n, orthogonal=True)
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
    exact = angular_hybrid_mse(x, y, m, n, shared=shared, orthogonal=True)
    assert within_five_standard_errors(estimates, kernel, exact)
    assert not within_five_standard_errors(estimates, kernel, angular_hybrid_mse(x, y, m, n, shared=shared))

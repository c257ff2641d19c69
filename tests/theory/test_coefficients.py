import math

import pytest
import torch

from hrf.theory import Moments, angle, angular_moments, gaussian_moments
from theory.references import gauss_hermite, haar_blocks, rotated_pair, within_five_standard_errors


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("theta", [1e-12, 1e-5, 0.7, math.pi / 2, 3.0, math.pi - 1e-9])
def test_the_angle_keeps_its_digits_where_the_arccosine_loses_them(theta):
    x, y = rotated_pair(5, theta, torch.Generator().manual_seed(0), length_x=2.0, length_y=0.3)
    assert abs(angle(x, y).item() - theta) <= 1e-15


def test_the_angle_is_exact_at_both_poles_and_at_any_scale():
    x = tensor(0.3, -1.7, 2.0)
    for scale in (1e-200, 1.0, 1e200):
        assert angle(scale * x, scale * x).item() == 0
        assert angle(scale * x, -scale * x).item() == math.pi


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
    for value, function in zip(
        moments, (share, share**2, (1 - share) ** 2, share * (1 - share)), strict=True
    ):
        torch.testing.assert_close(value, (weight * function).sum(-1), rtol=1e-13, atol=1e-16)


def test_angular_moments_are_the_formulas_of_the_lemma():
    theta, n = tensor(0.2, 1.0, 2.7), 3
    q = theta / math.pi
    moments = angular_moments(theta, n)
    torch.testing.assert_close(moments.square, q * (q - q / n + 1 / n), rtol=1e-14, atol=0)
    torch.testing.assert_close(moments.complement_square, (1 - q) * (1 - q + q / n), rtol=1e-14, atol=0)
    torch.testing.assert_close(moments.cross, q * (1 - 1 / n - q + q / n), rtol=1e-14, atol=0)


@pytest.mark.parametrize("dim", [None, 2, 3, 64])
def test_angular_moments_have_no_variance_at_the_poles_and_a_positive_one_next_to_them(dim):
    moments = angular_moments(tensor(0.0, math.pi), 7, dim=dim)
    assert moments.square.tolist() == [0, 1]
    assert moments.complement_square.tolist() == [1, 0]
    assert moments.cross.tolist() == [0, 0]
    assert bool((angular_moments(tensor(1e-300, 1e-16, 1e-6), 7, dim=dim).square > 0).all())


@pytest.mark.stat
@pytest.mark.parametrize(("dim", "n"), [(2, 2), (2, 3), (3, 5), (8, 6)])
def test_angular_moments_of_orthogonal_directions_are_those_of_haar_blocks(dim, n):
    generator = torch.Generator().manual_seed(7)
    rows = haar_blocks(20_000, n, dim, generator)
    for theta in (0.5, 1.4, 2.3):
        x, y = rotated_pair(dim, theta, generator)
        share = ((rows @ x).sign() != (rows @ y).sign()).double().mean(-1)
        moments = angular_moments(tensor(theta), n, dim=dim)
        variance = moments.square - moments.mean.square()
        assert within_five_standard_errors(share, moments.mean, variance)


@pytest.mark.stat
def test_orthogonal_directions_lower_the_variance_by_more_than_chance():
    generator = torch.Generator().manual_seed(7)
    x, y = rotated_pair(4, 1.4, generator)
    rows = haar_blocks(20_000, 4, 4, generator)
    share = ((rows @ x).sign() != (rows @ y).sign()).double().mean(-1)
    moments = angular_moments(tensor(1.4), 4)
    assert not within_five_standard_errors(share, moments.mean, moments.square - moments.mean.square())


def test_gaussian_moments_equal_quadrature():
    x, y, sigma, radius = tensor(0.5, -0.3), tensor(0.2, 0.6), 1.7, 0.8
    omega, weight = gauss_hermite()
    rho = 1 - math.exp(-2 * sigma**2 * radius**2)
    row = (1 - torch.cos(sigma * omega @ (x - y))) / rho
    mean = (weight * row).sum()
    variance = (weight * (row - mean).square()).sum() / 3
    moments = gaussian_moments(x, y, 3, sigma=sigma, radius=radius)
    expected = (mean, mean**2 + variance, (1 - mean) ** 2 + variance, mean * (1 - mean) - variance)
    for value, reference in zip(moments, expected, strict=True):
        torch.testing.assert_close(value.squeeze(), reference, rtol=1e-11, atol=0)


def test_gaussian_coefficient_runs_from_zero_to_one_with_variance_at_one_end_only():
    x = tensor(0.6, 0.8)
    moments = gaussian_moments(x, torch.stack([x, -x]), 4, sigma=1.3, radius=1.0)
    torch.testing.assert_close(moments.mean, tensor(0.0, 1.0), rtol=1e-15, atol=0)
    assert moments.square[0].item() == 0
    assert moments.complement_square[1].item() > 0.01


@pytest.mark.stat
def test_gaussian_moments_of_orthogonal_directions_are_those_of_haar_blocks():
    generator = torch.Generator().manual_seed(1)
    x, y = rotated_pair(3, 1.2, generator)
    rows = haar_blocks(40_000, 3, 3, generator)
    estimates = (1 - torch.cos(1.5 * rows @ (x - y)).mean(-1)) / (1 - math.exp(-2 * 1.5**2))
    kwargs = {"sigma": 1.5, "radius": 1.0}
    for orthogonal in (True, False):
        moments = gaussian_moments(x, y, 3, orthogonal=orthogonal, **kwargs)
        variance = moments.square - moments.mean.square()
        assert within_five_standard_errors(estimates, moments.mean, variance) == orthogonal


def test_moments_agree_with_one_another():
    moments = Moments.from_variance(tensor(0.3), tensor(0.05))
    total = moments.square + moments.complement_square + 2 * moments.cross
    torch.testing.assert_close(total, tensor(1.0), rtol=1e-15, atol=0)
    torch.testing.assert_close(moments.square + moments.cross, moments.mean, rtol=1e-15, atol=0)

import math

import pytest
import torch

from hrf.theory import Moments, Scaled, angle, angular_moments, pairwise_angle
from hrf.theory.hybrid_errors import gaussian_moments
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


@pytest.mark.stat
def test_orthogonal_directions_lower_the_variance_by_more_than_chance():
    generator = torch.Generator().manual_seed(7)
    x, y = rotated_pair(4, 1.4, generator)
    rows = haar_blocks(20_000, 4, 4, generator)
    share = ((rows @ x).sign() != (rows @ y).sign()).double().mean(-1)
    moments = angular_moments(tensor(1.4), 4)
    assert not within_five_standard_errors(share, moments.mean.value(), moments.variance.value())


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


def test_gaussian_coefficient_runs_from_zero_to_one_with_variance_at_one_end_only():
    x = tensor(0.6, 0.8)
    moments = gaussian_moments(x, torch.stack([x, -x]), 4, sigma=1.3, radius=1.0)
    torch.testing.assert_close(moments.mean.value(), tensor(0.0, 1.0), rtol=1e-15, atol=0)
    assert moments.square.value()[0].item() == 0
    assert moments.complement_square.value()[1].item() > 0.01


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


def test_moments_agree_with_one_another():
    moments = Moments(Scaled.plain(tensor(0.3)), Scaled.plain(tensor(0.05)))
    square, rest, cross = (m.value() for m in (moments.square, moments.complement_square, moments.cross))
    torch.testing.assert_close(square, tensor(0.14), rtol=1e-15, atol=0)
    torch.testing.assert_close(square + rest + 2 * cross, tensor(1.0), rtol=1e-15, atol=0)
    torch.testing.assert_close(square + cross, tensor(0.3), rtol=1e-15, atol=0)


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

import math

import mpmath
import pytest
import torch
from scipy.special import hyp1f1

from hrf.theory.orthogonal import angular_pair_covariance, orthogonal_excess, orthogonal_share
from theory.references import haar_blocks, rotated_pair

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


def test_excess_of_tiny_vectors_keeps_its_leading_term():
    alpha = torch.tensor([1e-6, -1e-9, 1e-12], dtype=torch.float64)
    torch.testing.assert_close(
        orthogonal_excess(alpha, alpha, alpha, 6), -alpha.square() / 16, rtol=1e-5, atol=0
    )


def test_excess_of_a_zero_vector_vanishes():
    zero, other = torch.zeros(3, dtype=torch.float64), torch.tensor([0.5, -7.0, 30.0], dtype=torch.float64)
    assert orthogonal_excess(zero, other, zero, 5).tolist() == [0, 0, 0]


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


def test_angular_covariance_of_a_right_angle_in_three_dimensions_is_minus_a_third():
    right = torch.tensor(math.pi / 2, dtype=torch.float64)
    assert math.isclose(angular_pair_covariance(right, 3).item(), -1 / 3, rel_tol=1e-12)


def test_series_and_dilogarithm_agree_in_many_dimensions(monkeypatch):
    theta = torch.linspace(0, math.pi, 31, dtype=torch.float64)
    series = angular_pair_covariance(theta, 16)
    monkeypatch.setattr("hrf.theory.orthogonal._TERMS", 1)  # too few terms: the other route
    torch.testing.assert_close(angular_pair_covariance(theta, 16), series, rtol=1e-9, atol=1e-16)

import math

import pytest
import torch
from scipy.special import hyp1f1

from hrf.theory import positive_mse, trigonometric_mse
from hrf.theory.map_errors import (
    exponential_log_mse,
    positive_log_mse,
    positive_relative_error,
    trigonometric_log_mse,
    trigonometric_relative_error,
)
from hrf.theory.orthogonal import orthogonal_share


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
    torch.testing.assert_close(trigonometric_mse(x, y, m), trigonometric, rtol=1e-11, atol=0)
    torch.testing.assert_close(positive_mse(x, y, m), positive, rtol=1e-11, atol=0)


@pytest.mark.parametrize("orthogonal", [True, False])
@pytest.mark.parametrize("scale", [1e-8, 0.3, 2.0, 50.0])
def test_mses_are_those_of_exponential_estimators(scale, orthogonal):
    x, y = vectors(scale)
    torch.testing.assert_close(
        trigonometric_log_mse(x, y, 7, orthogonal=orthogonal),
        exponential_log_mse(x, y, 7, imaginary(5), antithetic=False, orthogonal=orthogonal),
        rtol=1e-12,
        atol=1e-11,
    )
    torch.testing.assert_close(
        positive_log_mse(x, y, 7, orthogonal=orthogonal),
        exponential_log_mse(x, y, 7, antithetic=True, orthogonal=orthogonal),
        rtol=1e-12,
        atol=1e-11,
    )


def test_trigonometric_features_gain_nothing_from_antithetic_rows():
    x, y = vectors(0.5)
    both = (exponential_log_mse(x, y, 7, imaginary(5), antithetic=flag) for flag in (True, False))
    torch.testing.assert_close(*both, rtol=1e-12, atol=1e-12)


def test_the_identity_without_antithetic_rows_is_not_the_positive_estimator():
    x, y = vectors(0.5)
    single = exponential_log_mse(x, y, 7, antithetic=False).exp()
    expected = (2 * (x * y).sum(-1)).exp() * torch.expm1((x + y).square().sum(-1)) / 7
    torch.testing.assert_close(single, expected, rtol=1e-12, atol=0)
    assert bool((single > positive_mse(x, y, 7)).all())


@pytest.mark.parametrize("n_projections", [1, 3, 5, 12])
def test_orthogonal_rows_subtract_a_confluent_function(n_projections):
    x, y = vectors(0.4)
    kernel = (x * y).sum(-1).exp()
    share = orthogonal_share(n_projections, 5)
    z, delta = (x + y).square().sum(-1), (x - y).square().sum(-1)
    gain = 1 - (-z).exp() * torch.from_numpy(hyp1f1(5, 2.5, z.numpy() / 2))
    torch.testing.assert_close(
        positive_mse(x, y, n_projections, orthogonal=True),
        positive_mse(x, y, n_projections) - share * kernel**2 * gain,
        rtol=1e-9,
        atol=0,
    )
    gain = 1 - delta.exp() * torch.from_numpy(hyp1f1(5, 2.5, -delta.numpy() / 2))
    torch.testing.assert_close(
        trigonometric_mse(x, y, n_projections, orthogonal=True),
        trigonometric_mse(x, y, n_projections) - share * kernel**2 * gain,
        rtol=1e-9,
        atol=0,
    )


def test_one_dimension_has_nothing_to_gain_from_orthogonal_rows():
    x, y = vectors(0.5, dim=1)
    torch.testing.assert_close(positive_mse(x, y, 6, orthogonal=True), positive_mse(x, y, 6), rtol=0, atol=0)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_each_base_is_exact_at_its_pole(orthogonal):
    x, _ = vectors(3.0)
    assert not trigonometric_mse(x, x, 4, orthogonal=orthogonal).any()
    assert not positive_mse(x, -x, 4, orthogonal=orthogonal).any()


def test_relative_errors_are_root_mse_over_kernel():
    x, y = vectors(0.5)
    kernel = (x * y).sum(-1).exp()
    pairs = ((trigonometric_relative_error, trigonometric_mse), (positive_relative_error, positive_mse))
    for error, mse in pairs:
        torch.testing.assert_close(error(x, y, 3), mse(x, y, 3).sqrt() / kernel, rtol=1e-12, atol=0)


def test_logarithms_follow_the_exponent_for_huge_norms():
    x = torch.tensor([100.0, 0.0], dtype=torch.float64)
    y = torch.tensor([0.0, 100.0], dtype=torch.float64)
    for log_mse in (trigonometric_log_mse, positive_log_mse):
        assert math.isclose(log_mse(x, y, 2).item(), 2e4 - math.log(4), rel_tol=1e-14)
        assert math.isclose(log_mse(x, y, 2, orthogonal=True).item(), 2e4 - math.log(4), rel_tol=1e-14)

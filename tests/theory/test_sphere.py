import math

import pytest
import torch

from hrf.theory import (
    angle,
    log_sphere_relative_error_angular,
    sphere_relative_error_angular,
    sphere_relative_error_positive,
    sphere_relative_error_trigonometric,
)
from hrf.theory.hybrid_errors import angular_hybrid_mse
from hrf.theory.map_errors import positive_relative_error, trigonometric_relative_error
from hrf.theory.sphere import angular_same_length_log_mse, angular_same_length_mse

THETA = torch.linspace(0, math.pi, 9, dtype=torch.float64)


def pairs(r):
    x = torch.tensor([r, 0.0], dtype=torch.float64)
    return x, r * torch.stack([THETA.cos(), THETA.sin()], -1)


@pytest.mark.parametrize("r", [0.3, 1.0, 2.5])
def test_errors_on_the_sphere_are_those_of_vectors(r):
    x, y = pairs(r)
    tolerance = {"rtol": 1e-12, "atol": 1e-14}
    torch.testing.assert_close(
        sphere_relative_error_trigonometric(THETA, r, 7), trigonometric_relative_error(x, y, 7), **tolerance
    )
    torch.testing.assert_close(
        sphere_relative_error_positive(THETA, r, 7), positive_relative_error(x, y, 7), **tolerance
    )
    kernel = (x * y).sum(-1).exp()
    for shared in (True, False):
        expected = angular_hybrid_mse(x, y, 7, 3, shared=shared)
        torch.testing.assert_close(
            sphere_relative_error_angular(angle(x, y), r, 7, 3), expected.sqrt() / kernel, **tolerance
        )
        torch.testing.assert_close(
            angular_same_length_mse(angle(x, y), r, 7, 3), expected, rtol=1e-12, atol=1e-20
        )


def test_the_same_length_mse_needs_the_corrected_coefficient():
    r, m, n = 1.0, 7, 2
    x, y = pairs(r)
    q, half = THETA / math.pi, THETA / 2
    positive = (8 * r**2 * half.cos() ** 2 - 2 * r**2).exp() * (1 - (-4 * r**2 * half.cos() ** 2).exp()) ** 2
    trigonometric = math.exp(2 * r**2) * (1 - (-4 * r**2 * half.sin() ** 2).exp()) ** 2
    first = q * (q - q / n + 1 / n) * positive
    corrected = (first + (1 - q) * (1 - q + q / n) * trigonometric) / (2 * m)
    printed = (first + q * (1 - 1 / n - q + q / n) * trigonometric) / (2 * m)
    exact = angular_hybrid_mse(x, y, m, n)
    torch.testing.assert_close(angular_same_length_mse(THETA, r, m, n), corrected, rtol=1e-12, atol=1e-30)
    torch.testing.assert_close(exact, corrected, rtol=1e-12, atol=1e-20)
    assert bool(((printed - exact).abs() > 0.01 * exact)[2:-2].all())


def test_errors_vanish_exactly_at_the_poles():
    poles = torch.tensor([0.0, math.pi], dtype=torch.float64)
    assert sphere_relative_error_angular(poles, 3.0, 7, 3).tolist() == [0, 0]
    assert sphere_relative_error_trigonometric(poles, 3.0, 7)[0].item() == 0
    assert sphere_relative_error_positive(poles, 3.0, 7)[1].item() == 0


def test_logarithms_are_finite_for_a_radius_of_a_hundred():
    inner = THETA[1:-1]
    log_error = log_sphere_relative_error_angular(inner, 100.0, 7, 3)
    assert bool(log_error.isfinite().all())
    log_mse = angular_same_length_log_mse(inner, 100.0, 7, 3)
    torch.testing.assert_close(log_mse, 2 * log_error + 2e4 * inner.cos(), rtol=1e-13, atol=0)
    assert log_error[0].item() > 1.9e4  # cos²(π/16) · 2r²

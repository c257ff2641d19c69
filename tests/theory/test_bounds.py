import math

import pytest
import torch

from hrf.theory import (
    limit_ratio,
    log_corrected_bound,
    log_limit_ratio,
    log_max_relative_error,
    log_max_relative_error_base,
    log_paper_bound,
    log_sphere_relative_error_angular,
    log_tight_bound,
    max_relative_error,
    paper_bound,
    sphere_relative_error_angular,
    sphere_relative_error_positive,
    sphere_relative_error_trigonometric,
    tight_bound,
    w,
)
from hrf.theory.sphere import corrected_bound, log_w, max_relative_error_base

RADII = torch.linspace(1, 30, 146, dtype=torch.float64)


@pytest.mark.parametrize(("n", "crossing"), [(1, 4.1277), (2, 6.2336), (4, 10.4397), (8, 18.8466)])
def test_the_bound_of_the_paper_holds_up_to_a_radius_and_fails_beyond(n, crossing):
    excess = log_max_relative_error(RADII, 3, n) - log_paper_bound(RADII, 3, n)
    assert bool(((excess > 0) == (crossing < RADII)).all())
    around = torch.tensor([crossing - 1e-3, crossing + 1e-3], dtype=torch.float64)
    below, above = (log_max_relative_error(around, 3, n) - log_paper_bound(around, 3, n)).tolist()
    assert below < 0 < above


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


def test_the_maximum_is_taken_for_each_radius():
    radii = torch.tensor([[0.5, 1.0], [2.0, 40.0]], dtype=torch.float64)
    together = log_max_relative_error(radii, 3, 4)
    alone = [[log_max_relative_error(r, 3, 4).item() for r in row] for row in radii.tolist()]
    torch.testing.assert_close(together, torch.tensor(alone, dtype=torch.float64), rtol=1e-14, atol=1e-14)


def test_at_a_fixed_number_of_bits_the_gain_over_the_bases_is_the_root_of_the_radius():
    radii = torch.tensor([100.0, 400.0], dtype=torch.float64)
    gain = log_max_relative_error_base(radii, 3) - log_max_relative_error(radii, 3, 1)
    assert math.isclose((gain[1] - gain[0]).item(), math.log(2), rel_tol=1e-2)
    many = [log_max_relative_error_base(r, 3) - log_max_relative_error(r, 3, 10**9) for r in (100.0, 400.0)]
    assert math.isclose((many[1] - many[0]).item(), math.log(4), rel_tol=1e-2)


def test_the_bases_reach_their_maximum_at_a_pole():
    poles = torch.tensor([0.0, math.pi], dtype=torch.float64)
    largest = max_relative_error_base(1.3, 5).item()
    assert math.isclose(largest, math.exp(3.38) * (1 - math.exp(-6.76)) / math.sqrt(10), rel_tol=1e-13)
    assert math.isclose(sphere_relative_error_positive(poles, 1.3, 5)[0].item(), largest, rel_tol=1e-13)
    assert math.isclose(sphere_relative_error_trigonometric(poles, 1.3, 5)[1].item(), largest, rel_tol=1e-13)
    assert max_relative_error(1.3, 5, 4) < largest


def test_errors_next_to_the_poles_are_the_limit_times_a_root():
    theta = torch.tensor([1e-9], dtype=torch.float64)
    for r, n in ((0.5, 1), (1.0, 4), (2.0, 16)):
        ratio = sphere_relative_error_angular(theta, r, 3, n) / theta.sqrt()
        torch.testing.assert_close(ratio, limit_ratio(r, 3, n).reshape(1), rtol=1e-6, atol=0)
        gap = math.pi - (math.pi - theta)
        ratio = sphere_relative_error_angular(math.pi - theta, r, 3, n) / gap.sqrt()
        torch.testing.assert_close(ratio, limit_ratio(r, 3, n).reshape(1), rtol=1e-6, atol=0)


def test_values_are_exponentials_of_logarithms_and_scale_with_the_projections():
    pairs = (
        (paper_bound, log_paper_bound),
        (corrected_bound, log_corrected_bound),
        (tight_bound, log_tight_bound),
        (limit_ratio, log_limit_ratio),
        (max_relative_error, log_max_relative_error),
    )
    for value, logarithm in pairs:
        assert math.isclose(value(1.5, 3, 4).item(), math.exp(logarithm(1.5, 3, 4).item()), rel_tol=1e-14)
        assert math.isclose(value(1.5, 12, 4).item(), value(1.5, 3, 4).item() / 2, rel_tol=1e-12)
        assert logarithm(100.0, 3, 4).isfinite()
    assert math.isclose(w(0.7).item(), math.exp(log_w(0.7).item()), rel_tol=1e-15)
    assert math.isclose(w(1e-5).item(), 4e-10, rel_tol=1e-9)

import math

import torch

from hrf.theory import Scaled, scaled_sum
from hrf.theory.orthogonal import complement


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_sums_cancel_and_keep_their_sign():
    total = scaled_sum(Scaled(tensor(3.0), tensor(900.0)), Scaled(tensor(-5.0), tensor(900.0)))
    assert total.mantissa.item() * math.exp(total.exponent.item() - 900) == -2


def test_a_zero_with_a_huge_exponent_does_not_flush_the_rest():
    total = scaled_sum(Scaled(tensor(0.0, 0.0), tensor(9e4, 9e4)), Scaled(tensor(2.0, 0.0), tensor(1.0, 7.0)))
    torch.testing.assert_close(total.value(), tensor(2 * math.e, 0.0), rtol=1e-15, atol=0)


def test_an_exponent_of_minus_infinity_counts_as_zero():
    total = scaled_sum(Scaled(tensor(1.0), tensor(-math.inf)), Scaled(tensor(1.0), tensor(-math.inf)))
    assert total.value().item() == 0
    assert total.log().item() == -math.inf


def test_products_scale_the_number():
    number = Scaled(tensor(2.0), tensor(3.0))
    expected = 6 * math.exp(5)
    assert math.isclose(number.times(3.0).times_exp(tensor(2.0)).value().item(), expected, rel_tol=1e-15)


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

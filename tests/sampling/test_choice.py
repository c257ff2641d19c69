"""Single steps of a draw."""

from __future__ import annotations

import math

import pytest
import torch

from hrf import choice


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_branches_without_weight_are_never_chosen(dtype):
    weights = torch.tensor([[0, 0, 1, 0, 3, 0], [1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 2]], dtype=dtype)
    chosen = choice.choose(weights, 10_000, torch.Generator().manual_seed(0))
    assert (weights.gather(1, chosen) > 0).all()


def test_the_largest_random_number_stays_inside(monkeypatch):
    """1 − 2⁻²⁴ times the sum of the weights is below it, in any rounding."""
    largest = torch.tensor(1.0).nextafter(torch.tensor(0.0))
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: largest.expand(shape))
    weights = torch.rand_like(torch.empty(2000, 3)).mul_(torch.tensor([1.0, 1.0, 0.0]))
    assert (choice.choose(weights, 1, None) == 1).all()


@pytest.mark.parametrize("size", [1e-45, 4e-44, 1e-38, 1.0, 1e38])
def test_weights_of_any_size(size, monkeypatch):
    """The largest random number chooses the last branch with weight, even where weights are subnormal."""
    largest = torch.tensor(1.0).nextafter(torch.tensor(0.0))
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: largest.expand(shape))
    assert choice.choose(torch.tensor([[size, 0.0, size, 0.0]]), 1, None) == 2


def test_a_long_class_without_mass_hides_no_other():
    products, log_scale = torch.tensor([[-0.1, 0.2, 0.1, 1e-8]]), torch.tensor([500.0, 0.0, -1.0, 300.0])
    weights = choice.branch_weights(products, log_scale, floor=1e-7)
    torch.testing.assert_close(weights, torch.tensor([[0.0, 0.2, 0.1 / math.e, 0.0]]))
    nothing = choice.branch_weights(torch.zeros(1, 4), torch.full((4,), -torch.inf), floor=0.0)
    assert nothing.equal(torch.zeros(1, 4))


@pytest.mark.parametrize("n_rows", [3, 50])
def test_products_with_chosen_rows(n_rows):
    """Rows in any order and repeated, fewer and more of them than there are."""
    torch.manual_seed(0)
    x, rows = torch.randn(6, 5, dtype=torch.float64), torch.randn(n_rows, 5, dtype=torch.float64)
    index = torch.randint(n_rows, (6, 8))
    index[0] = 2
    expected = torch.einsum("nd,njd->nj", x, rows[index])
    torch.testing.assert_close(choice.chosen_products(x, rows, index), expected, rtol=1e-13, atol=1e-13)


def test_products_on_other_devices_have_the_same_shape():
    x, rows = torch.empty(6, 5, device="meta"), torch.empty(50, 5, device="meta")
    index = torch.empty(6, 8, dtype=torch.long, device="meta")
    assert choice.chosen_products(x, rows, index).shape == (6, 8)

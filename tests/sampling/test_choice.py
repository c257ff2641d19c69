"""Single steps of a draw."""

from __future__ import annotations

import pytest
import torch

from hrf.sampling import choice


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

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import hrf
from hrf.features.exponential import ComplexSum, PairSum

G = torch.Generator().manual_seed(0)
EPS = torch.finfo(torch.float64).eps


def pair_sum(length: int = 3, size: int = 5) -> PairSum:
    draw = [torch.randn(2, n, 4, generator=G, dtype=torch.float64) for n in (length, size)]
    return PairSum(*draw)


def every_pair(part: PairSum | None) -> torch.Tensor:
    if part is None:
        return torch.zeros(2, 3, 5, 4, dtype=torch.float64)
    return part.query.unsqueeze(-2) + part.key.unsqueeze(-3)


@pytest.mark.parametrize("first", ["real", "imag", "both"])
@pytest.mark.parametrize("second", ["real", "imag", "both", "first"])
def test_products_are_those_of_every_pair(first, second):
    def draw(parts: str) -> ComplexSum:
        return ComplexSum(*(pair_sum() if parts in (name, "both") else None for name in ("real", "imag")))

    one = draw(first)
    other = one if second == "first" else draw(second)
    (u, v), (s, t) = (map(every_pair, z) for z in (one, other))
    products = one.products(other)
    for product, (a, b) in zip(products, ((u, s), (v, t), (v, s), (u, t)), strict=True):
        expected = (a * b).sum(-1)
        torch.testing.assert_close(product.expand_as(expected), expected, rtol=0, atol=100 * EPS)


def test_the_square_of_a_sum_that_vanishes_is_exactly_zero():
    part = pair_sum()
    opposite = PairSum(1e3 * part.query, -1e3 * part.query)
    assert opposite.dot(opposite).diagonal(dim1=-2, dim2=-1).eq(0).all()


class Largest(TorchDispatchMode):
    """Records the number of elements of the largest tensor that is made inside."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numel = max(self.numel, out.numel())
        return out


@pytest.mark.parametrize(
    "make",
    [
        lambda dim: hrf.Positive(dim, n_projections=dim),
        lambda dim: hrf.Exponential(dim, n_projections=4, matrix=torch.full((dim,), 0.9 + 0.3j)),
        lambda dim: hrf.AngularHybrid(dim, n_projections=dim, n_coefficient_projections=4),
        lambda dim: hrf.OptimalPositive(dim, n_projections=dim),
        lambda dim: hrf.DenseExponential(dim, n_projections=dim, projection="iid"),
    ],
    ids=["positive", "complex", "angular hybrid", "favor++", "favor#"],
)
def test_closed_forms_make_no_tensor_of_all_pairs_times_the_dimension(make):
    dim, length = 256, 64
    x, y = 0.05 * torch.randn(2, length, dim, generator=G)
    phi = make(dim)
    with Largest() as largest:
        phi.mse(x, y)
    assert length**2 <= largest.numel < length**2 * dim / 4

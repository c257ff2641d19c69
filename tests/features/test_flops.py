"""Analytic counts against `torch.utils.flop_counter`, which counts products of matrices."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import hrf
from hrf.features.flops import Flops

DIM, M, N = 6, 5, 3
FULL = torch.eye(DIM) + 0.1
CENTERS = torch.randn(4, DIM, generator=torch.Generator().manual_seed(0))


def angular(**options):
    return hrf.AngularHybrid(DIM, n_projections=M, n_coefficient_projections=N, **options)


MAPS = {
    "positive": lambda: hrf.Positive(DIM, n_projections=M),
    "trigonometric": lambda: hrf.Trigonometric(DIM, n_projections=M),
    "diagonal": lambda: hrf.Exponential(DIM, n_projections=M, matrix=torch.arange(1.0, 7)),
    "full": lambda: hrf.Exponential(DIM, n_projections=M, matrix=FULL),
    "complex": lambda: hrf.Exponential(DIM, n_projections=M, matrix=FULL * (1 + 1j)),
    "shifted": lambda: hrf.Exponential(DIM, n_projections=M, query_shift=torch.ones(DIM)),
    "FAVOR++": lambda: hrf.OptimalPositive(DIM, n_projections=M),
    "FAVOR#": lambda: hrf.DenseExponential(DIM, n_projections=M),
    "gaussian kernel": lambda: hrf.GaussianKernel(hrf.Positive(DIM, n_projections=M)),
    "angular": angular,
    "angular apart": lambda: angular(share_projections=False),
    "gaussian hybrid": lambda: hrf.GaussianHybrid(
        DIM, n_projections=M, n_coefficient_projections=N, sigma=1.0, radius=1.0
    ),
    "sign bits": lambda: hrf.coefficients.Angular(DIM, n_projections=N),
    "indicator": lambda: hrf.coefficients.Indicator(CENTERS, CENTERS, pair=(0, 1)),
}


def counted(phi, length: int) -> int:
    with FlopCounterMode(display=False) as counter:
        phi.scaled_queries(torch.ones(length, DIM))
    return counter.get_total_flops()


@pytest.mark.parametrize("name", MAPS)
def test_products_are_those_that_pytorch_counts(name):
    phi = MAPS[name]()
    # Two lengths, so that work that does not depend on the vectors drops out.
    assert phi._flops().products == counted(phi, 3) - counted(phi, 2) > 0


@pytest.mark.parametrize("base", ["separable", "shifted"])
def test_products_of_a_clustered_map(base):
    x, y = torch.randn(2, 60, DIM, generator=torch.Generator().manual_seed(0)) / 2
    phi = hrf.ClusteredHybrid.fit(x, y, n_clusters=(4, 4), n_projections=M, base=base)
    assert phi._flops().products == counted(phi, 3) - counted(phi, 2)


def test_the_papers_formulas():
    d = DIM
    assert hrf.Positive(d, n_projections=M).flops() == 2 * M * (d + 2)
    assert angular().flops() == 2 * d * (M + N) + 8 * M + N + 4 * M * N


def test_steps_add_up():
    assert Flops(1, 2).plus(Flops(3, 4), Flops(5)).times(2) == Flops(18, 12)
    assert Flops(18, 12).total == 30

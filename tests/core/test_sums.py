"""Sums of angular and clustered engines, by the core and without it."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import pytest
import torch

import hrf
from attention.engines import inputs, reference, sums
from hrf import _core as core
from hrf._attention import angular, clusters

DIM = 6


@cache
def maps() -> list[hrf.FeatureMap]:
    torch.manual_seed(0)
    x, y = 0.5 * torch.randn(2, 3, 200, DIM)
    return [
        hrf.AngularHybrid(DIM, n_projections=8, n_coefficient_projections=8),
        hrf.AngularHybrid(DIM, n_projections=5, n_coefficient_projections=11, heads=3),
        *(
            hrf.ClusteredHybrid.fit(x, y, n_clusters=(4, 5), base=base, exact_share=0.3, heads=3)
            for base in ("separable", "paper")
        ),
    ]


@cache
def example(index, masked):
    """A map, tensors and keys to keep; their sums by definition, and the size of these."""
    phi = maps()[index].double()
    torch.manual_seed(0)
    tensors = inputs(2, 3, length=130, keys=140, dim=DIM)
    keep = torch.arange(140) < torch.tensor([100, 140]).view(2, 1, 1) if masked else None
    return phi, tensors, keep, *reference(*tensors, phi, keep)


CASES = [
    (i, dtype, masked)
    for i in range(4)
    for dtype in (torch.float32, torch.float64)
    for masked in (False, True)
]


def check(index, dtype, masked):
    """Sums are near the definition: eight bits of the type are for roundings of logarithms and sums."""
    phi, tensors, keep, expected, size = example(index, masked)
    engine = angular if index < 2 else clusters
    found = sums(engine, *(t.to(dtype) for t in tensors), deepcopy(phi).to(dtype), keep).unscaled()
    assert ((found - expected).abs() <= 2**8 * torch.finfo(dtype).eps * size).all()


@pytest.mark.parametrize("case", CASES)
def test_sums_by_the_core(case, threads):
    check(*case)


@pytest.mark.parametrize("case", CASES)
def test_sums_by_operations(case, monkeypatch):
    monkeypatch.setattr(core, "serves", lambda *_: False)
    check(*case)


@pytest.mark.parametrize("index", range(4))
def test_every_instruction_set(index, instructions):
    check(index, torch.float32, True)

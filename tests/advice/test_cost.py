from __future__ import annotations

import pytest
import torch

import hrf
from hrf.advice import candidates


@pytest.mark.parametrize("base", ["separable", "shifted", "shrunk", "moments"])
def test_active_width_of_a_clustered_map_is_what_a_vector_fills(base):
    x, y = torch.randn(2, 60, 3, generator=torch.Generator().manual_seed(0)) / 2
    phi = hrf.ClusteredHybrid.fit(x, y, n_clusters=(3, 5), n_projections=4, base=base)
    filled = (phi.scaled_queries(x).values != 0).sum(-1).max()
    assert phi.active_width == int(filled)


def test_the_largest_map_within_a_budget():
    def build(m: int) -> hrf.FeatureMap:
        return hrf.AngularHybrid(4, n_projections=m, n_coefficient_projections=2)

    for count, limit in ((lambda phi: phi.active_width, 100), (lambda phi: phi.flops(), 5000)):
        m = candidates.largest_within(build, count, limit)
        assert count(build(m)) <= limit < count(build(m + 1))
    with pytest.raises(ValueError, match="even one projection"):
        candidates.largest_within(build, lambda phi: phi.active_width, 11)


def test_a_measured_cost_is_never_extrapolated():
    """A cost with a jump, as from a cache that overflows."""
    asked = []

    def steps(phi: hrf.Positive) -> float:
        asked.append(phi.n_projections)
        return phi.feature_dim / 100 * (1 if phi.feature_dim < 60 else 3)

    m = candidates.largest_measured(lambda m: hrf.Positive(4, n_projections=m), steps, 1, 8)
    assert m in asked
    assert steps(hrf.Positive(4, n_projections=m)) <= 1.1


def test_costs_are_shares_of_the_reference():
    reference = hrf.Positive(32, n_projections=64)
    vectors = torch.ones(64, 32)
    for unit in ("width", "flops"):
        assert candidates.cost_in(unit, reference, vectors)(reference) == 1
    assert candidates.cost_in("time", reference, vectors)(reference) > 0

"""Errors of maps: what is ranked is what `hrf.attention` computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hrf
from advice import data
from hrf.advice.candidates import Builder, cost_in, proposals
from hrf.advice.errors import Problem, attention_outputs

DRAW = torch.Generator().manual_seed(0)
TENSORS = {"easy": data.easy, "hopeless": data.hopeless, "clusters": data.clusters}


def candidates(queries: Tensor, keys: Tensor) -> dict[str, hrf.FeatureMap]:
    """Every kind of candidate, fitted to the first half."""
    half, dim = len(queries) // 2, queries.shape[-1]
    fit = queries[:half], keys[:half]
    cost = cost_in("width", hrf.Positive(dim, n_projections=16), queries)
    builder = Builder(*fit, Problem(*fit, None, "attention"), 32, "width", cost, 0)
    return {proposal.name: proposal.make().float() for proposal in proposals(builder)}


@pytest.mark.parametrize("name", TENSORS)
def test_errors_are_those_of_attention(name):
    queries, keys = TENSORS[name]()
    q, k, v = queries[80:], keys[80:], data.noise(len(keys) - 80, 5, seed=7)
    exact = (q @ k.mT).softmax(-1) @ v
    clamped = 0
    for kind, phi in candidates(queries, keys).items():
        rule = hrf.Denominator("clamp")
        computed = hrf.attention(q[None], k[None], v[None], phi, scale=1, denominator=rule)[0]
        problem = Problem(q, k, v, "output")
        scale = computed.abs().max().clamp(min=1)
        assert (problem.estimate(phi) - computed).abs().max() < 1e-9 * scale, kind
        error = float((computed - exact).norm() / exact.norm())
        assert problem.error(phi, 1, DRAW).value == pytest.approx(error, rel=1e-9), kind
        assert int(attention_outputs(phi, q, k)[1].sum()) == rule.clamped, kind
        assert not (phi.nonnegative and rule.clamped), kind
        clamped += rule.clamped
    assert (clamped > 0) == (name != "easy")


def test_signed_and_positive_maps_are_among_the_candidates():
    maps = candidates(*data.easy())
    assert {phi.nonnegative for phi in maps.values()} == {True, False}
    assert any(phi.follows_keys for phi in maps.values())


def test_the_map_keeps_its_draw():
    phi = hrf.Trigonometric(8, n_projections=4)
    before = [omega.omega.clone() for omega in phi.all_projections()]
    problem = Problem(*data.easy(), None, "attention")
    interval = problem.error(phi, 3, torch.Generator().manual_seed(0))
    assert interval.low < interval.value < interval.high
    assert all(torch.equal(a, b.omega) for a, b in zip(before, phi.all_projections(), strict=True))


def test_a_map_without_randomness_has_an_interval_without_width():
    q, k = data.clusters()
    phi = hrf.ClusteredHybrid.fit(q, k, n_clusters=(4, 4), base="separable")
    low, value, high = Problem(q, k, None, "attention").error(phi, 5, DRAW)
    assert low == value == high > 0


@pytest.mark.parametrize("objective", ["attention", "kernel"])
def test_uniform_attention_is_the_constant_map(objective):
    x, y = (u[:50] for u in data.easy())
    kernel = (x @ y.mT).exp()
    weights = kernel / kernel.sum(-1, keepdim=True)
    expected = (weights - 1 / 50).norm() / weights.norm()
    if objective == "kernel":
        expected = (kernel.mean(-1, keepdim=True) / kernel - 1).square().median().sqrt()
    assert Problem(x, y, None, objective).uniform() == pytest.approx(float(expected))


def test_weights_and_outputs_agree():
    x, y = (u[:50] for u in data.easy())
    phi = hrf.Positive(8, n_projections=8)
    weights = Problem(x, y, y, "attention").estimate(phi)
    assert torch.allclose(weights.sum(-1), torch.ones(50, dtype=torch.float64))
    assert torch.allclose(weights @ y, Problem(x, y, y, "output").estimate(phi))

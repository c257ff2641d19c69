"""Summarised attention in advice: at which cost, by which error, and when there is none."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import hrf
from hrf.advice import errors
from hrf.advice.errors import Problem

LENGTH, DIM = 512, 8


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, LENGTH, DIM, dtype=torch.float64, generator=generator)
    return Problem(q, k, v, "output")


def test_flops_by_hand():
    """At 512 tokens there are 64 groups and 64 clusters; keys of 2 and values of 3."""
    trees, sums = 26 * 2 * 12 + 12 * 4, 2 * 64 * 7 + 2 * 64 * 5
    assert errors.summary_flops(512, 2, 3, 0.5) == trees + sums + 0.5 * 512 * 10


@pytest.mark.parametrize("budget", [16, 4096])
def test_tolerance_is_the_smallest_within_the_cost(problem, budget):
    reference = hrf.Positive(DIM, n_projections=budget // 2)
    finding = errors.find_summaries(problem, reference, LENGTH)
    allowed = errors.map_flops(reference, DIM)
    assert finding.flops == round(errors.summary_flops(LENGTH, DIM, DIM, finding.exact_share))
    assert finding.relative_cost == pytest.approx(finding.flops / allowed, rel=1e-3)
    assert finding.relative_cost <= 1 or finding.tolerance == math.inf
    assert (finding.tolerance == 0.5) == (budget == 4096)
    assert (finding.tolerance == math.inf) == (budget == 16)


def test_error_is_of_the_output(problem):
    finding = errors.find_summaries(problem, hrf.Positive(DIM, n_projections=8), LENGTH)
    q, k, v = (u[None].float() for u in (problem.queries, problem.keys, problem.values))
    output = hrf.attention(q, k, v, hrf.SummarisedAttention(tolerance=finding.tolerance), scale=1.0)
    exact = F.scaled_dot_product_attention(q, k, v, scale=1.0)
    assert finding.error == pytest.approx(float((output - exact).norm() / exact.norm()), rel=1e-3)


def test_none_where_it_would_be_exact_or_there_are_no_outputs(problem):
    reference = hrf.Positive(DIM, n_projections=8)
    weights = Problem(problem.queries, problem.keys, None, "attention")
    short = Problem(problem.queries[:100], problem.keys, problem.values, "output")
    assert errors.find_summaries(weights, reference, LENGTH) is None
    assert errors.find_summaries(short, reference, LENGTH) is None
    assert errors.find_summaries(problem, reference, 100) is None


def test_advice_tells_of_it():
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 600, DIM, generator=generator)
    advice = hrf.advise(q, k, v, budget=16, n_redraws=2)
    assert advice.summarised.error < advice.ranking[0].error
    (sentence,) = [s for s in advice.sentences() if "SummarisedAttention" in s]
    assert f"{advice.summarised.exact_share:.1%} of pairs" in sentence
    assert advice.to_dict()["summarised"]["error"] == advice.summarised.error
    assert hrf.advise(q, k, budget=16, n_redraws=2).summarised is None

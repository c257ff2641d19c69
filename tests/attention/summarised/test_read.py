"""Outputs and gradients, given a plan: against the definition, one query at a time, and against exact attention."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from attention.summarised.cases import exact, random_heads
from attention.summarised.naive import exact_keys, members, naive, opened_by
from hrf import tuning
from hrf._attention.summarised.plan import clusters_of, groups_of
from hrf._attention.summarised.read import make_plan, read, summary_logits, sums_and_scales

ROUNDING = 1e-9  # float64 through sums of some hundred terms and quotients


def wanting_gradients(heads):
    tensors = [u.clone().requires_grad_() for u in heads[:3]]
    return tensors, heads._replace(x=tensors[0], y=tensors[1], v=tensors[2])


@pytest.mark.parametrize("tolerance", [0.1, 1.0, 4.0, math.inf])
@pytest.mark.parametrize("blocks", [1, 1 << 20], ids=["small blocks", "one block"])
def test_outputs_and_gradients_are_those_of_the_definition(tolerance, blocks, monkeypatch):
    monkeypatch.setattr(tuning, "SUMMARY_FLOATS", blocks)
    monkeypatch.setattr(tuning, "EXACT_FLOATS", blocks)
    tensors, heads = wanting_gradients(random_heads(2, 29, 41, 4, 3))
    plan = make_plan(heads, 4, 8, torch.full((2,), tolerance, dtype=torch.float64))
    mine, theirs = read(heads, plan), naive(heads, plan)
    assert (mine - theirs).abs().max() <= ROUNDING
    weights = torch.randn(mine.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = torch.autograd.grad((theirs * weights).sum(), tensors)
    for got, want in zip(torch.autograd.grad((mine * weights).sum(), tensors), expected, strict=True):
        assert (got - want).abs().max() <= ROUNDING * (1 + want.abs().max())


@pytest.mark.parametrize("seed", range(20))
def test_without_tolerance_it_is_exact_attention(seed):
    g = torch.Generator().manual_seed(seed)
    queries, keys, dim, width = (
        int(torch.randint(a, b, (), generator=g)) for a, b in ((8, 80), (8, 80), (1, 9), (1, 9))
    )
    heads = random_heads(3, queries, keys, dim, width, padded=0.0 if seed % 3 else 0.1, seed=seed)
    heads.keys[:, :8] = heads.queries[:, :8] = True
    for tolerance in (0.0, 1e-30):
        plan = make_plan(heads, 8, 8, torch.full((3,), tolerance, dtype=torch.float64))
        assert (read(heads, plan) - exact(heads)).abs().max() <= ROUNDING


def test_exact_keys_are_those_above_the_tolerance():
    heads = random_heads(2, 60, 70, 5, 3)
    plan = make_plan(heads, 4, 8, torch.tensor([0.7, 2.0], dtype=torch.float64))
    groups = groups_of(heads, plan.groups)
    clusters = clusters_of(heads, plan.clusters, groups.metric)
    counts = []
    for n, tolerance in enumerate((0.7, 2.0)):
        keys = int(heads.keys[n].sum())
        limit = tolerance / keys * (keys / 512) ** 0.25
        for i in range(4):
            weights = (heads.y[n] @ groups.mean[n, i]).masked_fill(~heads.keys[n], -torch.inf).softmax(0)
            expected = set()
            for c, tokens in enumerate(members(plan.clusters, n)):
                variance = groups.width[n, i] * clusters.spread[n, c, : len(tokens)]
                error = weights[tokens] * variance.expm1().sqrt()
                expected |= set(tokens[error >= limit].tolist())
            assert exact_keys(plan, n, i) == expected
            counts.append(len(expected))
    assert min(counts) > 0
    assert max(counts) < 70


def test_queries_open_the_clusters_above_the_tolerance():
    heads = random_heads(2, 60, 70, 5, 3)
    tolerances = torch.tensor([4.0, 8.0], dtype=torch.float64)
    plan = make_plan(heads, 4, 8, tolerances)
    closed = plan._replace(opened=plan.opened[:0])
    groups = groups_of(heads, plan.groups)
    clusters = clusters_of(heads, plan.clusters, groups.metric)
    logits = summary_logits(groups, clusters, closed, slice(None))[0]
    sums, scale = sums_and_scales(groups, clusters, closed)
    n_opened = 0
    for n, i in product(range(2), range(4)):
        spread = torch.cov(heads.y[n][heads.keys[n]].T, correction=0)
        lengths = torch.einsum("igd,de,ige->ig", groups.residual[n], spread, groups.residual[n])
        mean_length = lengths.sum() / heads.queries[n].sum()
        for place in range(len(members(plan.groups, n)[i])):
            total = scale[n, i, place, 0] + sums[n, i, place, -1].log()
            expected = set()
            for c, tokens in enumerate(members(plan.clusters, n)):
                variance = lengths[i, place] / mean_length * clusters.spread[n, c, : len(tokens)].mean()
                share = (logits[n, i, place, c] - total).exp()
                if share > 0 and share * variance.expm1().sqrt() >= tolerances[n] / 16:
                    expected.add(c)
            assert opened_by(plan, n, i, place) == expected
            n_opened += len(expected)
    assert 0 < n_opened < 120 * 8 / 2


def test_error_falls_with_the_tolerance():
    heads = random_heads(2, 128, 128, 6, 4)
    errors = []
    for tolerance in (math.inf, 4.0, 1.0, 0.25, 0.0625):
        plan = make_plan(heads, 16, 16, torch.full((2,), tolerance, dtype=torch.float64))
        errors.append(float((read(heads, plan) - exact(heads)).norm()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 20

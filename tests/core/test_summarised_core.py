"""Summarised attention by the core: its plan is a valid one, and the output is that of `read` for this plan."""

from __future__ import annotations

import math
import weakref

import pytest
import torch

import hrf
from attention.summarised.cases import exact, random_heads
from hrf import _core as core
from hrf._attention.summarised import engine
from hrf._attention.summarised.engine import Compiled
from hrf._attention.summarised.plan import Heads, clusters_of, groups_of, log_errors, log_limits, log_weights
from hrf._attention.summarised.read import read, with_opened

CASES = [
    (3, 100, 130, 16, 16, 8, 8, 1.0),
    (2, 300, 333, 20, 12, 16, 32, 0.5),
    (2, 96, 201, 64, 40, 16, 32, math.inf),
    (2, 301, 128, 8, 3, 128, 128, 2.0),
    (1, 700, 90, 33, 9, 128, 16, 0.2),
]


def compiled(heads: Heads, n_groups: int, n_clusters: int, tolerance: float) -> Compiled:
    return Compiled(heads, 1.0, n_groups, n_clusters, torch.full((len(heads.x),), tolerance), keep=True)


def single(heads: Heads) -> Heads:
    return Heads(*(t.float() for t in heads[:3]), *heads[3:])


def rounding(heads: Heads) -> float:
    """Bound the relative error of a weight: that of its logit, a sum of d products, and of sums over all keys."""
    longest = heads.x.norm(dim=-1).max() * heads.y.norm(dim=-1).max()
    terms = heads.x.shape[-1] + heads.y.shape[1] ** 0.5
    return float(torch.finfo(torch.float32).eps * terms * (1 + longest) * heads.v.abs().max())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [0.0, 1.0, 8.0])
def test_outputs_are_those_of_the_plan(case, size):
    *shape, n_groups, n_clusters, tolerance = case
    heads = random_heads(*shape, padded=0.1)
    heads = single(heads._replace(x=heads.x * size, y=heads.y * size))
    assert core.serves(*heads[:3])
    found = compiled(heads, n_groups, n_clusters, tolerance)
    plan = found.plan()
    wide = Heads(*(t.double() for t in heads[:3]), *heads[3:])
    assert (found.out - read(wide, plan)).abs().max() <= rounding(heads)
    pairs = int((plan.starts.diff() * plan.groups.filled.sum(-1).flatten()).sum())
    pairs += int(plan.unmet(slice(None)).sum())
    every = heads.queries.sum(-1) * heads.keys.sum(-1)
    assert float((found.share * every).sum()) == pytest.approx(pairs, rel=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_parts_hold_every_token_once_and_are_even(case):
    *shape, n_groups, n_clusters, tolerance = case
    heads = single(random_heads(*shape, padded=0.1))
    plan = compiled(heads, n_groups, n_clusters, tolerance).plan()
    for parts, real in ((plan.groups, heads.queries), (plan.clusters, heads.keys)):
        sizes = parts.filled.sum(-1)
        for n in range(len(real)):
            tokens = parts.tokens[n][parts.filled[n]]
            assert sorted(tokens.tolist()) == real[n].nonzero().flatten().tolist()
        assert int((sizes.amax(-1) - sizes.amin(-1)).max()) <= 1


def test_exact_keys_are_those_above_the_tolerance():
    heads, tolerance = single(random_heads(2, 200, 300, 16, 8)), 0.8
    plan = compiled(heads, 16, 16, tolerance).plan()
    groups = groups_of(heads, plan.groups)
    clusters = clusters_of(heads, plan.clusters, groups.metric)
    weights = log_weights(groups.mean, clusters, plan.clusters.filled)
    bound = log_limits(torch.tensor(tolerance), heads.keys.sum(-1))[:, None, None, None]
    errors, chosen = log_errors(weights, groups.width, clusters) - bound, plan.is_exact(slice(None))
    near = 0.05 * math.log(2)  # of the approximation of log √expm1
    assert not (chosen & (errors < -near)).any()
    assert not (~chosen & (errors > near)).any()
    assert 0 < float(chosen.float().mean()) < 0.9


def test_queries_open_the_clusters_above_the_tolerance():
    heads, tolerance = single(random_heads(2, 200, 300, 16, 8)), 4.0
    plan = compiled(heads, 16, 16, tolerance).plan()
    none = plan._replace(opened=plan.opened[:0])
    wide = Heads(*(t.double() for t in heads[:3]), *heads[3:])
    most, least = (
        set(map(tuple, with_opened(wide, none, torch.full((2,), t * tolerance)).opened.tolist()))
        for t in (1 - 1e-3, 1 + 1e-3)  # far more than the rounding of float32
    )
    assert least <= set(map(tuple, plan.opened.tolist())) <= most
    assert len(least) > 0


@pytest.mark.parametrize("size", [1.0, 8.0])
def test_without_tolerance_it_is_exact_attention(size):
    heads = random_heads(2, 150, 170, 16, 8, padded=0.1)
    heads = single(heads._replace(x=heads.x * size, y=heads.y * size))
    found = compiled(heads, 16, 16, 0.0)
    wide = Heads(*(t.double() for t in heads[:3]), *heads[3:])
    assert (found.out - exact(wide)).abs().max() <= rounding(heads)


def test_trees_are_as_good_as_exact_ones():
    """Spreads of clusters, which the error follows, are near those of the plain tree."""
    from hrf._attention.summarised.plan import make_trees

    heads = single(random_heads(2, 512, 512, 16, 8))
    *_, plain = make_trees(heads, 32, 32)
    plan = compiled(heads, 32, 32, math.inf).plan()
    own = clusters_of(heads, plan.clusters, groups_of(heads, plan.groups).metric)
    assert float(own.spread.mean()) <= 1.1 * float(plain.spread.mean())


DTYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_plan(case, dtype):
    *shape, n_groups, n_clusters, tolerance = case
    wide = random_heads(*shape, padded=0.1)
    heads = wide._replace(**{name: getattr(wide, name).to(dtype) for name in ("x", "y", "v")})
    root = 0.7
    found = Compiled(heads, root, n_groups, n_clusters, torch.full((len(heads.x),), tolerance), keep=True)
    grad = torch.randn(found.out.shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
    leaves = [t.double().requires_grad_() for t in heads[:3]]
    output = read(Heads(*leaves, *heads[3:]).scaled(root), found.plan())
    expected = torch.autograd.grad(output, leaves, grad.double())
    terms = shape[1] + shape[2]  # sums over queries, over keys, and of squares over both
    for got, want in zip(found.gradients(found.out, grad), expected, strict=True):
        assert (got - want).abs().max() <= terms * torch.finfo(dtype).eps * (1 + want.abs().max())


def test_every_instruction_set(instructions):
    for case in CASES[:3]:
        test_outputs_are_those_of_the_plan(case, 1.0)
        for dtype in DTYPES:
            test_gradients_are_those_of_the_plan(case, dtype)


def test_any_number_of_threads(threads):
    test_outputs_are_those_of_the_plan(CASES[0], 1.0)
    test_gradients_are_those_of_the_plan(CASES[0], torch.float32)


def test_attention_has_the_gradients_of_the_core(monkeypatch):
    kept = []
    monkeypatch.setattr(engine, "Compiled", lambda *a, **k: kept.append(Compiled(*a, **k)) or kept[-1])
    g = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, 2, 90, 16, generator=g).requires_grad_() for _ in range(3)]
    out = hrf.attention(*tensors, hrf.SummarisedAttention(8, 8, tolerance=1.0), scale=0.2)
    weights = torch.randn(out.shape, generator=g)
    found = torch.autograd.grad((out * weights).sum(), tensors)
    x, y, v = (t.detach().flatten(0, 1).double().requires_grad_() for t in tensors)
    real = torch.ones(2, 90, dtype=torch.bool)
    expected = read(Heads(x, y, v, real, real).scaled(math.sqrt(0.2)), kept[0].plan())
    wanted = torch.autograd.grad((expected * weights.flatten(0, 1)).sum(), [x, y, v])
    for got, want in zip(found, wanted, strict=True):
        assert (got.flatten(0, 1) - want).abs().max() <= 1e-4 * (1 + want.abs().max())


def test_an_output_is_freed_with_its_last_name():
    """Its node holds what the backward pass needs, not the output itself."""
    q = torch.randn(1, 2, 90, 16, requires_grad=True)
    out = hrf.attention(q, q, q, hrf.SummarisedAttention(8, 8))
    kept = weakref.ref(out)
    del out
    assert kept() is None


def test_changes_in_place_before_the_backward_pass_are_an_error():
    q, k = torch.randn(1, 2, 90, 16, requires_grad=True), torch.randn(1, 2, 90, 16)
    out = hrf.attention(q, k, k, hrf.SummarisedAttention(8, 8))
    with torch.no_grad():
        k += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()

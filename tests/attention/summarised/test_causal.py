"""Causal summarised attention: its parts cover the triangle, plans by PyTorch's operations, gradients."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Generator

from attention.summarised.causal_cases import Case, evaluate, exact, needs_core, random_case, rows_of, wide
from hrf import _core as core
from hrf._attention.summarised import blocks
from hrf._attention.summarised.blocks import exact_tiles, pairs_of, places
from hrf._attention.summarised.recursion import CompiledCausal, _by_operations, causal_sums

CASES = [
    Case((500,), dim=16, width=12, groups=2, rotary=True),
    Case((333, 200), dim=24, width=5, tolerance=4.0),
    Case((450, 130), dim=3, width=20, left=False, tolerance=0.3, key_heads=2),
    Case((650, 400), dim=33, prefix=170, size=1.2, groups=3),
]


# Where blocks are.


def covered(n: int, prefix: int, unknown: int, base: int) -> torch.Tensor:
    """Count how often each pair of a query and a key is in a diagonal block or in a block that the query reads."""
    times = torch.zeros(n - prefix, n, dtype=torch.long)
    for own, keys, seen in exact_tiles(n, prefix, unknown, base):
        times[own] += torch.zeros_like(times[own]).index_add(1, keys, seen.long())
    for place in places(n, prefix, unknown, base):
        times[place.first - prefix : place.last - prefix, place.first_key : place.end] += 1
    return times


@pytest.mark.parametrize("base", [32, 64])
def test_every_visible_pair_is_in_one_part(base):
    g = Generator().manual_seed(0)
    sizes = [1, 31, 32, 33, 63, 64, 65, 255, 256, 257, *torch.randint(1, 700, (20,), generator=g).tolist()]
    for n in sizes:
        for prefix in {0, n - 1, n // 2, n // 3, min(64, n - 1), min(65, n - 1)}:
            for unknown in {0, prefix}:
                seen = torch.arange(n) <= torch.arange(prefix, n)[:, None]
                assert torch.equal(covered(n, prefix, unknown, base), seen.long())


def test_blocks_are_aligned_and_read_by_what_comes_after():
    for place in places(5000, 0, 0, 64):
        assert place.start % (2 * place.size) == 0
        assert place.first == place.end
        assert place.last == min(place.end + place.size, 5000)
    late = list(places(1000, 400, 400, 64))  # no members, no summaries
    assert late
    assert all(place.start >= 400 for place in late)


# Plans by PyTorch's operations.


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_parts_merge_to_the_plan_by_operations(case):
    rows, choices = case.rows(), case.choices()
    out, masses, plans = _by_operations(rows, choices)
    expected, log2 = evaluate(rows, choices, plans)
    assert (out - expected).abs().max() <= case.rounding()
    assert (masses / math.log(2) - log2).abs().max() <= 2 * case.rounding()


@pytest.mark.parametrize("seed", range(5))
def test_without_tolerance_operations_are_exact_attention(seed):
    case = replace(random_case(300 + seed), tolerance=0.0)
    rows, choices = case.rows(), case.choices()
    out, masses, _ = _by_operations(rows, choices)
    expected, log2 = exact(rows, choices.root)
    assert (out - expected).abs().max() <= case.rounding()
    assert (masses / math.log(2) - log2).abs().max() <= 2 * case.rounding()


def relative(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a - b).norm(dim=(-2, -1)) / b.norm(dim=(-2, -1))


@needs_core
@pytest.mark.parametrize("tolerance", [0.3, 1.0])
@pytest.mark.parametrize("size", [0.3, 1.0])
@pytest.mark.parametrize("rotary", [False, True])
def test_errors_are_those_that_a_tolerance_allows(rotary, size, tolerance):
    """A test member is allowed τ/10 of its output: heads stay below. The core does about as well as the twin."""
    case = Case((900,), groups=2, dim=16, tolerance=tolerance, rotary=rotary, size=size)
    rows, choices = case.rows(), case.choices()
    expected, _ = exact(rows, choices.root)
    out, _, plans = _by_operations(rows, choices)
    found = CompiledCausal(rows, choices)
    own, ours = (relative(u, expected) for u in (out, found.out))
    assert own.max() <= tolerance / blocks.TEST
    assert ours.max() <= tolerance / blocks.TEST
    assert (ours <= 1.5 * own).all()
    assert (own <= 1.5 * ours).all()
    if (
        size == 1.0
    ):  # cells of flat weights are at the edge of their test, where one more or less is many pairs
        pairs = torch.stack([pairs_of(block) for block in plans[0]]).sum(0)
        assert (found.pairs <= 1.5 * pairs).all()
        assert (pairs <= 1.5 * found.pairs).all()


@needs_core
def test_smaller_tolerances_err_less_for_more_pairs():
    case = Case((1200,), groups=2, dim=16)
    rows, choices = case.rows(), case.choices()
    expected, _ = exact(rows, choices.root)
    errors, pairs = [], []
    for tolerance in (0.1, 0.5, 2.0, math.inf):
        found = CompiledCausal(rows, choices._replace(tolerance=tolerance))
        errors.append(float(relative(found.out, expected).max()))
        pairs.append(int(found.pairs.sum()))
    assert errors == sorted(errors)
    assert pairs == sorted(pairs, reverse=True)
    assert pairs[-1] == 0


@needs_core
def test_turned_members_save_exact_pairs():
    """Rotary queries of a topic that turn with their position: cells made of turned members fit the readers."""
    g = Generator().manual_seed(0)
    n, half = 1024, 8
    angles = 0.02 * 1.5 ** -torch.arange(half, dtype=torch.double)
    at = torch.arange(n)[:, None] * angles
    tensors = []
    for _ in range(2):
        u = 2 * torch.randn(4, 2 * half, generator=g, dtype=torch.double)[torch.randint(4, (n,), generator=g)]
        u = u + 0.3 * torch.randn(n, 2 * half, generator=g, dtype=torch.double)
        a, b = u.chunk(2, -1)
        tensors.append(torch.cat([a * at.cos() - b * at.sin(), b * at.cos() + a * at.sin()], -1)[None, None])
    rows = rows_of(*tensors, torch.randn(1, 1, n, 8, generator=g, dtype=torch.double))
    choices = Case((n,), dim=2 * half).choices()
    pairs = [int(CompiledCausal(rows, choices._replace(rotary=r)).pairs) for r in (angles, None)]
    assert pairs[0] < 0.8 * pairs[1]


# Gradients.


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_core), False])
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_gradients_are_those_of_the_plan(case, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(core, "serves", lambda *_: False)
    rows, choices = case.rows(), case.choices()
    leaves = [u.requires_grad_() for u in rows[:3]]
    out = causal_sums(rows, choices).output
    grad = torch.randn(out.shape, generator=Generator().manual_seed(1), dtype=out.dtype)
    found = torch.autograd.grad(out, leaves, grad)
    bare = rows._replace(**dict(zip("xyv", (u.detach() for u in leaves), strict=True)))
    plans = CompiledCausal(bare, choices, keep=True).plans() if compiled else _by_operations(bare, choices)[2]
    again, _ = evaluate(rows, choices, plans)
    assert (out - again).abs().max() <= case.rounding()
    wanted = torch.autograd.grad(again, leaves, grad)
    terms = 2 * max(case.lengths)  # sums over queries and over keys
    for got, want in zip(found, wanted, strict=True):
        assert (got - want).abs().max() <= terms * case.rounding() * (1 + want.abs().max())
        assert (got != 0).any()


def test_padding_has_no_gradient():
    case = CASES[1]
    rows, choices = case.rows(), case.choices()
    leaves = [u.requires_grad_() for u in rows[:3]]
    for u in torch.autograd.grad(causal_sums(rows, choices).output.sum(), leaves):
        assert (u[1, :, :133] == 0).all()


@needs_core
def test_gradients_in_float32_are_near_those_in_float64():
    case = replace(CASES[0], dtype=torch.float32)
    rows, choices = case.rows(), case.choices()
    leaves = [u.requires_grad_() for u in rows[:3]]
    out = causal_sums(rows, choices).output
    found = torch.autograd.grad(out.square().sum(), leaves)
    bare = rows._replace(**dict(zip("xyv", (u.detach() for u in leaves), strict=True)))
    same = [u.detach().double().requires_grad_() for u in leaves]
    large = wide(bare)._replace(**dict(zip("xyv", same, strict=True)))
    again, _ = evaluate(large, choices, CompiledCausal(bare, choices, keep=True).plans())
    for got, want in zip(found, torch.autograd.grad(again.square().sum(), same), strict=True):
        terms = 2 * max(case.lengths)
        assert (got - want).abs().max() <= terms * case.rounding() * (1 + want.abs().max())


def test_gradients_without_tolerance_are_differences():
    """Central differences of exact attention: their error is h² times a third derivative of size 1."""
    case = Case((150,), dim=3, width=2, groups=2, tolerance=0.0, size=0.4)
    rows, choices = case.rows(), case.choices()
    leaves, g, h = [u.requires_grad_() for u in rows[:3]], Generator().manual_seed(2), 1e-5
    out = causal_sums(rows, choices).output
    grad = torch.randn(out.shape, generator=g, dtype=out.dtype)
    found = torch.autograd.grad(out, leaves, grad)
    for i, name in enumerate("xyv"):
        step = torch.randn(leaves[i].shape, generator=g, dtype=out.dtype)
        with torch.no_grad():
            ends = [
                causal_sums(rows._replace(**{name: leaves[i] + sign * h * step}), choices).output
                for sign in (1, -1)
            ]
        change = float(((ends[0] - ends[1]) * grad).sum()) / (2 * h)
        assert float((found[i] * step).sum()) == pytest.approx(change, rel=1e-6, abs=1e-6)


def test_the_mass_is_a_constant_to_the_gradient():
    rows, choices = CASES[0].rows(), CASES[0].choices()
    rows.x.requires_grad_()
    found = causal_sums(rows, choices)
    assert found.output.requires_grad
    assert not found.log_masses.requires_grad

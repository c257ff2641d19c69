"""Causal summarised attention by the core: its plan is a valid one, and the output is what this plan says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from attention.summarised.causal_cases import Case, evaluate, exact, random_case, resumed, wide
from hrf import _core as core
from hrf._attention.summarised.blocks import KeyBlock, pairs_of
from hrf._attention.summarised.recursion import CompiledCausal

CASES = [
    Case((500,), dim=16, width=12, groups=2, rotary=True),
    Case((333, 200), dim=24, width=5, dtype=torch.float32, tolerance=4.0),
    Case((450, 130), dim=3, width=20, left=False, tolerance=0.3, key_heads=2),
    Case((700,), dim=80, width=16, prefix=300, dtype=torch.float32, tolerance=math.inf),
    Case((650, 400), dim=33, prefix=70, size=1.5, groups=3),
]


def check(case: Case, cut: float | None = None) -> CompiledCausal:
    """Hold the core against the plain evaluation of its plan: outputs, log masses, exact pairs."""
    rows, choices = case.rows(), case.choices()
    assert core.serves(*rows[:3])
    if cut is not None:
        first = round(cut * rows.x.shape[2])
        rows = resumed(rows, CompiledCausal(rows, choices).log_masses, first)
    found = CompiledCausal(rows, choices, keep=True)
    plans = found.plans()
    out, masses = evaluate(wide(rows), choices, plans)
    slack = case.rounding()
    assert (found.out - out).abs().max() <= slack
    # A log mass is off by a weight's relative error; values of size 1 or more are in the slack.
    assert (found.log_masses - masses).abs().max() <= 2 * slack
    bare = CompiledCausal(rows, choices)
    assert torch.equal(bare.out, found.out)
    assert torch.equal(bare.log_masses, found.log_masses)
    none = torch.zeros(rows.x.shape[1], dtype=torch.long)
    pairs = torch.stack([sum((pairs_of(block) for block in blocks), none) for blocks in plans])
    assert torch.equal(pairs, found.pairs)
    for blocks in plans:
        for block in blocks:
            check_parts(block)
    return found


def check_parts(block: KeyBlock) -> None:
    """Every reader is in one tile and every key in one cluster."""
    place = block.place
    parts = (
        (block.plan.groups, place.last - place.first),
        (block.plan.clusters, place.end - place.first_key),
    )
    for (tokens, filled), count in parts:
        for own, real in zip(tokens, filled, strict=True):
            assert sorted(own[real].tolist()) == list(range(count))


@pytest.mark.parametrize("part", range(10))
def test_outputs_are_those_of_the_plan(part):
    for seed in range(15 * part, 15 * part + 15):
        check(random_case(seed))


@pytest.mark.parametrize("part", range(4))
def test_outputs_with_earlier_queries_are_those_of_the_plan(part):
    for seed in range(1000 + 10 * part, 1010 + 10 * part):
        case = replace(random_case(seed), prefix=0, left=True)
        check(case, cut=(seed % 10) / 10)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_chosen_cases_are_those_of_the_plan(case):
    found = check(case)
    # The cases are not all exact, nor all summaries.
    shares = [block.plan.exact.numel() for blocks in found.plans() for block in blocks]
    assert shares
    if 0 < case.tolerance < math.inf:
        assert sum(shares) > 0
        n, prefix, heads = max(case.lengths), case.prefix, found.pairs.shape[1]
        assert int(found.pairs.sum()) < heads * len(case.lengths) * (n * (n + 1) - prefix * (prefix + 1)) // 4


def test_a_block_of_the_default_size():
    check(Case((2500,), dim=16, width=8, rotary=True, dtype=torch.float32, base=1024))


@pytest.mark.parametrize("base", [64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_tolerance_it_is_exact_attention(dtype, base):
    for seed in range(8):
        case = replace(random_case(2000 + seed), tolerance=0.0, dtype=dtype, base=base)
        rows, choices = case.rows(), case.choices()
        found = CompiledCausal(rows, choices)
        out, masses = exact(rows, choices.root)
        assert (found.out - out).abs().max() <= case.rounding()
        assert (found.log_masses - masses).abs().max() <= 2 * case.rounding()


def test_resumed_queries_are_those_of_the_whole():
    """Earlier queries and their masses stand in for the tokens before; cuts at edges of blocks and beside them."""
    case = replace(CASES[0], lengths=(520, 390))
    rows, choices = case.rows(), case.choices()
    whole = CompiledCausal(rows, choices)
    for cut in (1, 63, 64, 65, 127, 255, 256, 257, 384, 519):
        found = CompiledCausal(resumed(rows, whole.log_masses, cut), choices)
        assert (found.out - whole.out[:, :, cut:]).abs().max() <= case.rounding()


def test_every_instruction_set(instructions):
    for case in CASES[:3]:
        check(case)
    check(CASES[0], cut=0.4)


def test_any_number_of_threads(threads):
    for case in CASES[1:3]:
        rows, choices = case.rows(), case.choices()
        found = check(case)
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        alone = CompiledCausal(rows, choices)
        torch.set_num_threads(before)
        assert torch.equal(alone.out, found.out)

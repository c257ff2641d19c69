"""Causal summarised attention on any call: earlier outputs never change, exact without tolerance, in the box."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from attention.summarised.causal_cases import Case, exact, needs_core
from hrf import _core as core
from hrf._attention.summarised.recursion import CausalRows, causal_sums
from properties.strategies import cases, seeds

lengths = st.one_of(st.integers(1, 80), st.integers(80, 600))


def drawn(tolerances: tuple[float, ...], dtypes=(torch.float64, torch.float32)) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        lengths=st.lists(lengths, min_size=1, max_size=2).map(tuple),
        dim=st.sampled_from([3, 8, 16, 33]),
        width=st.sampled_from([1, 8, 20]),
        key_heads=st.sampled_from([1, 2]),
        groups=st.sampled_from([1, 2]),
        left=st.booleans(),
        tolerance=st.sampled_from(tolerances),
        rotary=st.booleans(),
        size=st.sampled_from([0.0, 0.3, 1.0, 4.0]),
        dtype=st.sampled_from(dtypes),
        seed=seeds,
    )


def changed(rows: CausalRows, cut: int, size: float, value: float, seed: int) -> CausalRows:
    """Replace all tokens from position ``cut`` of each item on."""
    g = Generator().manual_seed(seed)
    new = []
    for u, first, factor in zip(
        rows[:3], (rows.first_query, rows.first_key, rows.first_key), (size, size, value), strict=True
    ):
        own = torch.arange(u.shape[2]) >= first[:, None] + cut
        other = factor * torch.randn(u.shape, generator=g, dtype=torch.double).to(u.dtype)
        new.append(other.where(own[:, None, :, None], u))
    return rows._replace(x=new[0], y=new[1], v=new[2])


def before(rows: CausalRows, out: Tensor, cut: int) -> list[Tensor]:
    """Return the outputs of each item before position ``cut``."""
    return [u[:, first : first + cut] for u, first in zip(out, rows.first_query.tolist(), strict=True)]


edges = st.builds(lambda block, beside: max(64 * block + beside, 0), st.integers(0, 8), st.integers(-1, 1))
cuts = st.one_of(st.integers(0, 600), edges)
sizes = st.sampled_from([(0.0, 0.0), (1.0, 1.0), (1e3, 1e3), (1e6, 1e30)])


@given(drawn((0.3, 1.0, 4.0, math.inf)), cuts, sizes, seeds)
@cases(6)
def test_later_tokens_change_no_bit_of_earlier_outputs(case, cut, size, seed):
    rows, choices = case.rows(), case.choices()
    found = causal_sums(rows, choices)
    other = causal_sums(changed(rows, cut, *size, seed), choices)
    for received, expected in (
        (other.output, found.output),
        (other.log_masses[..., None], found.log_masses[..., None]),
    ):
        for a, b in zip(before(rows, received, cut), before(rows, expected, cut), strict=True):
            assert torch.equal(a, b)


@needs_core  # operations on other shapes round apart
@given(drawn((1.0,)), cuts)
@cases(3)
def test_a_sequence_continues_without_a_change(case, cut):
    """The outputs of the first tokens are those of the sequence that ends there."""
    case = replace(case, left=False)
    rows, choices = case.rows(), case.choices()
    cut = min(cut, max(case.lengths))
    counts = rows.keys.clamp(max=cut)
    short = [u[:, :, :cut] for u in rows[:3]]
    found = causal_sums(rows, choices).output
    first = causal_sums(CausalRows(*short, rows.first_query, counts, rows.first_key, counts), choices).output
    for b, count in enumerate(counts.tolist()):
        assert torch.equal(first[b, :, :count], found[b, :, :count])


@pytest.mark.slow
@pytest.mark.parametrize("rotary", [False, True])
def test_later_tokens_change_no_earlier_output_by_operations(monkeypatch, rotary):
    """The twin's products have other shapes then, and another rounding."""
    monkeypatch.setattr(core, "serves", lambda *_: False)
    case = Case((330, 200), groups=2, rotary=rotary)
    rows, choices = case.rows(), case.choices()
    found = causal_sums(rows, choices).output
    for cut in (0, 1, 63, 64, 65, 127, 129, 192, 200, 256, 300):
        other = causal_sums(changed(rows, cut, 1e3, 1e3, cut), choices).output
        for a, b in zip(before(rows, other, cut), before(rows, found, cut), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=case.rounding())


@given(drawn((0.0,)))
@cases(4)
def test_without_tolerance_it_is_exact_attention(case):
    rows, choices = case.rows(), case.choices()
    assert (causal_sums(rows, choices).output - exact(rows, choices.root)[0]).abs().max() <= case.rounding()


@given(drawn((0.1, 1.0, 10.0, math.inf)))
@cases(6)
def test_outputs_are_finite_and_in_the_box_of_visible_values(case):
    rows, choices = case.rows(), case.choices()
    found = causal_sums(rows, choices).output
    assert found.isfinite().all()
    for b, (first, n) in enumerate(zip(rows.first_query.tolist(), rows.keys.tolist(), strict=True)):
        values = rows.v[b, :, int(rows.first_key[b]) :][:, :n].repeat_interleave(case.groups, 0)
        own = found[b, :, first : first + n]
        slack = case.rounding()
        assert (own >= values.cummin(1).values - slack).all()
        assert (own <= values.cummax(1).values + slack).all()

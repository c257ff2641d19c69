"""Decoding from a state: pieces of any size are the whole, forwards, backwards, in copies and from tensors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hrf
from attention.summarised.causal_cases import Case, exact, needs_core
from hrf import _core as core
from hrf._attention.summarised import cache
from hrf._attention.summarised.cache import FEW, SummarisedState, pieces
from hrf._attention.summarised.recursion import CompiledCausal

pytestmark = (
    needs_core  # without it a few new queries are exact, and their errors differ from those of the whole
)

# In float64 pieces and the whole differ by rounding, about 1e-15. A decision by a threshold could flip: with some
# 10⁵ decisions per case, each within 1e-13 of its limit with a chance of about that, no case of the suite does.
ROUNDING = 1e-10
CASE = Case((700, 663), dim=16, width=12, key_heads=2, groups=2, rotary=True)


def whole(case: Case):
    return CompiledCausal(case.rows(), case.choices()).out


def attended(state, case: Case, start: int, sizes) -> torch.Tensor:
    """Outputs of tokens from ``start`` on, in pieces of these sizes."""
    q, k, v = case.tensors()
    padding = max(case.lengths) - torch.tensor(case.lengths)
    ignore = torch.arange(q.shape[2]) < padding[:, None]
    found = []
    for size in sizes:
        own = slice(start, start + size)
        hides = bool(ignore[:, own].any())
        found.append(
            state.attend(q[:, :, own], k[:, :, own], v[:, :, own], ignore[:, own] if hides else None)
        )
        start += size
    return torch.cat(found, 2)


def split(n: int, *sizes: int) -> list[int]:
    """Repeat sizes until they make n."""
    found, left = [], n
    while left:
        for size in sizes:
            found.append(min(size, left))
            left -= found[-1]
            if not left:
                break
    return found


@pytest.mark.parametrize(
    "sizes", [(700,), (1,), (FEW,), (FEW + 1,), (300, 1, 1, 200, 5, 64, 1, 16, 17), (64,), (63, 2), (3, 100)]
)
def test_pieces_are_the_whole(sizes):
    state = SummarisedState(CASE.choices())
    found = attended(state, CASE, 0, split(700, *sizes))
    assert (found - whole(CASE)).abs().max() <= ROUNDING
    assert state.length == 700


splits = st.lists(st.one_of(st.integers(1, 4), st.integers(1, 150)), min_size=1, max_size=6)


@given(
    splits,
    st.integers(1, 450),
    st.integers(0, 450),
    st.sampled_from([0.0, 0.3, 1.0, math.inf]),
    st.sampled_from([3, 16, 20]),
    st.booleans(),
    st.integers(0, 2**31),
)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_any_pieces_of_any_padding_are_the_whole(sizes, length, padding, tolerance, dim, rotary, seed):
    case = Case(
        (length, max(length - padding, 1)),
        dim=dim,
        width=5,
        key_heads=1,
        groups=2,
        tolerance=tolerance,
        rotary=rotary,
        seed=seed,
    )
    found = attended(SummarisedState(case.choices()), case, 0, split(length, *sizes))
    assert (found - whole(case)).abs().max() <= ROUNDING


@pytest.mark.parametrize("base", [1024])
def test_steps_after_a_long_prompt_are_the_whole(base):
    case = Case((2150,), dim=16, rotary=True, base=base, dtype=torch.float32)
    found = attended(SummarisedState(case.choices()), case, 0, [2047, *[1] * 4, 3, 30, *[1] * 5, 61])
    assert (found - whole(case)).abs().max() <= 10 * case.rounding()


def test_steps_are_near_exact_attention():
    found = attended(SummarisedState(CASE.choices()), CASE, 0, split(700, 400, *[1] * 60))
    expected, _ = exact(CASE.rows(), CASE.choices().root)
    error = (found - expected).norm(dim=(-2, -1)) / expected.norm(dim=(-2, -1))
    assert error.max() <= 0.1
    assert error.min() > 0


def test_steps_are_the_same_with_every_instruction_set_and_threads():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = attended(SummarisedState(CASE.choices()), CASE, 0, split(700, 500, *[1] * 20))
    finally:
        torch.set_num_threads(before)
    assert (found - whole(CASE)).abs().max() <= ROUNDING


def test_without_the_core_many_tokens_go_by_operations_and_few_are_exact(monkeypatch):
    monkeypatch.setattr(core, "serves", lambda *_: False)
    case = Case((300,), dim=16)
    state = SummarisedState(case.choices())
    found = attended(state, case, 0, [200, 60, 1, 1, 7, 31])
    expected, _ = exact(case.rows(), case.choices().root)
    assert (found[:, :, 260:269] - expected[:, :, 260:269]).abs().max() <= ROUNDING
    error = (found - expected).norm() / expected.norm()
    assert 0 < error <= 0.1


def test_a_query_reads_a_block_per_binary_digit():
    for position in (0, 63, 64, 200, 1000, 4095, 4096):
        found = pieces(position, 64)
        assert len(found) == (position // 64).bit_count()
        ends = [0, *(end for _, end in found)]
        assert [start for start, _ in found] == ends[:-1]
        assert ends[-1] == position // 64 * 64


# Back and forth.


@pytest.mark.parametrize("length", [650, 640, 513, 512, 511, 100, 20, 0])
def test_a_cropped_state_continues(length):
    state = SummarisedState(CASE.choices())
    attended(state, CASE, 0, [400, *[1] * 50])
    other = replace(CASE, seed=1)
    attended(
        state, other, 450, [*[1] * 70, 180]
    )  # which are forgotten, with their blocks, queries and masses
    length = min(length, 450)
    state.crop(length)
    assert state.length == length
    sizes = split(700 - length, 1, 1, 1, 5, 90)
    found = attended(state, CASE, length, sizes)
    assert (found - whole(CASE)[:, :, length:]).abs().max() <= ROUNDING


def test_copies_go_their_own_ways():
    state, other = SummarisedState(CASE.choices()), replace(CASE, seed=1)
    attended(state, CASE, 0, [500, 1])
    copied = state.copy()
    assert copied._kept[0][0, 256] is state._kept[0][0, 256]
    attended(copied, other, 501, [1] * 60)
    found = attended(state, CASE, 501, split(199, 1, 60))
    assert (found - whole(CASE)[:, :, 501:]).abs().max() <= ROUNDING


@pytest.mark.parametrize("index", [[0, 1], [1, 0], [1, 1], [1], [0, 1, 1, 0]])
def test_reordered_items_continue(index):
    state = SummarisedState(CASE.choices())
    attended(state, CASE, 0, [500, 1, 1])
    state.reorder(torch.tensor(index))
    q, k, v = (u[index] for u in CASE.tensors())
    found = [state.attend(*(u[:, :, i : i + 1] for u in (q, k, v))) for i in range(502, 600)]
    assert (torch.cat(found, 2) - whole(CASE)[index, :, 502:600]).abs().max() <= ROUNDING


@pytest.mark.parametrize("length", [1, 37, 64, 501])
def test_a_state_from_tensors_continues(length):
    state = SummarisedState(CASE.choices())
    attended(state, CASE, 0, [length])
    held = {name: u.clone() for name, u in state.tensors().items()}
    restored = SummarisedState(CASE.choices()).load(held)
    assert restored.length == length
    sizes = split(700 - length, 1, 2, 50)
    for own in (restored, state):
        found = attended(own, CASE, length, sizes)
        assert (found - whole(CASE)[:, :, length:]).abs().max() <= ROUNDING


def test_a_loaded_state_shares_no_memory():
    case = Case((128,), dim=16)
    state = SummarisedState(case.choices())
    attended(state, case, 0, [128])
    loaded = SummarisedState(case.choices()).load(state.tensors())
    loaded.crop(100)
    attended(loaded, replace(case, seed=1), 100, [28])
    state.crop(127)
    last = attended(state, case, 127, [1])
    assert (last - whole(case)[:, :, 127:]).abs().max() <= ROUNDING


def test_an_empty_state_has_no_tensors():
    state = SummarisedState(CASE.choices())
    assert state.tensors() == {}
    assert SummarisedState(CASE.choices()).load({}).length == 0
    assert sum(state.nbytes().values()) == 0
    state.reorder(torch.tensor([0]))
    state.crop(0)
    assert (attended(state, CASE, 0, [100]) - whole(CASE)[:, :, :100]).abs().max() <= ROUNDING


def test_memory_is_counted():
    state = SummarisedState(CASE.choices())
    attended(state, CASE, 0, [640])
    sizes = state.nbytes()
    assert sizes["keys and values"] == 2 * 2 * 640 * (16 + 16) * 8
    assert sizes["queries"] == 2 * 4 * 160 * (16 + 1) * 8
    assert sizes["blocks"] == 0  # until a step needs them
    attended(state, CASE, 640, [1])
    blocks = state.nbytes()["blocks"]
    # Cells times clusters, each a key and a value, is a row per token of a block; beside it matrices and lists.
    assert blocks > 2 * 4 * 512 * (16 + 16) * 8 * 0.5
    copied = state.copy()
    assert copied.nbytes() == state.nbytes()
    state.reorder(torch.tensor([0, 0]))
    assert state.nbytes()["blocks"] < blocks  # shared


def test_blocks_that_are_read_no_more_are_dropped():
    state = SummarisedState(Case((300,), dim=16).choices())
    case = Case((300,), dim=16)
    attended(state, case, 0, [190, 1])
    assert list(state._kept[0]) == [(0, 128)]
    attended(state, case, 191, [1, 1])
    assert list(state._kept[0]) == [(0, 128), (128, 192)]
    attended(state, case, 193, [63, 1])
    assert list(state._kept[0]) == [(0, 256)]


def test_a_method_without_tolerance_is_exact():
    case = replace(CASE, tolerance=0.0)
    state = SummarisedState.of(hrf.SummarisedAttention(tolerance=0), 16, 16**-0.5)
    found = attended(state, case, 0, [500, *[1] * 100, 100])
    expected, _ = exact(case.rows(), case.choices().root)
    assert (found - expected).abs().max() <= ROUNDING
    assert state.nbytes()["blocks"] == 0


# Refusals.


def test_padding_anywhere_is_as_if_it_were_not_there():
    q, k, v = CASE.tensors()
    length = q.shape[2]
    generator = torch.Generator().manual_seed(0)
    real = torch.rand(2, length, generator=generator) > 0.1
    real[0, :37] = False
    real[1, 300:] = False
    state, found, start = SummarisedState(CASE.choices()), [], 0
    for step in (300, 1, 1, 100, 5, 1, 16, *[1] * 60, length):
        own = slice(start, min(start + step, length))
        found.append(state.attend(*(u[:, :, own] for u in (q, k, v)), ~real[:, own]))
        start = own.stop
    output = torch.cat(found, 2)
    assert (output.movedim(1, 2)[~real] == 0).all()
    for b in range(2):
        alone = SummarisedState(CASE.choices()).attend(*(u[b : b + 1, :, real[b]] for u in (q, k, v)))
        assert (output[b : b + 1, :, real[b]] - alone).abs().max() <= ROUNDING
    again = SummarisedState(CASE.choices()).load(state.tensors())
    again.crop(length - 20)
    last = slice(length - 20, length)
    repeated = again.attend(*(u[:, :, last] for u in (q, k, v)), ~real[:, last])
    assert (repeated - output[:, :, last]).abs().max() <= ROUNDING


def test_an_aim_is_refused():
    method = hrf.SummarisedAttention(tolerance="auto", target_error=0.1)
    with pytest.raises(ValueError, match="tolerance depends on the call; expected a number"):
        SummarisedState.of(method, 16, 0.25)


def test_the_default_base_is_that_of_calls():
    assert SummarisedState.of(hrf.SummarisedAttention(), 16, 0.25).choices.base == cache.BASE

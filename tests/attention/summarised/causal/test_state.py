"""Decoding with summaries: pieces equal the whole, and states can be kept, moved and reordered."""

from __future__ import annotations

import itertools

import pytest
import torch

import hrf

ROUNDING = 1e-9
METHOD = hrf.SummarisedAttention(tolerance=1.0)


def tokens(length, dtype=torch.float64, groups=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    shapes = ((2, 2 * groups, length, 6), (2, 2, length, 6), (2, 2, length, 4))
    return [torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes]


def pieces(inputs, cuts, state, masks=None):
    """Attend piece by piece, from a state that is saved and loaded in between."""
    outputs = []
    for a, b in itertools.pairwise(cuts):
        mask = None if masks is None else masks[:, a:b]
        outputs.append(state.prefill(*(u[:, :, a:b] for u in inputs), key_padding_mask=mask))
        state = hrf.SummarisedState(state.method, scale=state.scale).load(state.tensors())
    return torch.cat(outputs, 2)


@pytest.mark.parametrize(
    "cuts", [[0, 700], [0, 300, 700], [0, 1, 128, 129, 256, 256, 640, 700], [0, 0, 511, 513, 700]]
)
@pytest.mark.parametrize("groups", [1, 2])
def test_pieces_equal_the_whole(cuts, groups):
    inputs = tokens(700, groups=groups)
    whole = hrf.attention(*inputs, METHOD, is_causal=True)
    found = pieces(inputs, cuts, hrf.SummarisedState(METHOD))
    assert (found - whole).abs().max() <= ROUNDING


def test_token_by_token_with_padding():
    inputs, masks = tokens(300), torch.rand(2, 300, generator=torch.Generator().manual_seed(1)) < 0.2
    whole = hrf.attention(*inputs, METHOD, is_causal=True, key_padding_mask=masks)
    found = pieces(inputs, [0, 100, *range(101, 301)], hrf.SummarisedState(METHOD), masks)
    assert (found - whole).abs().max() <= ROUNDING


def test_a_step_has_no_axis_of_length():
    inputs = tokens(200)
    state = hrf.SummarisedState(METHOD, scale=0.3)
    state.prefill(*(u[:, :, :199] for u in inputs))
    last = state.step(*(u[:, :, 199] for u in inputs))
    whole = hrf.attention(*inputs, METHOD, is_causal=True, scale=0.3)
    assert (last - whole[:, :, 199]).abs().max() <= ROUNDING


def test_gradients_flow_through_the_state():
    inputs = [u.requires_grad_() for u in tokens(300)]
    whole = hrf.attention(*inputs, METHOD, is_causal=True)
    found = pieces(inputs, [0, 200, 290, 300], hrf.SummarisedState(METHOD))
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), inputs),
        torch.autograd.grad(whole.square().sum(), inputs),
        strict=True,
    ):
        assert (one - other).abs().max() <= ROUNDING
    state = hrf.SummarisedState(METHOD)
    state.prefill(*(u[:, :, :200] for u in inputs))
    out = state.detach().prefill(*(u[:, :, 200:] for u in inputs))
    for grad in torch.autograd.grad(out.square().sum(), inputs):
        assert (grad[:, :, :200] == 0).all()


def test_beams_are_reordered():
    inputs = tokens(300)
    state = hrf.SummarisedState(METHOD)
    state.prefill(*(u[:, :, :299] for u in inputs))
    last = [u[:, :, 299] for u in inputs]
    swapped = state.reorder(torch.tensor([1, 1])).step(*(u[[1, 1]] for u in last))
    plain = state.step(*last)
    assert (swapped - plain[[1, 1]]).abs().max() <= ROUNDING


def test_a_state_moves_to_another_dtype():
    inputs = tokens(300)
    state = hrf.SummarisedState(METHOD)
    state.prefill(*(u[:, :, :299] for u in inputs))
    last = [u[:, :, 299] for u in inputs]
    single = state.to(torch.float32).step(*(u.float() for u in last))
    assert single.dtype == torch.float32
    # Rounding to float32 of 300 keys with logits of a few units.
    assert (single - state.step(*last)).abs().max() <= 1000 * torch.finfo(torch.float32).eps


def test_refusals():
    state = hrf.SummarisedState(METHOD)
    assert state.tensors() == {}
    inputs = tokens(10)
    state.prefill(*inputs)
    with pytest.raises(ValueError, match="the state has"):
        state.prefill(*(u[:1] for u in inputs))
    with pytest.raises(ValueError, match="expected"):
        state.load({"x": inputs[0]})
    with pytest.raises(ValueError, match="n_groups=None"):
        hrf.SummarisedState(hrf.SummarisedAttention(n_groups=8))
    assert state.load({}).tensors() == {}

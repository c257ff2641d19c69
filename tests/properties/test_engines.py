"""Any call of any engine is the quadratic twin: outputs, gradients, counts, and decoding in pieces."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

import hrf
from hrf._attention import reference
from properties.rounding import Rounding, rounding
from properties.strategies import HALF, Call, calls, cases, gradients, in_float64

# Beyond these norms products of features leave the range of float32, and rows are lost to underflow by design.
moderate = st.sampled_from([0.0, 1e-3, 0.3, 1.0, 2.0, 3.0])
BOTH = torch.float64, torch.float32


def widest(v: Tensor) -> float:
    return float(v.detach().abs().amax()) if v.numel() else 0.0


def allowed(call: Call, bound: Rounding, v: Tensor) -> Tensor:
    """Return the largest difference of outputs, per row; half precision rounds once more at the end."""
    last = torch.finfo(call.dtype).eps if call.dtype in HALF else 0.0
    return (bound.relative + last) * 2 * widest(v) + torch.finfo(call.dtype).tiny


def twin(
    call: Call, phi: hrf.FeatureMap, tensors: list[Tensor], rule: str | hrf.Denominator = "clamp"
) -> Tensor:
    return reference.attention(
        *(t.double() for t in tensors), in_float64(phi), denominator=rule, **call.options()
    )


@given(calls(norms=moderate))
@cases(12)
def test_outputs_are_those_of_the_twin(call):
    phi, tensors, counts = call.feature_map(), call.tensors(), [hrf.Denominator(), hrf.Denominator()]
    with call.surroundings():
        received = hrf.attention(*tensors, phi, denominator=counts[0], **call.options())
    expected = twin(call, phi, tensors, counts[1])
    bound = rounding(call, phi, *tensors[:2])
    assert received.dtype == call.dtype
    assert received.shape == expected.shape == (*call.batch, call.heads, call.length, call.width)
    assert received.isfinite().all()
    wrong = ((received.double() - expected).abs() > allowed(call, bound, tensors[2])) & bound.settled
    assert not wrong.any()
    assert counts[0].rows == counts[1].rows
    unsettled = int((~bound.settled).sum())
    assert abs(counts[0].clamped - counts[1].clamped) <= unsettled


@given(calls(norms=moderate, dtypes=BOTH))
@cases(8)
def test_gradients_are_those_of_the_twin(call):
    phi, tensors = call.feature_map(), call.tensors()
    bound = rounding(call, phi, *tensors[:2])
    weights = smooth(call, phi, tensors, bound)
    with call.surroundings():
        received = hrf.attention(*tensors, phi, **call.options())
        mine = gradients(received, tensors, weights)
    expected = gradients(twin(call, phi, tensors), tensors, weights)
    assert_gradients(call, bound, tensors, weights, mine, expected)


def smooth(call: Call, phi: hrf.FeatureMap, tensors: list[Tensor], bound: Rounding) -> Tensor:
    """Weigh outputs; those that rounding may move over an edge of the box, where gradients end, get weight 0."""
    shape = (*call.batch, call.heads, call.length, call.width)
    weights = torch.rand(shape, generator=Generator().manual_seed(call.seed), dtype=torch.float64) - 0.5
    weights = weights * bound.settled
    if phi.nonnegative or not call.keys:
        return weights
    raw, margin = twin(call, phi, tensors, "none").detach(), allowed(call, bound, tensors[2])
    each = tensors[2].detach().double().repeat_interleave(call.groups, -3).unsqueeze(-3)
    hidden = ~call.visible().unsqueeze(-1)
    edges = each.masked_fill(hidden, torch.inf).amin(-2), each.masked_fill(hidden, -torch.inf).amax(-2)
    slack = margin + 64 * torch.finfo(call.dtype).eps * widest(tensors[2])
    return weights * torch.stack([(raw - edge).abs() > slack for edge in edges]).all(0)


def assert_gradients(call, bound, tensors, weights, mine, expected) -> None:
    """A gradient divides by D twice and multiplies by exponents: one more condition, one more factor."""
    eps = torch.finfo(call.dtype).eps
    exponents = (8 + 2 * call.norm) ** 2
    rows = (weights.abs() * (bound.relative + eps) * (1 + bound.relative / eps)).sum()
    limit = float(exponents * rows * (1 + widest(tensors[2])))
    for one, other in zip(mine, expected, strict=True):
        assert one.isfinite().all()
        assert float((one - other).abs().amax() if one.numel() else 0) <= limit


@given(
    calls(norms=moderate, causal=st.just(True), packed=False, dtypes=BOTH),
    st.lists(st.integers(0, 150), max_size=4),
)
@cases(5)
def test_decoding_in_pieces_is_the_whole(call, cuts):
    phi, tensors, counts = call.feature_map(), call.tensors(), [hrf.Denominator(), hrf.Denominator()]
    options = call.options()
    ignored = options["key_padding_mask"]
    bound = rounding(call, phi, *tensors[:2])
    weights = smooth(call, phi, tensors, bound)
    bounds = [0, *sorted(min(cut, call.length) for cut in cuts), call.length]
    with call.surroundings():
        state, pieces = hrf.AttentionState(phi, scale=1.0, denominator=counts[0]), []
        for start, stop in itertools.pairwise(bounds):
            padding = None if ignored is None else ignored[..., start:stop]
            pieces.append(state.prefill(*(t[..., start:stop, :] for t in tensors), key_padding_mask=padding))
            state = hrf.AttentionState(phi, scale=1.0, denominator=counts[0]).load(state.tensors())
        received = torch.cat(pieces, -2)
        mine = gradients(received, tensors, weights)
    expected = twin(call, phi, tensors, counts[1])
    wrong = ((received.double() - expected).abs() > allowed(call, bound, tensors[2])) & bound.settled
    assert not wrong.any()
    assert counts[0].rows == counts[1].rows
    theirs = gradients(expected, tensors, weights)
    assert_gradients(call, bound, tensors, weights, mine, theirs)

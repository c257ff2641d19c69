"""Decoding by the core: every step gives what causal attention of the whole sequence gives."""

from __future__ import annotations

import math

import pytest
import torch

import hrf
from hrf import tuning
from hrf._attention.carry import CompiledSteps

DIM, WIDTH, LENGTH, HEADS = 6, 5, 9, 4
DTYPES = [torch.float32, torch.float64]


def exponential(heads, *, matrix=True, shift=True):
    generator = torch.Generator().manual_seed(3)
    shape = () if heads is None else (heads,)
    a = torch.eye(DIM) + 0.2 * torch.randn(*shape, DIM, DIM, generator=generator)
    shifts = 0.3 * torch.randn(2, *shape, DIM, generator=generator)
    return hrf.Exponential(
        DIM,
        n_projections=7,
        matrix=a if matrix else None,
        query_shift=shifts[0] if shift else None,
        key_shift=shifts[1] if shift else None,
        heads=heads,
        seed=0,
    )


MAPS = {
    "positive": lambda heads: hrf.Positive(DIM, n_projections=7, heads=heads, seed=0),
    "matrix": lambda heads: exponential(heads, shift=False),
    "shifts": lambda heads: exponential(heads, matrix=False),
    "matrix and shifts": exponential,
}


@pytest.fixture
def taken(monkeypatch):
    """Count the steps of the core."""
    found, step = [], CompiledSteps.step

    def counted(self, *args):
        out = step(self, *args)
        found.append(out is not None)
        return out

    monkeypatch.setattr(CompiledSteps, "step", counted)
    return found


def tokens(*batch, key_heads=HEADS, dtype=torch.float64, size=1.0):
    generator = torch.Generator().manual_seed(1)
    shapes = (HEADS, LENGTH, DIM), (key_heads, LENGTH, DIM), (key_heads, LENGTH, WIDTH)
    q, k, v = (torch.randn(*batch, *s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes)
    return [size * q, size * k, v]


def at(qkv, i):
    return [t[..., i : i + 1, :] for t in qkv]


def decode(state, qkv, start=0, ignore=None):
    pieces = []
    for i in range(start, qkv[0].shape[-2]):
        mask = None if ignore is None else ignore[..., i : i + 1]
        pieces.append(state.prefill(*at(qkv, i), key_padding_mask=mask))
    return torch.cat(pieces, -2)


def assert_near(received, expected, value):
    """Outputs are averages of values: eight bits of the type are for roundings of logarithms and sums."""
    assert received.dtype == expected.dtype
    assert (received - expected).abs().max() <= 2**8 * torch.finfo(received.dtype).eps * value.abs().max()


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("heads", [None, HEADS])
@pytest.mark.parametrize("key_heads", [2, HEADS])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padded", [False, True])
def test_steps_are_causal_attention(name, heads, key_heads, dtype, padded, taken):
    phi, qkv = MAPS[name](heads).to(dtype), tokens(3, key_heads=key_heads, dtype=dtype)
    ignore = None
    if padded:
        ignore = torch.zeros(3, LENGTH, dtype=torch.bool)
        ignore[0, :4] = ignore[1, 5:7] = ignore[1, 0] = True
    counts = hrf.Denominator(), hrf.Denominator()
    options = {"key_padding_mask": ignore, "scale": 0.7, "denominator": counts[0]}
    expected = hrf.attention(*qkv, phi, is_causal=True, **options)
    received = decode(hrf.AttentionState(phi, scale=0.7, denominator=counts[1]), qkv, ignore=ignore)
    assert_near(received, expected, qkv[2])
    assert taken == [True] * (LENGTH - 1)
    assert (counts[0].rows, counts[0].clamped) == (counts[1].rows, counts[1].clamped)


@pytest.mark.parametrize("batch", [(1,), (2, 3)])
def test_any_batch_and_any_number_of_threads(batch, threads, monkeypatch, taken):
    monkeypatch.setattr(tuning, "STEP_FLOATS", 1)
    phi, qkv = MAPS["positive"](HEADS).double(), tokens(*batch)
    assert_near(decode(hrf.AttentionState(phi), qkv), hrf.attention(*qkv, phi, is_causal=True), qkv[2])
    assert all(taken)


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_keys_and_denominators_lost_to_underflow(dtype, taken):
    """Later keys, which are shorter, raise the scale of the state; every other query is on the other side of 0."""
    phi = MAPS["positive"](None).to(dtype)
    qkv = tokens(2, dtype=dtype)
    most = -math.log(torch.finfo(dtype).tiny)
    qkv[1] = qkv[1].abs() * torch.linspace(most, most / 2, LENGTH, dtype=dtype).unsqueeze(-1)
    qkv[0] = torch.where(torch.arange(LENGTH).unsqueeze(-1) % 2 == 0, 1, -1) * qkv[1]
    counts = hrf.Denominator(), hrf.Denominator()
    expected = hrf.attention(*qkv, phi, is_causal=True, denominator=counts[0])
    received = decode(hrf.AttentionState(phi, denominator=counts[1]), qkv)
    # A rounding of an exponent counts as often as the exponent is large.
    norms = (qkv[0].square().sum(-1) * DIM**-0.5).amax()
    assert (received - expected).abs().max() <= 2**8 * torch.finfo(dtype).eps * norms * qkv[2].abs().max()
    assert 0 < counts[0].clamped == counts[1].clamped
    assert all(taken)


def test_a_state_is_written_to_by_its_own_steps_only(taken):
    phi, qkv = MAPS["positive"](HEADS).double(), tokens(2)
    expected = hrf.attention(*qkv, phi, is_causal=True)
    state = hrf.AttentionState(phi)
    decode(state, [t[..., :5, :] for t in qkv])
    saved, other = state.tensors(), state.detach()
    beams, order = state.reorder(torch.tensor([1, 0, 1])), torch.tensor([1, 0, 1])
    for resumed in (state, other, hrf.AttentionState(phi).load(saved), hrf.AttentionState(phi).load(saved)):
        assert_near(decode(resumed, qkv, start=5), expected[..., 5:, :], qkv[2])
    assert_near(decode(beams, [t[order] for t in qkv], start=5), expected[order][..., 5:, :], qkv[2])
    assert_near(state.tensors()["total"][..., 0, :-1], qkv[2].sum(-2), LENGTH * qkv[2])


def test_pieces_and_steps_take_turns(taken):
    phi, qkv = MAPS["shifts"](HEADS).double(), tokens(2)
    state, pieces = hrf.AttentionState(phi), []
    for start, stop in ((0, 2), (2, 3), (3, 4), (4, 6), (6, 7), (7, 8), (8, 9)):
        pieces.append(state.prefill(*(t[..., start:stop, :] for t in qkv)))
    assert_near(torch.cat(pieces, -2), hrf.attention(*qkv, phi, is_causal=True), qkv[2])
    assert taken == [True] * 3


@pytest.mark.parametrize("which", ["query", "key"])
def test_tokens_that_are_not_finite_are_refused_and_change_nothing(which, taken):
    phi, qkv = MAPS["matrix and shifts"](HEADS).double(), tokens(2)
    state = hrf.AttentionState(phi)
    first = decode(state, [t[..., :4, :] for t in qkv])
    broken = at(qkv, 4)
    broken[which == "key"] = broken[which == "key"].clone()
    broken[which == "key"][0, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="1 value that is NaN or infinite"):
        state.prefill(*broken)
    rest = decode(state, qkv, start=4)
    assert_near(torch.cat([first, rest], -2), hrf.attention(*qkv, phi, is_causal=True), qkv[2])
    assert taken.count(False) == 1


def test_ignored_keys_and_values_need_not_be_finite(taken):
    phi, qkv = MAPS["positive"](None).double(), tokens(2)
    ignore = torch.zeros(2, LENGTH, dtype=torch.bool)
    ignore[1, 5] = True
    expected = hrf.attention(*qkv, phi, is_causal=True, key_padding_mask=ignore)
    for t in qkv[1:]:
        t[1, :, 5] = torch.nan
    assert_near(decode(hrf.AttentionState(phi), qkv, ignore=ignore), expected, qkv[2].nan_to_num())
    assert all(taken)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype, taken):
    """Computed in float32 and rounded once: neighbouring numbers at most."""
    phi, qkv = MAPS["positive"](HEADS), tokens(2, dtype=dtype)
    received, expected = decode(hrf.AttentionState(phi), qkv), hrf.attention(*qkv, phi, is_causal=True)
    assert all(taken)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(received, expected, rtol=2 * eps, atol=2 * eps * float(qkv[2].abs().max()))


def test_inference_mode_may_begin_and_end_between_steps(taken):
    phi, qkv = MAPS["positive"](HEADS).double(), tokens(2)
    state, pieces = hrf.AttentionState(phi), []
    for i in range(LENGTH):
        with torch.inference_mode(i // 3 != 1):
            pieces.append(state.prefill(*at(qkv, i)).clone())
    assert_near(torch.cat(pieces, -2), hrf.attention(*qkv, phi, is_causal=True), qkv[2])
    assert taken == [True] * (LENGTH - 1)


def test_gradients_and_other_rules_go_without(taken):
    phi, qkv = MAPS["positive"](HEADS).double(), tokens(2)
    state = hrf.AttentionState(phi)
    decode(state, [t[..., :4, :] for t in qkv])
    before, key = len(taken), at(qkv, 4)[1].requires_grad_()
    query, _, value = at(qkv, 4)
    assert state.prefill(query, key, value).requires_grad
    for rule in ("raise", "none"):
        assert_near(
            decode(hrf.AttentionState(phi, denominator=rule), qkv),
            hrf.attention(*qkv, phi, is_causal=True, denominator=rule),
            qkv[2],
        )
    assert len(taken) == before

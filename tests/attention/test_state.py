"""Decoding: any way to cut a sequence gives the outputs of the whole."""

from __future__ import annotations

import pytest
import torch

import hrf
from attention.data import assert_same, inputs, padding
from features.registry import MAPS, PARTLY_EXACT, build
from hrf import tuning

every_map = pytest.mark.parametrize("name", MAPS | PARTLY_EXACT)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(tuning, "CAUSAL_CHUNK", 4)


def _cut(tensors, start, stop):
    return [t[..., start:stop, :] for t in tensors]


@every_map
def test_prefill_and_steps_are_causal_attention(name):
    qkv = inputs(2, key_heads=2)
    phi = build(name)
    state = hrf.AttentionState(phi)
    outputs = [state.prefill(*_cut(qkv, 0, 5))]
    before = {k: t.shape for k, t in state.tensors().items()}
    for i in range(5, 9):
        outputs.append(state.step(*(t[..., i, :] for t in qkv)).unsqueeze(-2))
    grown = {k for k, t in state.tensors().items() if t.shape != before[k]}
    assert grown == ({"key", "value", "label"} if name in PARTLY_EXACT else set())
    assert_same(torch.cat(outputs, -2), hrf.attention(*qkv, phi, is_causal=True), qkv)


@pytest.mark.parametrize("name", ["positive", "angular hybrid", "gaussian kernel of angular", *PARTLY_EXACT])
@pytest.mark.parametrize("cut", range(10))
def test_split_anywhere_and_resume(name, cut):
    qkv = inputs(2)
    phi, ignore = build(name, heads=4), padding(2, 9)
    counts = hrf.Denominator(), hrf.Denominator()
    state = hrf.AttentionState(phi, scale=0.9, denominator=counts[0])
    first = state.prefill(*_cut(qkv, 0, cut), key_padding_mask=ignore[:, :cut])
    resumed = hrf.AttentionState(phi, scale=0.9, denominator=counts[0]).load(state.tensors())
    second = resumed.prefill(*_cut(qkv, cut, 9), key_padding_mask=ignore[:, cut:])
    whole = hrf.attention(
        *qkv, phi, is_causal=True, key_padding_mask=ignore, scale=0.9, denominator=counts[1]
    )
    assert_same(torch.cat([first, second], -2), whole, qkv)
    assert counts[0].clamped == counts[1].clamped


@pytest.mark.parametrize("name", ["trigonometric", "partly exact with default"])
def test_a_state_can_be_saved_moved_detached_and_reordered(name, tmp_path):
    qkv = inputs(3)
    phi = build(name)
    state = hrf.AttentionState(phi)
    state.prefill(*_cut(qkv, 0, 6))
    rest = [t.detach() for t in _cut(qkv, 6, 9)]
    state = state.detach()
    assert not any(t.requires_grad for t in state.tensors().values())

    torch.save(state.tensors(), tmp_path / "state.pt")
    loaded = hrf.AttentionState(phi).load(torch.load(tmp_path / "state.pt", weights_only=True))
    half = state.to(torch.float32)
    assert {t.dtype for k, t in half.tensors().items() if k != "label"} == {torch.float32}
    order = torch.tensor([2, 0, 0])
    beams = state.reorder(order)

    expected = hrf.attention(*qkv, phi, is_causal=True).detach()[..., 6:, :]
    torch.testing.assert_close(loaded.prefill(*rest), expected)
    torch.testing.assert_close(beams.prefill(*(t[order] for t in rest)), expected[order])
    # Rounding of the state to float32, times what the sums cancel: at most some tens here.
    torch.testing.assert_close(half.prefill(*rest), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["positive", "partly exact separable"])
def test_a_state_owns_its_tensors(name):
    phi, qkv = build(name), [t.detach() for t in inputs(2)]
    expected = hrf.attention(*qkv, phi, is_causal=True)[..., 6:, :]
    state, prompt = hrf.AttentionState(phi), [t.clone() for t in _cut(qkv, 0, 6)]
    state.prefill(*prompt)
    for t in prompt:
        t.zero_()
    torch.testing.assert_close(state.prefill(*_cut(qkv, 6, 9)), expected)


@pytest.mark.parametrize("name", ["positive", "trigonometric"])
def test_autocast_does_not_reach_inside(name):
    phi, qkv = build(name).float(), [t.detach().float() for t in inputs(2)]
    states = [hrf.AttentionState(phi) for _ in range(2)]
    expected = [states[0].prefill(*_cut(qkv, *piece)) for piece in ((0, 6), (6, 9))]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        received = [states[1].prefill(*_cut(qkv, *piece)) for piece in ((0, 6), (6, 9))]
    assert torch.equal(torch.cat(received, -2), torch.cat(expected, -2))


def test_tokens_that_do_not_fit_the_state_are_refused():
    state = hrf.AttentionState(build("positive"))
    state.prefill(*inputs(2))
    with pytest.raises(ValueError, match=r"value width \(3, 4, 3\), the state has \(2, 4, 3\)"):
        state.prefill(*inputs(3))
    with pytest.raises(ValueError, match="expected state, scale, moments, total, low and high, or none"):
        state.load({"state": torch.zeros(1)})
    with pytest.raises(
        ValueError, match="expected state, scale, moments, total, low, high, key, value and label, or none"
    ):
        hrf.AttentionState(build("partly exact separable")).load(state.tensors())


def test_only_maps_are_taken():
    with pytest.raises(
        TypeError, match=r"^feature_map is 'positive'; expected a FeatureMap, such as hrf\.Positive$"
    ):
        hrf.AttentionState("positive")

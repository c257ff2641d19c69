"""`hrf.attention` with summaries, causal: causality, masks, packing, dtypes, norms, gradients, account."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.nn import functional as F

import hrf
from attention.summarised.causal.cases import exact, random_tokens, to_inputs

ROUNDING = 1e-9
EXACT = hrf.SummarisedAttention(tolerance=0.0)


def causal(tensors, method, **keywords):
    return hrf.attention(*tensors, method, is_causal=True, **keywords)


def tensors(*shape, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("tolerance", [0.5, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("first", [1, 200, 256, 599])
def test_later_tokens_leave_earlier_outputs_alone(tolerance, dtype, first):
    before = tensors(1, 2, 600, 6, dtype=dtype)
    after = [u.clone() for u in before]
    for u, change in zip(after, tensors(1, 2, 600, 6, dtype=dtype, seed=1), strict=True):
        u[:, :, first:] = 3 * change[:, :, first:]
    method = hrf.SummarisedAttention(tolerance=tolerance)
    one, other = (causal(u, method)[:, :, :first] for u in (before, after))
    # Rounding of sums whose order may change; logits are up to 40.
    assert (one - other).abs().max() <= 1000 * torch.finfo(dtype).eps
    assert not torch.equal(causal(before, method), causal(after, method))


@pytest.mark.parametrize("tolerance", [0.5, math.inf])
def test_padding_never_changes_the_output(tolerance):
    tokens = random_tokens(2, 400, 2, 5, 4)
    method = hrf.SummarisedAttention(tolerance=tolerance)
    inputs, masks = to_inputs(tokens, 2)
    clean = causal(inputs, method, **masks)
    loud = tokens._replace(
        x=tokens.x.where(tokens.queries[..., None, None], 1e6),
        y=tokens.y.where(tokens.keys[..., None], -1e6),
        v=tokens.v.where(tokens.keys[..., None], 1e6),
    )
    assert torch.equal(causal(to_inputs(loud, 2)[0], method, **masks), clean)


def test_a_sequence_alone_and_in_a_padded_batch():
    q, k, v = tensors(2, 2, 500, 5)
    method = hrf.SummarisedAttention(tolerance=1.0)
    ignore = torch.arange(500) >= torch.tensor([[500], [333]])
    both = causal((q, k, v), method, key_padding_mask=ignore, query_padding_mask=ignore)
    alone = causal([u[1:, :, :333] for u in (q, k, v)], method)
    assert (both[1:, :, :333] - alone).abs().max() <= ROUNDING
    assert (both[1, :, 333:] == 0).all()


def test_packed_sequences_attend_to_themselves():
    q, k, v = tensors(1, 2, 700, 5)
    method, ends = hrf.SummarisedAttention(tolerance=0.5), torch.tensor([0, 140, 140, 145, 700])
    packed = causal((q, k, v), method, cu_seqlens=ends)
    for a, b in zip(ends.tolist(), ends.tolist()[1:], strict=False):
        own = causal([u[:, :, a:b] for u in (q, k, v)], method)
        assert torch.allclose(packed[:, :, a:b], own, rtol=0, atol=ROUNDING)


def test_grouped_queries_without_tolerance():
    q, k, v = tensors(2, 6, 300, 5)
    k, v = k[:, :2], v[:, :2]
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert (causal((q, k, v), EXACT) - expected).abs().max() <= ROUNDING


def test_a_causal_mask_is_recognised():
    q, k, v = tensors(1, 2, 300, 5)
    mask = torch.ones(300, 300, dtype=torch.bool).tril()
    method = hrf.SummarisedAttention(tolerance=0.5)
    assert torch.equal(hrf.attention(q, k, v, method, attn_mask=mask), causal((q, k, v), method))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [8, 256])
def test_dtypes(dtype, dim):
    inputs = tensors(1, 2, 300, dim, dtype=dtype)
    output = causal(inputs, EXACT)
    assert output.dtype == dtype
    expected = F.scaled_dot_product_attention(*(u.double() for u in inputs), is_causal=True)
    # float32 inside: logits of a few units, sums of 300 terms; then one rounding to the dtype.
    rounding = torch.finfo(dtype).eps + 100 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    assert (output.double() - expected).abs().max() <= rounding * 4


@pytest.mark.parametrize("tolerance", [0.0, 1.0, math.inf])
@pytest.mark.parametrize("norm", [10.0, 100.0])
@pytest.mark.parametrize("traced", [False, True])
def test_long_vectors_stay_finite(norm, tolerance, traced):
    q, k, v = tensors(1, 2, 400, 16, dtype=torch.float32)
    q, k = (norm * F.normalize(u, dim=-1) for u in (q, k))
    q.requires_grad_(traced)
    output = causal((q, k, v), hrf.SummarisedAttention(tolerance=tolerance), scale=1.0)
    assert output.isfinite().all()
    if traced:
        output.square().sum().backward()
        assert q.grad.isfinite().all()
    # Outputs are means of values.
    assert output.abs().max() <= v.abs().max() * (1 + 1e-5)
    if tolerance == 0:
        exactly = F.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), scale=1.0, is_causal=True
        )
        # Logits of norm² have rounding errors of norm²·ε times a few, which are relative errors of weights.
        assert (output - exactly).abs().max() <= 16 * norm**2 * torch.finfo(torch.float32).eps * v.abs().max()


def test_gradients_without_tolerance_are_those_of_exact_attention():
    inputs = [u.requires_grad_() for u in tensors(1, 2, 300, 5)]
    weights = tensors(1, 2, 300, 5, seed=1)[0]
    expected = F.scaled_dot_product_attention(*inputs, is_causal=True)
    found = torch.autograd.grad((causal(inputs, EXACT) * weights).sum(), inputs)
    for one, other in zip(found, torch.autograd.grad((expected * weights).sum(), inputs), strict=True):
        assert (one - other).abs().max() <= ROUNDING


def test_gradients_of_earlier_outputs_stop_at_their_position():
    q, k, v = (u.requires_grad_() for u in tensors(1, 1, 400, 5))
    output = causal((q, k, v), hrf.SummarisedAttention(tolerance=1.0))
    for grad in torch.autograd.grad(output[:, :, :300].square().sum(), (q, k, v)):
        assert (grad[:, :, 300:] == 0).all()
        assert (grad[:, :, :300] != 0).any()


def test_the_account_is_true():
    tokens = random_tokens(2, 600, 1, 4, 3, size=0.7)
    inputs, masks = to_inputs(tokens, 2)
    reports = {tau: hrf.SummaryReport() for tau in (0.0, 0.3, 1.0, math.inf)}
    errors = {}
    for tau, report in reports.items():
        output = causal(inputs, hrf.SummarisedAttention(tolerance=tau, report=report), **masks)
        expected = exact(tokens).unflatten(0, (2, 1)).movedim(3, 2).flatten(1, 2)
        errors[tau] = ((output - expected).square().sum((2, 3)) / expected.square().sum((2, 3))).sqrt()
    calls = {tau: report.calls[0] for tau, report in reports.items()}
    assert (calls[0.0].exact_share == 1).all()
    assert (calls[0.0].predicted_error == 0).all()
    assert all(
        call.n_groups.tolist() == [8, 8] and call.n_clusters.tolist() == [64, 64] for call in calls.values()
    )
    # Without exact pairs, only the own chunks are left.
    chunk = torch.arange(600) // 128 * 128
    seen = tokens.keys.cumsum(1)
    before = torch.where(chunk > 0, seen[:, (chunk - 1).clamp(min=0)], 0)
    own = ((seen - before) * tokens.queries).sum(1) / (seen * tokens.queries).sum(1)
    assert torch.allclose(calls[math.inf].exact_share[:, 0], own.double())
    shares = [call.exact_share for call in calls.values()]
    assert all((more > fewer).all() for more, fewer in itertools.pairwise(shares))
    # Normal queries and keys are what the log-normal model describes; it takes errors of keys as independent.
    for tau in (0.3, 1.0):
        ratio = calls[tau].predicted_error / errors[tau]
        assert ((ratio > 0.5) & (ratio < 2)).all()


@pytest.mark.parametrize("length", [0, 1, 128])
def test_short_sequences_are_exact_and_say_so(length):
    q, k, v = tensors(2, 3, length, 5)
    report = hrf.SummaryReport()
    output = causal((q, k, v), hrf.SummarisedAttention(tolerance=math.inf, report=report))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.allclose(output, expected, rtol=0, atol=ROUNDING)
    (call,) = report.calls
    assert call.n_groups.tolist() == call.n_clusters.tolist() == [0, 0]
    assert (call.exact_share == 1).all()
    assert (call.predicted_error == 0).all()


def test_refusals():
    inputs = tensors(1, 1, 8, 4)
    with pytest.raises(ValueError, match="n_groups=None"):
        causal(inputs, hrf.SummarisedAttention(8, 8))
    with pytest.raises(NotImplementedError, match="later tokens"):
        causal(inputs, hrf.SummarisedAttention(tolerance="auto", target_error=0.01))
    with pytest.raises(ValueError, match="one key for each query"):
        causal([inputs[0][:, :, :3], *inputs[1:]], hrf.SummarisedAttention())

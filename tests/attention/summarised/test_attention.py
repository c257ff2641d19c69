"""`hrf.attention` with summaries: shapes, masks, packing, dtypes, norms, lengths."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import hrf
from attention.summarised.cases import exact, random_heads, to_inputs
from hrf import _core as core

ROUNDING = 1e-9
ALMOST_EXACT = hrf.SummarisedAttention(8, 8, tolerance=1e-30)


def tensors(*shape, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("seed", range(12))
def test_ragged_batches_without_tolerance_are_exact_attention(seed):
    heads = random_heads(3, 30, 40, 5, 4, seed=seed)
    queries, keys = torch.tensor([[30], [12], [3]]), torch.tensor([[25], [40], [20]])
    heads = heads._replace(
        queries=torch.arange(30) < queries.roll(seed), keys=torch.arange(40) < keys.roll(seed // 3)
    )
    inputs, masks = to_inputs(heads, 3)
    assert (
        hrf.attention(*inputs, ALMOST_EXACT, **masks).flatten(0, 1) - exact(heads)
    ).abs().max() <= ROUNDING


@pytest.mark.parametrize("tolerance", [0.5, math.inf])
def test_padding_never_changes_the_output(tolerance):
    heads = random_heads(2, 50, 50, 5, 4)
    method = hrf.SummarisedAttention(8, 8, tolerance)
    inputs, masks = to_inputs(heads, 2)
    clean = hrf.attention(*inputs, method, **masks)
    loud = heads._replace(
        x=heads.x.where(heads.queries[..., None], 1e6),
        y=heads.y.where(heads.keys[..., None], -1e6),
        v=heads.v.where(heads.keys[..., None], 1e6),
    )
    assert torch.equal(hrf.attention(*to_inputs(loud, 2)[0], method, **masks), clean)
    for i in range(2):  # nor does the company of other sequences
        own = [u[i : i + 1] for u in inputs]
        kept = (~masks["query_padding_mask"][i], ~masks["key_padding_mask"][i], ~masks["key_padding_mask"][i])
        alone = hrf.attention(*(u[:, :, m] for u, m in zip(own, kept, strict=True)), method, scale=1.0)
        assert (alone - clean[i : i + 1][:, :, kept[0]]).abs().max() <= ROUNDING


def test_order_of_keys_and_queries_does_not_matter(monkeypatch):
    """Up to rounding for the twin; trees of the core come from samples, which depend on the order."""
    monkeypatch.setattr(core, "serves", lambda *_: False)
    q, k, v = tensors(1, 2, 64, 5)
    method, order = (
        hrf.SummarisedAttention(8, 8, 0.5),
        torch.randperm(64, generator=torch.Generator().manual_seed(3)),
    )
    plain = hrf.attention(q, k, v, method)
    assert (hrf.attention(q, k[:, :, order], v[:, :, order], method) - plain).abs().max() <= ROUNDING
    assert (hrf.attention(q[:, :, order], k, v, method) - plain[:, :, order]).abs().max() <= ROUNDING


def test_packed_sequences_attend_to_themselves():
    q, k, v = tensors(1, 2, 100, 5)
    method, ends = hrf.SummarisedAttention(8, 8, 0.5), torch.tensor([0, 40, 40, 45, 100])
    packed = hrf.attention(q, k, v, method, cu_seqlens=ends)
    for a, b in zip(ends.tolist(), ends.tolist()[1:], strict=False):
        own = hrf.attention(*(u[:, :, a:b] for u in (q, k, v)), method)
        assert torch.allclose(packed[:, :, a:b], own, rtol=0, atol=ROUNDING)


def test_grouped_queries_share_their_keys():
    q, k, v = tensors(2, 4, 40, 5)
    method = hrf.SummarisedAttention(8, 8, 0.5)
    grouped = hrf.attention(q, k[:, :2], v[:, :2], method)
    repeated = hrf.attention(q, *(u[:, :2].repeat_interleave(2, 1) for u in (k, v)), method)
    assert torch.equal(grouped, repeated)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [8, 256])
def test_dtypes(dtype, dim):
    q, k, v = tensors(1, 2, 48, dim, dtype=dtype)
    output = hrf.attention(q, k, v, hrf.SummarisedAttention(8, 8, tolerance=1e-30))
    assert output.dtype == dtype
    expected = F.scaled_dot_product_attention(*(u.double() for u in (q, k, v)))
    # float32 inside: logits of a few units, sums of 48 terms; then one rounding to the dtype.
    rounding = torch.finfo(dtype).eps + 100 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    assert (output.double() - expected).abs().max() <= rounding * 4


@pytest.mark.parametrize("tolerance", [1e-30, 1.0, math.inf])
@pytest.mark.parametrize("norm", [10.0, 100.0])
def test_long_vectors_stay_finite(norm, tolerance):
    q, k, v = tensors(1, 2, 64, 16, dtype=torch.float32)
    q, k = (norm * F.normalize(u, dim=-1) for u in (q, k))
    q.requires_grad_()
    output = hrf.attention(q, k, v, hrf.SummarisedAttention(8, 8, tolerance), scale=1.0)
    output.square().sum().backward()
    assert output.isfinite().all()
    assert q.grad.isfinite().all()
    # Outputs are means of values.
    assert output.abs().max() <= v.abs().max() * (1 + 1e-5)
    if tolerance < 1:
        exactly = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), scale=1.0)
        # Logits of norm² have rounding errors of norm²·ε times a few, which are relative errors of weights.
        assert (output - exactly).abs().max() <= 16 * norm**2 * torch.finfo(torch.float32).eps * v.abs().max()


@pytest.mark.parametrize("length", [0, 1, 7])
def test_short_sequences_are_exact_and_say_so(length):
    q, k, v = tensors(2, 3, length, 5)
    report = hrf.SummaryReport()
    output = hrf.attention(q, k, v, hrf.SummarisedAttention(8, 8, math.inf, report=report))
    assert torch.allclose(output, F.scaled_dot_product_attention(q, k, v), rtol=0, atol=ROUNDING)
    (call,) = report.calls
    assert call.n_groups.tolist() == call.n_clusters.tolist() == [0, 0]
    assert (call.exact_share == 1).all()
    assert (call.predicted_error == 0).all()


def test_no_keys_give_zeros():
    q, k, v = tensors(2, 3, 20, 5)
    ignore = torch.zeros(2, 20, dtype=torch.bool)
    ignore[1] = True
    output = hrf.attention(q, k, v, hrf.SummarisedAttention(8, 8), key_padding_mask=ignore)
    assert (output[1] == 0).all()
    assert (output[0] != 0).all()


def test_equal_queries_and_equal_keys():
    q, k, v = tensors(1, 1, 32, 4)
    for x, y in ((q[:, :, :1].expand_as(q), k), (q, k[:, :, :1].expand_as(k)), (0 * q, 0 * k)):
        output = hrf.attention(x, y, v, hrf.SummarisedAttention(8, 8, math.inf))
        assert (
            output - F.scaled_dot_product_attention(x, y, v)
        ).abs().max() <= 1e-7  # a jitter of the metric aside


def test_refusals():
    q, k, v = tensors(1, 1, 8, 4)
    with pytest.raises(ValueError, match="power of two"):
        hrf.SummarisedAttention(n_groups=48)
    with pytest.raises(ValueError, match="tolerance is -1"):
        hrf.SummarisedAttention(tolerance=-1)
    with pytest.raises(ValueError, match="target_error"):
        hrf.SummarisedAttention(tolerance="auto")
    with pytest.raises(ValueError, match="independent"):
        hrf.attention(
            q, k, v, hrf.Positive(4, n_projections=8), query_padding_mask=torch.ones(1, 8, dtype=torch.bool)
        )
    for length in (8, 600):
        x, y, z = tensors(1, 1, length, 4)
        for is_causal in (False, True):
            with pytest.raises(ValueError, match="queries and keys of the same last dimension"):
                hrf.attention(x, y[..., :1], z, hrf.SummarisedAttention(), is_causal=is_causal)
            with pytest.raises(ValueError, match=f"query has {4 * length} values that are NaN"):
                hrf.attention(x * math.nan, y, z, hrf.SummarisedAttention(), is_causal=is_causal)
    with pytest.raises(ValueError, match="scale is 'a'"):
        hrf.attention(q, k, v, hrf.SummarisedAttention(), scale="a")
    with pytest.raises(ValueError, match="query_padding_mask"):
        hrf.attention(
            q, k, v, hrf.SummarisedAttention(), query_padding_mask=torch.ones(1, 3, dtype=torch.bool)
        )


@pytest.mark.parametrize(
    ("length", "groups"), [(255, 0), (256, 32), (257, 64), (1024, 64), (1025, 128), (4096, 128), (16384, 256)]
)
def test_sizes_grow_with_the_root_of_the_length(length, groups):
    assert hrf.SummarisedAttention().sizes(length, length) == (groups, groups)

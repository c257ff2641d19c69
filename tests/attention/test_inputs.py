"""Inputs of attention: refusals in words, masks of PyTorch's function, dtypes, and the warning about accuracy."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional as F

import hrf
from attention.data import inputs
from features.registry import build

Q, K, V = (t.detach() for t in inputs(2))  # (2, 4, 9, ·)
BOUNDS = torch.tensor([0, 4, 9])


@pytest.mark.parametrize(
    ("tensors", "options", "error", "says"),
    [
        ((Q.long(), K, V), {}, TypeError, "query is a tensor of torch.int64; expected a real floating-point"),
        ((Q, K.tolist(), V), {}, TypeError, "key is list; expected a real floating-point"),
        ((Q, K, V[0, 0]), {}, ValueError, r"value has shape \(9, 3\); expected \(..., heads, length, width"),
        ((Q[:1], K, V), {}, ValueError, "with the same batch axes"),
        ((Q, K, V[..., :5, :]), {}, ValueError, r"value \(2, 4, 5, 3\); expected"),
        ((Q[..., :3], K, V), {}, ValueError, "query has last dimension 3, the map was built for dim=4"),
        ((Q, K[..., :2], V), {}, ValueError, "key has last dimension 2, the map was built for dim=4"),
        ((Q, K[:, :3], V[:, :3]), {}, ValueError, "4 query heads cannot share 3 key heads"),
        ((Q, K[..., :5, :], V[..., :5, :]), {"is_causal": True}, ValueError, "9 queries and 5 keys"),
        ((Q, K, V), {"scale": -1.0}, ValueError, "scale is -1.0; expected a positive number"),
        ((Q, K, V), {"key_padding_mask": torch.zeros(9, 9).bool()}, ValueError, "cannot honour arbitrary"),
        ((Q, K, V), {"key_padding_mask": torch.ones(2, 9)}, ValueError, "has values besides 0 and −inf"),
        ((Q, K, V), {"key_padding_mask": [[False] * 9] * 2}, TypeError, "is of type list; expected a tensor"),
        ((Q, K, V), {"denominator": "hope"}, ValueError, "'hope'; expected one of clamp, raise"),
        ((Q, K, V), {"cu_seqlens": BOUNDS}, ValueError, "a batch of 2; expected a batch axis of 1"),
        ((Q[:1], K[:1], V[:1]), {"cu_seqlens": BOUNDS.double()}, ValueError, "expected integers"),
        ((Q[:1], K[:1], V[:1]), {"cu_seqlens": BOUNDS - 1}, ValueError, "from -1 to 8; expected from 0 to"),
        ((Q[0], K[0, :, :5], V[0, :, :5]), {"cu_seqlens": BOUNDS}, ValueError, "9 queries and 5 keys"),
        ((Q * torch.nan, K, V), {}, ValueError, "288 values that are NaN or infinite"),
    ],
)
def test_bad_input_is_refused_in_words(tensors, options, error, says):
    with pytest.raises(error, match=says):
        hrf.attention(*tensors, build("positive"), **options)


def test_bad_maps_are_refused_in_words():
    with pytest.raises(TypeError, match="feature_map is 'positive'; expected a FeatureMap"):
        hrf.attention(Q, K, V, "positive")
    with pytest.raises(ValueError, match="query has 4 heads, the map has 3"):
        hrf.attention(Q, K, V, build("positive", heads=3))
    with pytest.raises(ValueError, match="at least one dimension per head"):
        hrf.attention(Q[..., :0], K[..., :0], V, hrf.SummarisedAttention())


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("bad", [torch.nan, 1e200])
@pytest.mark.parametrize(
    "name", ["positive", "trigonometric", "angular hybrid", "clustered shifted", "clustered paper"]
)
def test_every_engine_refuses_values_that_are_not_finite(name, bad, is_causal):
    for place, side in enumerate(("query", "key")):
        tensors = [Q.clone(), K.clone(), V.clone()]
        tensors[place][0, 0, 3, 1] = bad
        says = rf"{side} has 1 value that is NaN.*expected finite values$" if bad != bad else "finite values$"
        for train in (False, True):
            with pytest.raises(ValueError, match=says):
                hrf.attention(*(t.requires_grad_(train) for t in tensors), build(name), is_causal=is_causal)


def test_the_result_has_the_dtype_of_the_query():
    phi = build("positive").float()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        out = hrf.attention(Q.to(dtype), K.to(dtype), V.to(dtype), phi)
        assert out.dtype == dtype
        exact = hrf.attention(*(t.to(dtype).double() for t in (Q, K, V)), phi)
        # Exponents up to 75 carry 75 roundings into a feature, and two features make a weight.
        inner = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
        assert (out - exact).abs().max() <= (torch.finfo(dtype).eps + 150 * inner) * exact.abs().max()


# Arguments of PyTorch's scaled_dot_product_attention.

PAST = torch.ones(9, 9, dtype=torch.bool).tril()
SHOWN = torch.ones(2, 9, dtype=torch.bool)
SHOWN[1, 2:5] = False


def added(mask, hidden=-torch.inf):
    return torch.zeros(mask.shape).masked_fill(~mask, hidden)


MASKS = {
    "padding": (SHOWN[:, None, None], {"key_padding_mask": ~SHOWN}),
    "padding of all heads": (SHOWN[:, None, None].expand(2, 4, 9, 9), {"key_padding_mask": ~SHOWN}),
    "padding of all sequences": (SHOWN[1], {"key_padding_mask": ~SHOWN[1].expand(2, 9)}),
    "causal": (PAST, {"is_causal": True}),
    "causal per head": (PAST.expand(2, 4, 9, 9), {"is_causal": True}),
    "causal and padding": (PAST & SHOWN[:, None, None], {"is_causal": True, "key_padding_mask": ~SHOWN}),
    "nothing hidden": (torch.ones(1, 1, dtype=torch.bool), {}),
}


@pytest.mark.parametrize("name", MASKS)
def test_padding_and_causal_masks_are_honoured(name):
    phi, (mask, options) = build("positive"), MASKS[name]
    expected = hrf.attention(Q, K, V, phi, **options)
    for form in (mask, added(mask), added(mask, torch.finfo(torch.float32).min)):
        assert torch.equal(hrf.attention(Q, K, V, phi, attn_mask=form), expected)
    assert name == "nothing hidden" or not torch.allclose(expected, hrf.attention(Q, K, V, phi))


def test_masks_add_up_and_the_flag_of_grouped_queries_is_accepted():
    phi, hidden = build("positive"), torch.zeros(2, 9, dtype=torch.bool)
    hidden[:, 0] = True
    grouped = Q, K[:, :2], V[:, :2], phi
    options = {"attn_mask": SHOWN[:, None, None], "key_padding_mask": hidden, "enable_gqa": True}
    received = hrf.attention(*grouped, is_causal=True, **options)
    expected = hrf.attention(*grouped, key_padding_mask=hidden | ~SHOWN, is_causal=True)
    assert torch.equal(received, expected)


@pytest.mark.parametrize(
    ("mask", "error", "says"),
    [
        (PAST.T, ValueError, r"torch.bool and shape \(9, 9\) differs between queries and is not causal over"),
        (PAST.triu(-2), ValueError, "is not causal over 9 queries and 9 keys"),  # a window
        (PAST[:, 3:4], ValueError, "differs between queries"),
        ((torch.arange(4) > 0)[:, None, None].expand(4, 1, 9), ValueError, "differs between heads"),
        (added(PAST) - 1, ValueError, "torch.float32 and shape .* has values besides 0 and −inf"),
        (PAST.long(), ValueError, "torch.int64 and shape .* expected these or booleans, True to attend"),
        (PAST[:5], ValueError, r"does not broadcast to the weights, \(2, 4, 9, 9\)"),
        (PAST[None, None, None], ValueError, "does not broadcast"),
        ([[True]], TypeError, "attn_mask is of type list; expected a tensor or None"),
    ],
)
def test_other_masks_are_refused(mask, error, says):
    with pytest.raises(error, match=says):
        hrf.attention(Q, K, V, build("positive"), attn_mask=mask)


@pytest.mark.stat
def test_dropout_drops_keys_and_keeps_means():
    phi, runs = build("positive"), 4000
    many = [t[:1].expand(runs, *t.shape[1:]) for t in (Q, K, V)]
    torch.manual_seed(0)
    dropped, plain = hrf.attention(*many, phi, dropout_p=0.5), hrf.attention(Q[:1], K[:1], V[:1], phi)
    error = dropped.std(0) / runs**0.5
    assert ((dropped.mean(0) - plain[0]).abs() <= 5 * error).all()
    assert (error > 0).all()


# One warning per map where its weights cannot be right, and none elsewhere.

heeded = pytest.mark.filterwarnings("error:queries and keys have norms")
MAKERS = {
    "positive": lambda heads: hrf.Positive(16, n_projections=64, heads=heads, seed=0),
    "trigonometric": lambda heads: hrf.Trigonometric(16, n_projections=64, heads=heads, seed=0),
    "angular": lambda heads: hrf.AngularHybrid(
        16, n_projections=16, n_coefficient_projections=8, heads=heads, seed=0
    ),
}


def tensors(size: float) -> list[torch.Tensor]:
    q, k, v = torch.randn(3, 2, 4, 50, 16, generator=torch.Generator().manual_seed(0))
    return [size * F.normalize(q, dim=-1), size * F.normalize(k[:, :2], dim=-1), v[:, :2]]


@heeded
@pytest.mark.parametrize("heads", [None, 4])
@pytest.mark.parametrize("name", MAKERS)
def test_long_vectors_are_reported_once_however_late(name, heads):
    phi = MAKERS[name](heads)
    hrf.attention(*(u[:, :, :0] for u in tensors(9.0)), phi, scale=1.0)
    for _ in range(2):
        hrf.attention(*tensors(1.0), phi, scale=1.0)
    with pytest.warns(hrf.AccuracyWarning, match=r"norms of about 3.0 and 3.0 .*SummarisedAttention"):
        hrf.attention(*tensors(3.0), phi, scale=1.0)
    hrf.attention(*tensors(3.0), phi, scale=1.0)


@heeded
@pytest.mark.parametrize("size", [10.0, 30.0, 100.0, 1e5])
def test_errors_beyond_all_numbers_are_reported(size):
    with pytest.warns(hrf.AccuracyWarning, match="relative error of inf|relative error of [0-9.]+e"):
        hrf.attention(*tensors(size), MAKERS["positive"](None), scale=1.0)


@heeded
def test_the_worst_head_and_visible_keys_count():
    q, k, v = tensors(0.5)
    q[:, 3] *= 8
    k[:, 1, :25] *= 8
    ignore = torch.zeros(2, 50, dtype=torch.bool)
    ignore[:, :25] = True
    k[:, :, :25] *= 1e3
    hrf.attention(q[:, :2], k, v, MAKERS["positive"](None), scale=1.0, key_padding_mask=ignore)
    with pytest.warns(hrf.AccuracyWarning, match="norms of about 4.0 and"):
        hrf.attention(q, 6 * k, v, MAKERS["positive"](4), scale=1.0, key_padding_mask=ignore)


@heeded
def test_states_warn_fitted_maps_and_summaries_do_not_and_the_usual_means_silence():
    q, k, v = tensors(4.0)
    with pytest.warns(hrf.AccuracyWarning):
        hrf.AttentionState(MAKERS["positive"](None), scale=1.0).prefill(q[:, :2], k, v)
    fitted = hrf.Exponential.fit(q.flatten(0, 2), k.flatten(0, 2), n_projections=8, seed=0)
    for method in (fitted, hrf.SummarisedAttention()):
        hrf.attention(q, k, v, method, scale=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hrf.AccuracyWarning)
        hrf.attention(q, k, v, MAKERS["positive"](None), scale=1.0)

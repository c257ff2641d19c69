"""Inputs that do not fit are refused in words."""

from __future__ import annotations

import pytest
import torch

import hrf
from attention.data import inputs
from features.registry import build

Q, K, V = (t.detach() for t in inputs(2))
BOUNDS = torch.tensor([0, 4, 9])


@pytest.mark.parametrize(
    ("arguments", "options", "error", "says"),
    [
        ((Q.long(), K, V), {}, TypeError, "query is a tensor of torch.int64; expected a real floating-point"),
        ((Q, K.tolist(), V), {}, TypeError, "key is list; expected a real floating-point"),
        (
            (Q, K, V[0, 0]),
            {},
            ValueError,
            r"value has shape \(9, 3\); expected \(..., heads, length, width\)",
        ),
        ((Q[:1], K, V), {}, ValueError, "with the same batch axes"),
        ((Q, K, V[..., :5, :]), {}, ValueError, r"value \(2, 4, 5, 3\); expected"),
        ((Q[..., :3], K, V), {}, ValueError, "query has last dimension 3, the map was built for dim=4"),
        ((Q, K[..., :2], V), {}, ValueError, "key has last dimension 2, the map was built for dim=4"),
        ((Q, K[:, :3], V[:, :3]), {}, ValueError, "4 query heads cannot share 3 key heads"),
        ((Q, K[..., :5, :], V[..., :5, :]), {"is_causal": True}, ValueError, "9 queries and 5 keys"),
        ((Q, K, V), {"scale": -1.0}, ValueError, "scale is -1.0; expected a positive number"),
        (
            (Q, K, V),
            {"key_padding_mask": torch.zeros(9, 9).bool()},
            ValueError,
            "cannot honour arbitrary masks",
        ),
        (
            (Q, K, V),
            {"key_padding_mask": torch.ones(2, 9)},
            ValueError,
            "float32 has values besides 0 and −inf",
        ),
        ((Q, K, V), {"key_padding_mask": [[False] * 9] * 2}, TypeError, "is of type list; expected a tensor"),
        (
            (Q, K, V),
            {"denominator": "hope"},
            ValueError,
            "denominator is 'hope'; expected one of clamp, raise",
        ),
        ((Q, K, V), {"cu_seqlens": BOUNDS}, ValueError, "a batch of 2; expected a batch axis of 1"),
        ((Q[:1], K[:1], V[:1]), {"cu_seqlens": BOUNDS.double()}, ValueError, "expected integers"),
        (
            (Q[:1], K[:1], V[:1]),
            {"cu_seqlens": BOUNDS - 1},
            ValueError,
            "from -1 to 8; expected from 0 to the",
        ),
        ((Q[0], K[0, :, :5], V[0, :, :5]), {"cu_seqlens": BOUNDS}, ValueError, "9 queries and 5 keys"),
        ((Q * torch.nan, K, V), {}, ValueError, "288 values that are NaN or infinite"),
    ],
)
def test_bad_input_is_refused_in_words(arguments, options, error, says):
    with pytest.raises(error, match=says):
        hrf.attention(*arguments, build("positive"), **options)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e200])
@pytest.mark.parametrize(
    "name", ["positive", "trigonometric", "angular hybrid", "clustered shifted", "clustered paper"]
)
def test_every_engine_refuses_values_that_are_not_finite(name, bad, is_causal):
    for place in (0, 1):
        tensors = [Q.clone(), K.clone(), V.clone()]
        tensors[place][0, 0, 3, 1] = bad
        for train in (False, True):
            with pytest.raises(ValueError, match=r"expected finite values$"):
                hrf.attention(*(t.requires_grad_(train) for t in tensors), build(name), is_causal=is_causal)


def test_a_name_is_no_map():
    with pytest.raises(TypeError, match="feature_map is 'positive'; expected a FeatureMap"):
        hrf.attention(Q, K, V, "positive")


def test_wrong_number_of_heads_is_refused():
    with pytest.raises(ValueError, match="query has 4 heads, the map has 3"):
        hrf.attention(Q, K, V, build("positive", heads=3))


def test_the_result_has_the_dtype_of_the_query():
    phi = build("positive").float()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        out = hrf.attention(Q.to(dtype), K.to(dtype), V.to(dtype), phi)
        assert out.dtype == dtype
        exact = hrf.attention(*(t.to(dtype).double() for t in (Q, K, V)), phi)
        # Exponents up to 75 carry 75 roundings into a feature, and two features make a weight.
        inner = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
        assert (out - exact).abs().max() <= (torch.finfo(dtype).eps + 150 * inner) * exact.abs().max()

"""One warning per map where its weights cannot be right, and none elsewhere."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional as F

import hrf

pytestmark = pytest.mark.filterwarnings("error:queries and keys have norms")

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


@pytest.mark.parametrize("heads", [None, 4])
@pytest.mark.parametrize("name", MAKERS)
def test_long_vectors_are_reported_once(name, heads):
    phi = MAKERS[name](heads)
    with pytest.warns(hrf.AccuracyWarning, match=r"norms of about 3.0 and 3.0 .*SummarisedAttention"):
        hrf.attention(*tensors(3.0), phi, scale=1.0)
    for _ in range(4):
        hrf.attention(*tensors(3.0), phi, scale=1.0)


@pytest.mark.parametrize("name", MAKERS)
def test_short_vectors_and_nothing_are_fine(name):
    phi = MAKERS[name](None)
    hrf.attention(*tensors(1.0), phi, scale=1.0)
    hrf.attention(*(u[:, :, :0] for u in tensors(9.0)), phi, scale=1.0)


def test_norms_that_grow_are_noticed():
    phi = MAKERS["positive"](None)
    for _ in range(3):
        hrf.attention(*tensors(0.5), phi, scale=1.0)
    with pytest.warns(hrf.AccuracyWarning):
        hrf.attention(*tensors(4.0), phi, scale=1.0)


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


def test_fitted_maps_and_summaries_are_not_judged():
    q, k, v = tensors(4.0)
    fitted = hrf.Exponential.fit(q.flatten(0, 2), k.flatten(0, 2), n_projections=8, seed=0)
    for method in (fitted, hrf.SummarisedAttention()):
        hrf.attention(q, k, v, method, scale=1.0)


def test_states_warn_and_the_usual_means_silence():
    phi = MAKERS["positive"](None)
    q, k, v = tensors(4.0)
    with pytest.warns(hrf.AccuracyWarning):
        hrf.AttentionState(phi, scale=1.0).prefill(q[:, :2], k, v)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hrf.AccuracyWarning)
        hrf.attention(q, k, v, MAKERS["positive"](None), scale=1.0)


@pytest.mark.parametrize("name", MAKERS)
def test_nan_is_named_by_its_side(name):
    for i, side in enumerate(("query", "key")):
        q, k, v = tensors(1.0)
        (q, k)[i][0, 0, 0, 0] = torch.nan
        for is_causal in (False, True):
            with pytest.raises(ValueError, match=f"{side} has 1 value that is NaN"):
                hrf.attention(q, k, v, MAKERS[name](None), is_causal=is_causal)


def test_no_dimension_is_refused():
    nothing = torch.randn(1, 2, 5, 0)
    with pytest.raises(ValueError, match="at least one dimension per head"):
        hrf.attention(nothing, nothing, torch.randn(1, 2, 5, 3), hrf.SummarisedAttention())

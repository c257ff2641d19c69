"""Summarised attention on values that no model should produce, and on heads that summaries get wrong."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch.nn import functional as F

import hrf
from hrf._attention.summarised.engine import Compiled
from hrf._attention.summarised.plan import Heads
from properties.strategies import cases, either, seeds

lengths = st.integers(256, 700)


def normal(seed: int, length: int, dim: int = 16) -> Tensor:
    """Return query, key and value of two heads, ``(3, 1, 2, L, d)``."""
    return torch.randn(3, 1, 2, length, dim, generator=Generator().manual_seed(seed))


@given(
    seeds,
    lengths,
    st.sampled_from(["query", "key"]),
    st.sampled_from([math.nan, math.inf, -math.inf]),
    st.sampled_from([torch.float32, torch.float64, torch.float16]),
    either,
)
@cases(2)
def test_one_bad_value_is_an_error_that_names_it_unless_it_is_padding(
    seed, length, name, value, dtype, is_padding
):
    tensors = normal(seed, length).to(dtype)
    tensors[["query", "key"].index(name), 0, seed % 2, seed % length, seed % 16] = value
    padding = torch.zeros(1, length, dtype=torch.bool)
    padding[0, seed % length] = is_padding
    masks = {"key_padding_mask": padding, "query_padding_mask": padding}
    if is_padding:
        assert hrf.attention(*tensors, hrf.SummarisedAttention(), **masks).isfinite().all()
    else:
        with pytest.raises(ValueError, match=f"{name} has 1 value that is NaN or infinite"):
            hrf.attention(*tensors, hrf.SummarisedAttention(), **masks)


@given(seeds, lengths, st.floats(-30, 30), st.floats(-30, 30), st.floats(-30, 30), either)
@cases(4)
def test_any_size_gives_values_in_the_box_or_a_sentence(seed, length, query, key, value, one):
    tensors = normal(seed, length)
    for tensor, power in zip(tensors, (query, key, value), strict=True):
        (tensor[0, 0, seed % length] if one else tensor).mul_(10.0**power)
    norms = [u.double().norm(dim=(-2, -1)).max() for u in tensors[:2]]
    if max(norms) > 1e20 or norms[0] * norms[1] > 1e40:  # float32 ends at 3e38, and the scale is 1/4
        with pytest.raises(ValueError, match=r"too large|NaN or infinite"):
            hrf.attention(*tensors, hrf.SummarisedAttention())
    elif max(norms) < 1e19 and norms[0] * norms[1] < 1e38:
        output, v = hrf.attention(*tensors, hrf.SummarisedAttention()), tensors[2]
        low, high = v.amin(-2, keepdim=True), v.amax(-2, keepdim=True)
        slack = 1e-4 * (high - low)
        assert ((output >= low - slack) & (output <= high + slack)).all()


@given(seeds, st.integers(64, 300), st.sampled_from([math.nan, math.inf, 1e30]), either)
@cases(2)
def test_the_core_survives_whatever_it_is_given(seed, length, value, in_keys):
    x, y, v = normal(seed, length)[:, 0]
    (y if in_keys else x)[:, seed % length] = value
    real = torch.ones(2, length, dtype=torch.bool)
    found = Compiled(Heads(x, y, v, real, real), 1.0, 8, 8, torch.ones(2), keep=True)
    found.plan()
    found.gradients(found.out, torch.ones_like(found.out))


def topics(seed: int, length: int, scale: float, n_topics: int) -> Tensor:
    """Return tokens on topics; queries and keys of one topic have each other's attention."""
    g = Generator().manual_seed(seed)
    of_token = torch.randint(n_topics, (1, 2, length), generator=g)
    means = torch.randn(2, n_topics, 32, generator=g)
    noise = torch.randn(3, 1, 2, length, 32, generator=g)
    return noise + torch.stack([scale * means[0], scale * means[0], means[1]])[:, of_token]


def hidden_direction(seed: int, length: int, size: float, base: float, shift: float) -> Tensor:
    """Return tokens of which eight queries and eight keys per head share a direction that no other token has."""
    g = Generator().manual_seed(seed)
    tensors = torch.randn(3, 1, 2, length, 32, generator=g)
    tensors[:2] *= base
    tensors[:2, ..., 0] = 0
    for head in range(2):
        queries, keys = torch.randperm(length, generator=g)[:16].chunk(2)
        tensors[0, 0, head, queries, 0] = tensors[1, 0, head, keys, 0] = size
        tensors[2, 0, head, keys] += shift
    return tensors


def assert_prediction_holds(tensors: Tensor, options: dict[str, object] | None = None) -> None:
    """Check predicted errors: within a factor of three, unless less than one query's output is wrong."""
    report = hrf.SummaryReport()
    method = hrf.SummarisedAttention(report=report, **(options or {}))
    output = hrf.attention(*tensors, method).double()
    exact = F.scaled_dot_product_attention(*tensors.double())
    error = (output - exact).norm(dim=(-2, -1)) / exact.norm(dim=(-2, -1))
    predicted, one_query = report.calls[0].predicted_error.double(), tensors.shape[-2] ** -0.5
    close = (predicted <= 3 * error) & (predicted >= error / 3)
    assert (close | (torch.maximum(error, predicted) < one_query)).all(), (error, predicted)


@given(seeds, lengths, st.floats(0.5, 8), st.sampled_from([4, 16, 64]), st.integers(-30, 30))
@cases(2)
def test_predictions_hold_for_topics_and_values_of_any_size(seed, length, scale, n_topics, power):
    tensors = topics(seed, length, scale, n_topics)
    tensors[2] *= 10.0**power
    assert_prediction_holds(tensors)


@given(seeds, lengths, st.floats(2, 40), st.sampled_from([0.1, 0.5, 1.0]), st.sampled_from([0.0, 3.0, 30.0]))
@cases(2)
def test_predictions_hold_for_a_hidden_direction(seed, length, size, base, shift):
    assert_prediction_holds(hidden_direction(seed, length, size, base, shift))


@given(seeds, lengths, st.floats(0.5, 5), st.sampled_from([0.05, 0.2]))
@cases(1)
def test_auto_meets_its_target(seed, length, scale, target):
    tensors = topics(seed, length, scale, 64)
    output = hrf.attention(*tensors, hrf.SummarisedAttention(tolerance="auto", target_error=target)).double()
    exact = F.scaled_dot_product_attention(*tensors.double())
    error = (output - exact).norm(dim=(-2, -1)) / exact.norm(dim=(-2, -1))
    one_query = length**-0.5
    assume(target > one_query)
    assert (error <= 3 * target).all()

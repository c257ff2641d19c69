"""Predicted errors against measured ones, and the tolerance that aims at an error."""

from __future__ import annotations

import math

import pytest
import torch

import hrf


def inputs():
    """Normal queries and keys, with logits of standard deviation 0.8 to 2.5.

    At 3.4 (queries of size 1.2) and tolerance 1 the prediction is 0.49 of the error: the model ends about there.
    """
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 4, 512, 8, generator=g, dtype=torch.float64) for _ in range(3))
    sizes = torch.tensor([0.3, 0.5, 0.7, 0.9], dtype=torch.float64)[:, None, None]
    return q * sizes, k, v


def relative_errors(method):
    q, k, v = inputs()
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0)
    difference = hrf.attention(q, k, v, method, scale=1.0) - exact
    return difference.norm(dim=(-2, -1)) / exact.norm(dim=(-2, -1))


@pytest.mark.parametrize("tolerance", [0.25, 1.0, 4.0, math.inf])
def test_predictions_are_within_a_factor_of_two(tolerance):
    report = hrf.SummaryReport()
    measured = relative_errors(hrf.SummarisedAttention(32, 32, tolerance, report=report))
    ratio = report.calls[0].predicted_error / measured
    assert ratio.min() > 0.5
    assert ratio.max() < 2


@pytest.mark.parametrize("target", [0.02, 0.1])
def test_auto_tolerance_meets_its_target_within_a_factor_of_two(target):
    report = hrf.SummaryReport()
    method = hrf.SummarisedAttention(32, 32, "auto", target_error=target, report=report)
    assert relative_errors(method).max() < 2 * target
    (call,) = report.calls
    assert (call.predicted_error <= target).all()
    assert call.tolerance.unique().numel() > 1
    assert 0 < report.exact_share < 1

"""Distances between estimated and true softmax distributions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import hrf

__all__ = ["distances", "metric_means"]


def distances(estimate: hrf.Features, exact: Tensor) -> dict[str, float]:
    """Return Wasserstein, KS, negative fraction, the largest probability and the share of hopeless rows.

    All are means over rows. Hopeless rows have no positive estimate, and count as uniform.

    Args:
        estimate: estimates of the kernel, ``(N, V)``, at any scale.
        exact: true distributions, ``(N, V)`` in float64.
    """
    values = estimate.values.double()
    # Only positive estimates take part in the search for the largest scale.
    scale = estimate.log_scale.double().expand_as(values).masked_fill(values <= 0, -torch.inf)
    weights = values.clamp(min=0) * (scale - scale.amax(-1, keepdim=True)).exp().nan_to_num(0.0)
    hopeless = weights.sum(-1, keepdim=True) == 0
    weights = torch.where(hopeless, 1.0, weights)
    distribution = weights / weights.sum(-1, keepdim=True)
    gap = (distribution - exact).cumsum(-1).abs()
    return {
        "wasserstein": float(gap.sum(-1).mean()),
        "ks": float(gap.amax(-1).mean()),
        "negative": float((values < 0).double().mean()),
        "largest": float(distribution.amax(-1).mean()),
        "hopeless": float(hopeless.double().mean()),
    }


def metric_means(part: dict[str, Any]) -> dict[str, float]:
    """Return the means over redraws."""
    names = "wasserstein", "ks", "negative", "largest", "hopeless"
    return {name: sum(part[name]) / len(part[name]) for name in names}

"""Softmax attention in linear time, with any feature map."""

from __future__ import annotations

from torch import Tensor

from hrf.attention import linear
from hrf.attention.denominator import Denominator, key_moments, quotient
from hrf.attention.inputs import check
from hrf.features.base import FeatureMap

__all__ = ["Denominator", "attention"]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: FeatureMap,
    *,
    is_causal: bool = False,
    key_padding_mask: Tensor | None = None,
    scale: float | None = None,
    denominator: str | Denominator = "clamp",
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Attention with estimates of the kernel for weights: Σ K̂(x, y) v / Σ K̂(x, y)."""
    inputs = check(
        query, key, value, feature_map, is_causal=is_causal, key_padding_mask=key_padding_mask, scale=scale
    )
    rule = Denominator.of(denominator)
    rows = inputs.for_map(feature_map)
    total = linear.sums(rows, feature_map)
    moments = key_moments(rows, feature_map).sum(-2, keepdim=True)
    return inputs.restored(quotient(rows, total, moments, feature_map, rule))

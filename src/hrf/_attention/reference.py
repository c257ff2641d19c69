"""Attention from the matrix of estimates: quadratic, plain, and the twin that the fast engines are tested against.

    out_i = Σ_j K̂(x_i, y_j) v_j / Σ_j K̂(x_i, y_j)

Every option means what it says: keys that are ignored are dropped, packed sequences are computed one by one.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from hrf._attention.denominator import Denominator, Rule, Visible, bounded
from hrf._attention.inputs import check
from hrf.features.base import FeatureMap
from hrf.numerics import Features

__all__ = ["attention"]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: FeatureMap,
    *,
    is_causal: bool = False,
    key_padding_mask: Tensor | None = None,
    scale: float | None = None,
    denominator: Rule | Denominator = "clamp",
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Compute `hrf.attention`, argument for argument, in quadratic time and memory."""
    if cu_seqlens is not None:
        pieces = []
        for start, stop in itertools.pairwise(cu_seqlens.tolist()):
            q, k, v = (tensor[..., start:stop, :] for tensor in (query, key, value))
            padding = None if key_padding_mask is None else key_padding_mask[..., start:stop]
            pieces.append(
                attention(
                    q,
                    k,
                    v,
                    feature_map,
                    is_causal=is_causal,
                    key_padding_mask=padding,
                    scale=scale,
                    denominator=denominator,
                )
            )
        return torch.cat(pieces, -2)
    inputs = check(
        query, key, value, feature_map, paired=is_causal, key_padding_mask=key_padding_mask, scale=scale
    )
    rule = Denominator.of(denominator)
    x, y, v = (tensor.to(inputs.dtype) for tensor in inputs[:3])
    x, y = x * inputs.root, (y * inputs.root).repeat_interleave(inputs.groups, 1)
    v = v.repeat_interleave(inputs.groups, 1)
    rows = []
    for b in range(len(x)):
        kept = torch.arange(y.shape[-2], device=y.device)
        if inputs.ignore is not None:
            kept = kept[~inputs.ignore[b]]
        visible = torch.ones(x.shape[-2], len(kept), dtype=torch.bool, device=x.device)
        if is_causal:
            visible = kept <= torch.arange(x.shape[-2], device=x.device)[:, None]
        rows.append(_one(x[b], y[b, :, kept], v[b, :, kept], feature_map, visible, rule))
    out = torch.stack(rows) if rows else v.new_zeros(*x.shape[:-1], v.shape[-1])
    return inputs.restored(out)


def _one(
    x: Tensor, y: Tensor, v: Tensor, feature_map: FeatureMap, visible: Tensor, rule: Denominator
) -> Tensor:
    """Compute attention of one batch element, ``(H, L, d)``, to the keys that are visible, booleans ``(L, S)``."""
    keys = visible.sum(-1, keepdim=True).to(x.dtype)
    bound = None
    if not feature_map.nonnegative:
        logs = feature_map.log_kernel(x, y).masked_fill(~visible, 0)
        bound = logs.sum(-1, keepdim=True) / keys.clamp(min=1) + keys.log()
    values, log_scale = _sums(x, y, v, feature_map, visible)
    used, small = rule.settle(values[..., -1:], log_scale, bound)
    out, moved = values[..., :-1] / used, None
    if rule.replaces:
        out, moved = bounded(out, small, _seen(v.detach(), visible, keys))
    rule.count(small, keys, None if moved is None else moved.any(-1))
    return out


def _seen(v: Tensor, visible: Tensor, keys: Tensor) -> Visible:
    """Describe the values ``(H, S, d_v)`` that each row sees, ``(H, L, ·)``."""
    total = torch.cat([visible.to(v.dtype) @ v, keys.expand(len(v), -1, -1)], -1)
    if not v.shape[1]:
        return Visible(total, total[..., :-1], total[..., :-1])
    each, hidden = v.unsqueeze(1), ~visible.unsqueeze(-1)  # (H, L, S, d_v)
    low, high = each.masked_fill(hidden, torch.inf), each.masked_fill(hidden, -torch.inf)
    return Visible(total, low.amin(2), high.amax(2))


def _sums(x: Tensor, y: Tensor, v: Tensor, feature_map: FeatureMap, visible: Tensor) -> Features:
    """Sum K̂(x, y) v and, in the last column, K̂(x, y), over the keys that are visible: ``(..., L, d_v + 1)``."""
    v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    if y.shape[-2] == 0:
        return Features(v.new_zeros(*x.shape[:-1], v.shape[-1]), x.new_zeros(*x.shape[:-1], 1))
    values, logs = feature_map.scaled_estimate(x, y)
    logs = logs.expand_as(values)
    logs = logs.masked_fill(~visible, -torch.inf)
    scale = logs.detach().amax(-1, keepdim=True)
    scale = torch.where(scale.isneginf(), 0, scale)
    return Features((values * (logs - scale).exp()) @ v, scale)

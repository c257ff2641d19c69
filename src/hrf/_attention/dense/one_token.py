"""Decoding one token from a state, for any map with features: the sums of ``causal.py`` without chunks.

All rows see all keys, so there are no estimates of single pairs: the key is added to the state before the queries are
multiplied. The time of a step is mostly the number of operations, which is about half of that of a chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hrf._attention.call import Call
from hrf._attention.denominator import log_bound
from hrf._attention.dense.chunks import Dense
from hrf._attention.visible import Running, bounded

__all__ = ["one_token"]


def one_token(
    call: Call, query: Tensor, key: Tensor, value: Tensor, state: Tensor, scale: Tensor
) -> tuple[Tensor, ...]:
    """Return what the causal path returns, for a single position and no gradients."""
    chunks, phi, lead, all_rows = Dense(call), call.feature_map, query.shape[:2], slice(None)
    x = chunks.vectors(query, all_rows, "query")
    features = phi.scaled(x, "query")
    keys = phi.scaled(chunks.vectors(key, all_rows, "key"), "key")
    log_scale = chunks.masked(keys.log_scale, all_rows, "key")
    v, before = chunks.values(value, all_rows), scale.flatten(0, 1)
    top = torch.maximum(before, log_scale)
    new = state.flatten(0, 1) * (before - top).exp()
    new.addcmul_(keys.values.flatten(0, 1).mT, v * (log_scale - top).exp())  # thrice as fast as a product
    sums = features.values.flatten(0, 1) @ new
    running, groups = Running(call.visible), query.shape[2]
    visible = running.chunk(v, groups)
    bound = log_bound(phi, x, call.moments)
    bound = None if bound is None else bound.flatten(0, 1)
    used, small = call.rule.settle(sums[..., -1:], features.log_scale.flatten(0, 1) + top, bound)
    out, moved = sums[..., :-1] / used, None
    if call.rule.replaces:
        out, moved = bounded(out, small, visible)
    clipped = None if moved is None else moved.any(-1, keepdim=True)
    call.rule.count(small.unflatten(0, lead), call.moments[..., :1], clipped)
    seen = (new.new_empty(len(new), 1, 0) if t is None else t for t in running.last)
    return tuple(t.unflatten(0, lead) for t in (out, new, top, *seen))

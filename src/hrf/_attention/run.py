"""Attention as it runs, compiled or not: read the mask, check the inputs, pick an engine and run it."""

from __future__ import annotations

import torch
from torch import Tensor

from hrf._attention.call import runner
from hrf._attention.denominator import Denominator
from hrf._attention.dispatch import engine_for
from hrf._attention.inputs import check
from hrf._attention.masks import read_mask
from hrf._attention.packing import Packing
from hrf.features.base import FeatureMap

__all__ = ["run"]


def run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: FeatureMap,
    rule: Denominator,
    *,
    attn_mask: Tensor | None,
    is_causal: bool,
    key_padding_mask: Tensor | None,
    scale: float | None,
    cu_seqlens: Tensor | None,
) -> Tensor:
    """Attend, with the arguments of `hrf.attention`."""
    hidden = None
    if attn_mask is not None:
        causal, hidden = read_mask(attn_mask, (*query.shape[:-1], key.shape[-2]))
        is_causal = is_causal or causal
    inputs = check(
        query,
        key,
        value,
        feature_map,
        paired=is_causal or cu_seqlens is not None,
        key_padding_mask=key_padding_mask,
        scale=scale,
    )
    if hidden is not None and bool(hidden.any()):
        hidden = hidden.reshape(len(inputs.key), -1)
        inputs = inputs._replace(ignore=hidden if inputs.ignore is None else inputs.ignore | hidden)
    engine = engine_for(feature_map)
    path = engine.causal if is_causal else engine.bidirectional
    rows = inputs.for_map(feature_map)
    packing = None if cu_seqlens is None else Packing(rows, cu_seqlens)
    outputs = []
    # Autocast would take matrix products to half precision.
    with torch.autocast(query.device.type, enabled=False):
        for piece in [rows] if packing is None else packing.batches():
            call, tensors = path.prepare(piece, feature_map, rule)
            outputs.append(runner(path, call, tensors)(call, *tensors)[0])
    return inputs.restored(outputs[0] if packing is None else packing.unpacked(outputs))

"""A call of `hrf.attention` with a `SummarisedAttention`, from arguments to output."""

from __future__ import annotations

import torch
from torch import Tensor

from hrf._attention.inputs import check, check_query_padding
from hrf._attention.masks import read_mask
from hrf._attention.operator import uncompiled
from hrf._attention.packing import Packing
from hrf._attention.summarised.causal.engine import causal_attention
from hrf._attention.summarised.engine import summarised_attention
from hrf._attention.summarised.method import SummarisedAttention

__all__ = ["run_summarised"]


@uncompiled
def run_summarised(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    method: SummarisedAttention,
    *,
    attn_mask: Tensor | None,
    is_causal: bool,
    key_padding_mask: Tensor | None,
    query_padding_mask: Tensor | None,
    scale: float | None,
    cu_seqlens: Tensor | None,
) -> Tensor:
    """Check the arguments, attend, and return ``(..., H, L, d_v)``."""
    hidden = None
    if attn_mask is not None:
        causal, hidden = read_mask(attn_mask, (*query.shape[:-1], key.shape[-2]))
        is_causal = is_causal or causal
    paired = is_causal or cu_seqlens is not None
    inputs = check(
        query, key, value, None, paired=paired, key_padding_mask=key_padding_mask, scale=scale
    ).hiding(hidden)
    if query_padding_mask is not None:
        check_query_padding(query_padding_mask, query)
        inputs = inputs._replace(present=~query_padding_mask.reshape(len(inputs.query), -1))
    packing = None if cu_seqlens is None else Packing(inputs, cu_seqlens)
    # Autocast would take matrix products to half precision.
    with torch.autocast(query.device.type, enabled=False):
        pieces = [inputs] if packing is None else packing.batches()
        outputs = [
            (causal_attention if is_causal else summarised_attention)(piece, method) for piece in pieces
        ]
    return inputs.restored(outputs[0] if packing is None else packing.unpacked(outputs))

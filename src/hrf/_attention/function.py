"""`hrf.attention`: softmax attention in linear time, with any feature map."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from hrf._attention.call import Path, runner
from hrf._attention.denominator import Denominator, Rule
from hrf._attention.dispatch import engine_for
from hrf._attention.inputs import Inputs, Packing, check, check_map, drop_keys, read_mask
from hrf._attention.operator import Operands, call_operator, call_summarised, implemented_by, tensors_of
from hrf._attention.summarised.engine import short_causal, summarised_attention
from hrf._attention.summarised.method import SummarisedAttention
from hrf.features.base import FeatureMap
from hrf.numerics import without_autocast

__all__ = ["attention"]


@implemented_by
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: FeatureMap | SummarisedAttention,
    *,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    key_padding_mask: Tensor | None = None,
    query_padding_mask: Tensor | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    denominator: Rule | Denominator = "clamp",
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """Attention whose weights are the estimates of a feature map: Σ K̂(x, y) v / Σ K̂(x, y), in linear time.

    It takes the arguments of `torch.nn.functional.scaled_dot_product_attention`, and a map. `torch.compile` puts it in
    a graph as one operator; a compiled backward pass runs the forward pass once more.

    Args:
        query: ``(..., H, L, d)``, float16, bfloat16, float32 or float64; the computation is in float32 or
            wider, the result in the query's dtype.
        key: ``(..., H_kv, S, d)``. H is a multiple of H_kv: a key head serves H/H_kv consecutive query heads.
        value: ``(..., H_kv, S, d_v)``.
        feature_map: a map of the softmax kernel, or of the Gaussian kernel for attention with that. A map with
            heads has one per query head. Or a `hrf.SummarisedAttention`, which has no features.
        attn_mask: mask that broadcasts to ``(..., H, L, S)``, booleans, True to attend, or 0 and −inf, to be added to
            logits. It may hide padding, the same keys for all queries and heads, and keys after the query; any other
            mask is refused. Reading it takes quadratic time: prefer ``is_causal`` and ``key_padding_mask``.
        dropout_p: probability to drop a key, for all queries of a head at once; the other values are scaled up.
        is_causal: query i sees keys 0 … i. With a `hrf.SummarisedAttention` the L queries may be those of the last L of
            S keys: query i sees keys 0 … S − L + i then. A `ClusteredHybrid` with ``recenter`` then uses the centres it
            was fitted with, since moving them would let later keys in; its exact pairs cost time that grows with
            the square of the length.
        key_padding_mask: booleans ``(..., S)``, True for keys to ignore, in numerator and denominator; or 0 and −inf.
            A query that sees no key gives zeros; so does, in causal calls with a `hrf.SummarisedAttention`, a query
            whose own key is ignored.
        query_padding_mask: booleans ``(..., L)``, True for padding among the queries of a `hrf.SummarisedAttention`,
            whose queries share summaries: their output is zeros. Feature maps need none, and refuse it.
        scale: factor of the logits, 1/√d by default; its root multiplies query and key before the map.
        enable_gqa: accepted and without effect: H may always be a multiple of H_kv.
        denominator: ``"clamp"``, ``"raise"`` or ``"none"``, or a `hrf.Denominator` to read counts from. With
            ``"clamp"``, a row whose denominator is far too small returns the mean of the values it sees, and all
            other outputs are clipped to the coordinate-wise minimum and maximum of these values.
        cu_seqlens: integers ``(n + 1,)``: n sequences are packed along L, sequence i from ``cu_seqlens[i]`` to
            ``cu_seqlens[i + 1]``, and each attends to itself only. They are read once: keep them on the CPU.
        max_seqlen: length of the longest packed sequence. With it ``cu_seqlens`` may be on an accelerator and is not
            read; all sequences take the time of the longest then.

    Returns:
        ``(..., H, L, d_v)``.

    >>> import torch, hrf
    >>> phi = hrf.Positive(16, n_projections=64)
    >>> q, k, v = torch.randn(3, 2, 4, 1000, 16)  # a batch of 2, 4 heads
    >>> hrf.attention(q, k, v, phi).shape
    torch.Size([2, 4, 1000, 16])
    """
    if dropout_p:
        value = drop_keys(value, dropout_p)
    method = feature_map if isinstance(feature_map, SummarisedAttention) else None
    if method is None and query_padding_mask is not None:
        raise ValueError(
            "query_padding_mask came with a feature map, whose queries are independent; expected None"
        )
    if torch.compiler.is_compiling():
        masks = attn_mask, key_padding_mask, query_padding_mask, cu_seqlens
        if method is not None:
            return call_summarised(query, key, value, method, masks, is_causal, scale)
        return call_operator(
            _operands(query, key, value, feature_map, masks, is_causal, scale, denominator, max_seqlen)
        )
    masks = attn_mask, key_padding_mask, query_padding_mask, cu_seqlens
    if method is not None and is_causal and all(mask is None for mask in masks):
        found = short_causal(query, key, value, method, scale)
        if found is not None:
            return found
    hidden = None
    if attn_mask is not None:
        causal, hidden = read_mask(attn_mask, (*query.shape[:-1], key.shape[-2]))
        is_causal = is_causal or causal
    paired = (is_causal and method is None) or cu_seqlens is not None
    inputs = check(
        query,
        key,
        value,
        None if method is not None else feature_map,
        paired=paired,
        key_padding_mask=key_padding_mask,
        query_padding_mask=query_padding_mask,
        scale=scale,
    ).hiding(hidden)
    if isinstance(feature_map, SummarisedAttention):
        rows, attend = inputs, partial(summarised_attention, method=feature_map, is_causal=is_causal)
    else:
        engine, rule = engine_for(feature_map), Denominator.of(denominator)
        rows, path = inputs.for_map(feature_map), engine.causal if is_causal else engine.bidirectional
        attend = partial(_attend, path, feature_map, rule)
    packing = None if cu_seqlens is None else Packing(rows, cu_seqlens, max_seqlen)
    # Autocast would take matrix products to half precision.
    with without_autocast(query.device):
        outputs = [attend(piece) for piece in ([rows] if packing is None else packing.batches())]
    return inputs.restored(outputs[0] if packing is None else packing.unpacked(outputs))


def _attend(path: Path, feature_map: FeatureMap, rule: Denominator, piece: Inputs) -> Tensor:
    call, tensors = path.prepare(piece, feature_map, rule)
    return runner(path, call, tensors)()[0]


def _operands(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: FeatureMap | SummarisedAttention,
    masks: tuple[Tensor | None, ...],
    is_causal: bool,
    scale: float | None,
    denominator: Rule | Denominator,
    max_seqlen: int | None,
) -> Operands:
    """Pack the arguments of a call with a feature map for a graph that is being compiled."""
    phi = check_map(feature_map)
    attn_mask, key_padding_mask, _, cu_seqlens = masks
    return Operands(
        query,
        key,
        value,
        phi.handle,
        *tensors_of(phi),
        attn_mask=attn_mask,
        key_padding_mask=key_padding_mask,
        cu_seqlens=cu_seqlens,
        counts=denominator.handle if isinstance(denominator, Denominator) else None,
        rule=denominator.rule if isinstance(denominator, Denominator) else denominator,
        is_causal=is_causal,
        scale=scale,
        max_seqlen=max_seqlen,
    )

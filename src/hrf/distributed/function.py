"""`hrf.distributed.attention`: attention over a sequence whose parts are on different ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from hrf._attention.denominator import Denominator, Rule
from hrf._attention.operator import uncompiled
from hrf.distributed.agreement import agree
from hrf.distributed.ranks import Group, Ranks
from hrf.distributed.shards import Shard
from hrf.distributed.states import before, everywhere
from hrf.features.base import FeatureMap

__all__ = ["attention"]


@uncompiled
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: FeatureMap,
    *,
    group: Group = None,
    is_causal: bool = False,
    key_padding_mask: Tensor | None = None,
    scale: float | None = None,
    denominator: Rule | Denominator = "clamp",
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Do as `hrf.attention` does with the tokens of all ranks in order: each rank gives and gets its own part.

    All ranks of the group call this, in the same order. What moves is the state of a rank's keys, whatever their
    number. Lengths may differ between ranks, and may be 0; everything else has to be the same, the map above all, and
    is compared. An error of one rank is raised on all.

    The backward pass moves the gradient of the state in the same way, so that all ranks have to run it, on losses
    that depend on their outputs. Gradients of a map's own tensors are shares of the ranks, to be added up as those of
    any weight are.

    Args:
        query: ``(..., H, L, d)``, this rank's part.
        key: ``(..., H_kv, S, d)``, likewise.
        value: ``(..., H_kv, S, d_v)``, likewise.
        feature_map: a map with the same tensors on every rank, without exact pairs; moving centres
            (``recenter``) only if causal.
        group: a process group, a `DeviceMesh` with one axis, or ``None`` for the default group; tokens are in the order
            of its ranks.
        is_causal: a query sees the keys of earlier ranks, and those of its own rank up to its place.
        key_padding_mask: ``(..., S)``, this rank's part.
        scale: as in `hrf.attention`.
        denominator: as in `hrf.attention`; counts are those of this rank.
        cu_seqlens: where packed sequences begin, and the length of all tokens of all ranks: ``(n + 1,)``, the same on
            every rank. Sequences may cross from rank to rank.

    Returns:
        ``(..., H, L, d_v)``, this rank's part.
    """
    ranks = Ranks(group)
    options = {"is_causal": is_causal, "key_padding_mask": key_padding_mask, "scale": scale}
    with torch.autocast(ranks.device.type, enabled=False):
        failure, shard, carry = None, None, None
        try:
            shard = Shard.of((query, key, value), feature_map, denominator, paired=is_causal, **options)
            carry = shard.written()
        except Exception as error:
            failure = error
        claims = {} if shard is None or failure is not None else shard.claims()
        wants = int(shard is not None and shard.wants_gradients())
        told = agree(ranks, failure, claims, [wants])
        assert shard is not None and carry is not None
        if any(wants for (wants,) in told) and not carry.state.requires_grad:
            carry = carry._replace(state=carry.state.detach().requires_grad_())
        met = before(ranks, carry) if is_causal else everywhere(ranks, carry)
        out = shard.attended(met)
    return shard.inputs.restored(out)

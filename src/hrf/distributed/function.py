"""`hrf.distributed.attention`: attention over a sequence whose parts are on different ranks."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from hrf._attention.carry import Carry
from hrf._attention.denominator import Denominator, Rule
from hrf._attention.operator import uncompiled
from hrf.distributed.agreement import together
from hrf.distributed.packed import attend_packed
from hrf.distributed.ranks import Group, Ranks
from hrf.distributed.shards import Shard, finished
from hrf.distributed.states import meet
from hrf.features.base import FeatureMap
from hrf.numerics import without_autocast

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

    def shard() -> Shard:
        return Shard.of(
            (query, key, value),
            feature_map,
            denominator,
            is_causal=is_causal,
            paired=is_causal or cu_seqlens is not None,
            key_padding_mask=key_padding_mask,
            scale=scale,
        )

    # Autocast would take matrix products to half precision.
    with without_autocast(ranks.device):
        return _attend(ranks, shard) if cu_seqlens is None else attend_packed(ranks, shard, cu_seqlens)


def _attend(ranks: Ranks, make_shard: Callable[[], Shard]) -> Tensor:
    def write() -> tuple[Shard, Carry]:
        shard = make_shard()
        return shard, shard.written()

    (shard, carry), told = together(ranks, write, lambda found: found[0].described())
    wants = any(other.wants_gradients for other in told)
    met = meet(ranks, carry, is_causal=shard.is_causal, wants_gradients=wants)
    return finished(ranks, shard.rule, lambda: shard.attended(met))

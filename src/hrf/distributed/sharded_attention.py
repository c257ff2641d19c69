"""`hrf.distributed.attention`: attention over a sequence whose parts are on different ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hrf._attention.call import runner
from hrf._attention.carry import Carry, add_scaled
from hrf._attention.denominator import Denominator, Rule
from hrf._attention.dense import LOWEST
from hrf._attention.dispatch import engine_for
from hrf._attention.function import attention as attention_of_one_rank
from hrf._attention.inputs import Inputs, check, check_packed, check_starts
from hrf._attention.operator import uncompiled
from hrf._attention.state import read, write
from hrf._attention.summarised.method import SummarisedAttention
from hrf.checks import check_tensors
from hrf.distributed.ranks import Description, Group, Ranks, digest, fingerprint, together
from hrf.features.base import FeatureMap
from hrf.numerics import check_finite, without_autocast

__all__ = ["attention"]

# States of all ranks meet: one sum for all (bidirectional), or the sum of the ranks before each (causal).
#
# With S_r the state of rank r and s_r its log scale, every rank gets Σ exp(s_r − s) S_r at s = max s_r, from one
# maximum and one sum over the ranks; or S'_r = Σ_{q<r} exp(s_q − s'_r) S_q at s'_r = max_{q<r} s_q, from an exclusive
# scan: a shift by one rank, then shifts by 1, 2, 4 … ranks. Gradients go the same ways back, with the scales
# constant:
#
#     ∂S_q = exp(s_q − s) Σ_r ∂S,        ∂S_q = Σ_{r>q} exp(s_q − s'_r) ∂S'_r.
#
# s'_r grows with r, so that no factor of the latter exceeds 1; as a scan of gradients its log scales are −s'_r. Moments
# and values, which the rule for denominators compares with, travel in the same messages and have no gradients.


def meet(ranks: Ranks, carry: Carry, *, is_causal: bool, wants_gradients: bool) -> Carry:
    """Return the carry of the keys of all ranks, or if causal, of the ranks before this one.

    If some rank wants gradients, all ranks take part in the backward pass.
    """
    if wants_gradients and not carry.state.requires_grad:
        carry = carry._replace(state=carry.state.detach().requires_grad_())
    return Carry.of_sums((_Scan if is_causal else _Sum).apply(ranks, *carry.sums()))


def after(out: Tensor, state: Tensor) -> Tensor:
    """Return ``out`` as it is, and let the backward pass go on to the state: on every rank, or else others wait."""
    return _After.apply(out, state)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ranks: Ranks, *tensors: Tensor) -> Any:
        state, scale, moments, total, low, high = tensors
        tops = ranks.maximum_(torch.cat([scale, -low, high], -1), "the scales of states")
        top, low, high = tops.split([1, low.shape[-1], high.shape[-1]], -1)
        factor = (scale - top).exp()
        parts = state * factor, moments, total
        sums = _unpacked(ranks.add_(_packed(parts), "the states of keys"), parts)
        ctx.ranks = ranks
        ctx.save_for_backward(factor)
        found = sums[0], top.clone(), *sums[1:], -low, high.clone()
        ctx.mark_non_differentiable(*found[1:])
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        (factor,) = ctx.saved_tensors
        total = ctx.ranks.add_(grad.clone(memory_format=torch.contiguous_format), "the gradients of states")
        return None, total * factor, *(None,) * 5


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ranks: Ranks, *tensors: Tensor) -> Any:
        own = Carry.of_sums(tensors)

        def plus(first: Tensor, second: Tensor) -> Tensor:
            both = (Carry.of_sums(_unpacked(some, tensors)) for some in (first, second))
            return _packed(next(both).plus(next(both)).sums())

        empty = _packed(own.emptied().sums())
        scanned = _exclusive(ranks, _packed(tensors), empty, plus, "the states of earlier keys")
        found = _unpacked(scanned, tensors)
        ctx.ranks = ranks
        ctx.save_for_backward(own.scale, found[1])
        ctx.mark_non_differentiable(*found[1:])
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        scale, found_scale = ctx.saved_tensors
        tensors = grad, -found_scale

        def plus(first: Tensor, second: Tensor) -> Tensor:
            return _packed(add_scaled(_unpacked(first, tensors), _unpacked(second, tensors)))

        empty = _packed((torch.zeros_like(grad), torch.full_like(scale, LOWEST)))
        what = "the gradients of states"
        scanned = _exclusive(ctx.ranks, _packed(tensors), empty, plus, what, back=True)
        total, at = _unpacked(scanned, tensors)
        return None, total * (scale + at).exp(), *(None,) * 5


class _After(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, state: Tensor) -> Tensor:
        ctx.shape = state.shape
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, grad.new_zeros(ctx.shape)


def _exclusive(
    ranks: Ranks,
    own: Tensor,
    empty: Tensor,
    plus: Callable[[Tensor, Tensor], Tensor],
    what: str,
    *,
    back: bool = False,
) -> Tensor:
    """Add up the messages of all ranks before this one, or ``back``, of all ranks after it."""
    sign = -1 if back else 1
    arrived = ranks.shift(own, sign, what)
    total = empty if arrived is None else arrived
    distance = 1
    while distance < ranks.size - 1:
        arrived = ranks.shift(total, sign * distance, what)
        total = total if arrived is None else plus(arrived, total)
        distance *= 2
    return total


def _packed(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def _unpacked(packed: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Cut a message into tensors of the shapes of ``like``; copies, which autograd functions may return."""
    parts = packed.split([t.numel() for t in like])
    return [part.view(t.shape).clone() for part, t in zip(parts, like, strict=True)]


# One rank's part of a call of attention: checked inputs and the carry of its own keys.


class Shard(NamedTuple):
    """The tokens of one rank.

    Attributes:
        inputs: checked.
        feature_map: the map; with fixed centres where attention is causal.
        rule: for denominators.
        is_causal: whether queries see no later key.
    """

    inputs: Inputs
    feature_map: FeatureMap
    rule: Denominator
    is_causal: bool

    @classmethod
    def of(
        cls,
        tokens: tuple[Tensor, Tensor, Tensor],
        feature_map: FeatureMap,
        rule: Rule | Denominator,
        *,
        is_causal: bool,
        paired: bool,
        key_padding_mask: Tensor | None,
        scale: float | None,
    ) -> Shard:
        """Check everything that can be checked on one rank."""
        _check_served(feature_map, is_causal)
        inputs = check(*tokens, feature_map, paired=paired, key_padding_mask=key_padding_mask, scale=scale)
        # Queries are mapped after the last agreement, where an error would leave other ranks alone.
        check_finite(inputs.query, inputs.query, "query")
        if is_causal:
            feature_map = feature_map.with_fixed_centres()
        return cls(inputs, feature_map, Denominator.of(rule), is_causal)

    def described(self) -> Description:
        """Describe what has to be the same on every rank, and what need not be."""
        inputs, phi, tracing = self.inputs, self.feature_map, torch.is_grad_enabled()
        query, key, value = inputs[:3]
        claims = {
            "the feature map": f"{type(phi).__name__} with fingerprint {fingerprint(phi):x}",
            "batch axes": str(inputs.batch),
            "heads": f"{query.shape[1]} query heads, {key.shape[1]} key heads",
            "width of values": str(value.shape[-1]),
            "dtype of the computation": str(inputs.dtype),
            "is_causal": str(self.is_causal),
            "scale": f"{inputs.root**2:.9g}",
            "denominator": self.rule.rule,
            "grad mode": "on" if tracing else "off",
            "cu_seqlens": "None",
        }
        tensors = query, key, value, *phi.parameters(), *phi.buffers()
        return Description(claims, tracing and any(t.requires_grad for t in tensors), key.shape[2])

    def written(self) -> Carry:
        """Sum over the keys of this rank."""
        return write(self.inputs.for_map(self.feature_map), self.feature_map)

    def attended(self, carry: Carry) -> Tensor:
        """Attend to the keys of a carry; if causal, to those and to the keys of this rank up to each query."""
        rows = self.inputs.for_map(self.feature_map)
        if not self.is_causal:
            return self.inputs.restored(read(rows, self.feature_map, self.rule, carry))
        path = engine_for(self.feature_map).causal
        call, tensors = path.prepare(rows, self.feature_map, self.rule, carry)
        return self.inputs.restored(runner(path, call, tensors)()[0])

    def piece(self, some: slice) -> Shard:
        """Restrict to some tokens."""
        query, key, value, ignore = self.inputs[:4]
        query, key, value = (t[:, :, some] for t in (query, key, value))
        ignore = None if ignore is None else ignore[:, some]
        return self._replace(inputs=self.inputs._replace(query=query, key=key, value=value, ignore=ignore))


def finished(ranks: Ranks, rule: Denominator, attend: Callable[[], Tensor]) -> Tensor:
    """Run the last step of a call; where the rule may raise there, all ranks wait for each other."""
    if rule.rule != "raise":
        return attend()
    out, _ = together(ranks, attend, lambda _: Description())
    return out


def _check_served(feature_map: object, is_causal: bool) -> None:
    if isinstance(feature_map, SummarisedAttention):
        raise TypeError(
            "feature_map is a SummarisedAttention, whose summaries follow all keys; expected a feature map, whose "
            "states ranks can add up"
        )
    if not isinstance(feature_map, FeatureMap):
        return  # which `check` refuses
    served = feature_map.with_fixed_centres() if is_causal else feature_map
    if not served.factorised:
        raise ValueError(
            f"the {type(feature_map).__name__} has exact pairs, or key centres that move with the keys, so that no "
            "state stands for the keys of a rank; expected a map with exact_share=0, and recenter=False unless "
            "is_causal"
        )


# Packed sequences over ranks: only those that cross from rank to rank need a state of other ranks.
#
# At most one sequence crosses a border between two ranks, so that of n sequences at most ``size − 1`` cross, and a
# rank has tokens of at most two of them, its first tokens and its last. Their states meet as one batch, in which
# ranks without tokens of a sequence have an empty one; the sequences between are attended to where they are.


class Layout(NamedTuple):
    """The tokens of one rank, by sequence.

    Attributes:
        crossing: tokens of each sequence that crosses a border, the same sequences on every rank; a slice may be empty.
        between: tokens of the other sequences.
        starts: where the other sequences begin among these tokens, and their number.
    """

    crossing: list[slice]
    between: slice
    starts: list[int]

    @classmethod
    def of(cls, starts: Sequence[int], lengths: Sequence[int], rank: int) -> Layout:
        """Lay out sequences that begin at ``starts``, the last of which is the end, over ranks of these lengths."""
        borders = [0, *accumulate(lengths)]
        first, last = borders[rank], borders[rank + 1]
        own = [min(max(start, first), last) - first for start in starts]
        crossing, whole = [], []
        for i, (start, end) in enumerate(pairwise(starts)):
            if any(start < border < end for border in borders):
                crossing.append(slice(own[i], own[i + 1]))
            elif own[i] < own[i + 1]:
                whole.append((own[i], own[i + 1]))
        if not whole:
            return cls(crossing, slice(0, 0), [0])
        between = slice(whole[0][0], whole[-1][1])
        return cls(crossing, between, [0, *(end - between.start for _, end in whole)])


def attend_packed(ranks: Ranks, make_shard: Callable[[], Shard], cu_seqlens: Tensor) -> Tensor:
    """Attend within each sequence; ``cu_seqlens`` says where sequences begin among the tokens of all ranks."""

    def checked() -> Shard:
        check_tensors(cu_seqlens=cu_seqlens)
        shard = make_shard()
        check_packed(shard.inputs, cu_seqlens)
        return shard

    def described(shard: Shard) -> Description:
        own = shard.described()
        starts = f"{len(cu_seqlens)} numbers with hash {digest(str(cu_seqlens.tolist()).encode()):x}"
        return own._replace(claims={**own.claims, "cu_seqlens": starts})

    shard, told = together(ranks, checked, described)
    check_starts(cu_seqlens, sum(other.length for other in told))
    layout = Layout.of(cu_seqlens.tolist(), [other.length for other in told], ranks.rank)
    if not layout.crossing:
        return finished(ranks, shard.rule, lambda: _between(shard, layout))
    pieces = [shard.piece(some) for some in layout.crossing]
    carries, _ = together(ranks, lambda: [piece.written() for piece in pieces], lambda _: Description())
    carry = Carry.of_sums(map(torch.cat, zip(*(own.sums() for own in carries), strict=True)))
    wants = any(other.wants_gradients for other in told)
    met = meet(ranks, carry, is_causal=shard.is_causal, wants_gradients=wants)
    return finished(ranks, shard.rule, lambda: _joined(shard, layout, met))


def _joined(shard: Shard, layout: Layout, met: Carry) -> Tensor:
    """Return the outputs of all tokens of a rank, in order."""
    first: list[Tensor] = []
    last: list[Tensor] = []
    for i, some in enumerate(layout.crossing):
        if some.start < some.stop:
            own = Carry.of_sums(t[i : i + 1] for t in met.sums())
            (first if some.stop <= layout.between.start else last).append(shard.piece(some).attended(own))
    out = torch.cat([*first, _between(shard, layout), *last], -2)
    return after(out, met.state) if met.state.requires_grad else out


def _between(shard: Shard, layout: Layout) -> Tensor:
    """Attend within the sequences that are wholly on this rank."""
    piece = shard.piece(layout.between)
    query, key, value, ignore, root, *_ = piece.inputs
    return piece.inputs.restored(
        attention_of_one_rank(
            query,
            key,
            value,
            shard.feature_map,
            is_causal=shard.is_causal,
            key_padding_mask=ignore,
            scale=root**2,
            denominator=shard.rule,
            cu_seqlens=torch.tensor(layout.starts, device=query.device),
        )
    )


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
    """Compute `hrf.attention` over the tokens of all ranks in order: each rank passes and receives its own part.

    All ranks of the group call this, in the same order. Ranks exchange the states of their keys, whose size does not
    depend on the number of keys. Lengths may differ between ranks, and may be 0; everything else, above all the map,
    has to be the same, and is compared. An error of one rank is raised on all.

    The backward pass exchanges gradients of states in the same way, so all ranks have to run it, on losses
    that depend on their outputs. Sum gradients of a map's own tensors over ranks, like gradients of any weight.

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

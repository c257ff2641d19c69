"""States of all ranks meet: one sum for all (bidirectional), or the sum of the ranks before each (causal).

With S_r the state of rank r and s_r its log scale, every rank gets Σ exp(s_r − s) S_r at s = max s_r, from one maximum
and one sum over the ranks; or S'_r = Σ_{q<r} exp(s_q − s'_r) S_q at s'_r = max_{q<r} s_q, from an exclusive scan: a
shift by one rank, then shifts by 1, 2, 4 … ranks. Gradients go the same ways back, with the scales constant:

    ∂S_q = exp(s_q − s) Σ_r ∂S,        ∂S_q = Σ_{r>q} exp(s_q − s'_r) ∂S'_r.

s'_r grows with r, so that no factor of the latter exceeds 1; as a scan of gradients its log scales are −s'_r. Moments
and values, which the rule for denominators compares with, travel in the same messages and have no gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hrf._attention.carry import Carry, add_scaled
from hrf._attention.dense import LOWEST
from hrf.distributed.ranks import Ranks

__all__ = ["after", "meet"]


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

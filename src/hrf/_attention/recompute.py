"""Functions whose graph exists in the backward pass only, where they run again: each on its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hrf.features.base import full_precision

__all__ = ["again"]

Function = Callable[..., tuple[Any, ...]]


def again(function: Function, *tensors: Tensor | None, learned: Sequence[Tensor]) -> Any:
    """What a function makes of some tensors, to be made again in the backward pass: a tuple.

    The first of what it gives has gradients, all else has none. ``learned`` are the tensors that it uses beyond
    its arguments and that may want gradients. (``torch``'s own checkpoints load the compiler: more than a second,
    and memory.)
    """
    return _Again.apply(function, learned, *tensors, *learned)


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Function, learned: Sequence[Tensor], *tensors: Tensor | None) -> Any:
        ctx.function, ctx.learned = function, learned
        arguments = tensors[: len(tensors) - len(learned)]
        ctx.save_for_backward(*arguments)
        values, *others = function(*arguments)
        ctx.mark_non_differentiable(*(t for t in others if isinstance(t, Tensor)))
        return values, *others

    @staticmethod
    @once_differentiable
    @full_precision
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        needed = ctx.needs_input_grad[2:]
        arguments = [
            t if t is None else t.detach().requires_grad_(n)
            for t, n in zip(ctx.saved_tensors, needed, strict=False)
        ]
        with torch.enable_grad():
            values, *_ = ctx.function(*arguments)
        if not values.requires_grad:  # made of nothing, where all keys are masked
            return (None,) * (2 + len(needed))
        wanted = [t for t, n in zip((*arguments, *ctx.learned), needed, strict=True) if n]
        found = iter(torch.autograd.grad(values, wanted, grad, allow_unused=True))
        return None, None, *(next(found) if n else None for n in needed)

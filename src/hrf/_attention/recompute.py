"""Recompute in the backward pass: a function whose graph exists only there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hrf.numerics import full_precision

__all__ = ["recompute"]

Function = Callable[..., tuple[Any, ...]]


def recompute(function: Function, *tensors: Tensor | None, learned: Sequence[Tensor]) -> Any:
    """Return ``function(*tensors)``, a tuple, and run the function again in the backward pass.

    Only the first entry of the tuple has gradients. ``learned`` are tensors that the function uses beyond its
    arguments and that may want gradients. (PyTorch's own checkpoints load the compiler: more than a second, and
    memory.)
    """
    return _Recompute.apply(function, learned, *tensors, *learned)


class _Recompute(torch.autograd.Function):
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
        if not values.requires_grad:  # all keys are masked, so the values depend on nothing
            return (None,) * (2 + len(needed))
        wanted = [t for t, n in zip((*arguments, *ctx.learned), needed, strict=True) if n]
        found = iter(torch.autograd.grad(values, wanted, grad, allow_unused=True))
        return None, None, *(next(found) if n else None for n in needed)

"""Numbers on a log scale, and checks of values: helpers without state.

Features of real inputs overflow, so they travel as `Features`: values and the logarithm of a scale per row.
Checks of values run on the CPU only, and never while a tracer follows along (`can_look`). With ``HRF_ASSERT=1`` in the
environment an accelerator asserts, without being waited for, that inputs are finite.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from hrf.checks import not_finite

__all__ = [
    "Features",
    "can_look",
    "check_finite",
    "check_range",
    "common_scale",
    "finite",
    "full_precision",
    "half_square",
    "is_traced",
    "log_limits",
    "without_autocast",
]

P = ParamSpec("P")
Result = TypeVar("Result")


class Features(NamedTuple):
    """The tensor ``values · exp(log_scale)``, kept apart so that neither factor overflows.

    Attributes:
        values: ``(..., L, D)``.
        log_scale: ``(..., L, 1)``, one scale per row (``(..., L, D)`` for pairwise estimates).
    """

    values: Tensor
    log_scale: Tensor

    def unscaled(self) -> Tensor:
        """Multiply both factors; ±inf, never NaN, where the product is too large for the dtype."""
        # Two steps, each finite: values may be tiny where exp(log_scale) alone would overflow.
        largest = math.log(torch.finfo(self.values.dtype).max) - 1
        half = (self.log_scale / 2).clamp(max=largest).exp()
        return self.values * half * half


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Switch autocast off on a device that has it; the meta device has none."""
    name = device.type
    if not torch.amp.is_autocast_available(name) or not torch.is_autocast_enabled(name):
        return nullcontext()
    return torch.autocast(name, enabled=False)


def full_precision(method: Callable[P, Result]) -> Callable[P, Result]:
    """Switch autocast off inside a method: half precision cannot carry an exponential."""

    @functools.wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Result:
        given = (*args[1:], *kwargs.values())  # after self
        device = given[0].device if given and isinstance(given[0], Tensor) else torch.device("cpu")
        with without_autocast(device):
            return method(*args, **kwargs)

    return wrapped


def finite(scale: Tensor) -> Tensor:
    """Replace a log scale of −∞, the scale of nothing, by 0."""
    return scale.masked_fill(scale.isneginf(), 0)


def common_scale(features: Sequence[Features]) -> tuple[list[Tensor], Tensor]:
    """Bring all values to the largest scale of each row, and return that scale; −∞ is the scale of nothing."""
    scales = torch.broadcast_tensors(*(f.log_scale for f in features))
    scale = torch.stack(scales).detach().amax(0)
    return [f.values * (s - finite(scale)).exp() for f, s in zip(features, scales, strict=True)], scale


def half_square(x: Tensor, traced: bool | None = None) -> Tensor:
    """‖x‖²/2 per row: ``(..., L, d) -> (..., L, 1)``; ``traced`` spares a call of `is_traced` where it is known."""
    if x.requires_grad or (
        is_traced() if traced is None else traced
    ):  # the norm has no second derivative at 0
        return x.square().sum(-1, keepdim=True) / 2
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / 2


def is_traced() -> bool:
    """Whether the compiler or a transform of torch.func follows along: code must not branch on values then."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
    )


def can_look(x: Tensor) -> bool:
    """Whether a check of values is free: on an accelerator it would wait for the device."""
    return x.is_cpu and not is_traced()


def check_finite(sums: Tensor, x: Tensor, name: str, traced: bool | None = None) -> None:
    """Refuse ``x`` if any of ``sums``, which its values enter, is not finite; ``traced`` as in `half_square`."""
    if is_traced() if traced is None else traced:
        return
    if not sums.is_cpu:
        if os.environ.get("HRF_ASSERT") == "1":
            torch._assert_async(sums.detach().isfinite().all(), f"{name} has a value that is not finite")
        return
    total = sums.detach().sum(dtype=torch.promote_types(sums.dtype, torch.float32))
    if not math.isfinite(float(total)):  # far fewer operations than isfinite
        received = not_finite(x) or "values that are too large to be squared"
        raise ValueError(f"{name} has {received}; expected finite values")


def log_limits(dtype: torch.dtype) -> tuple[float, float]:
    """Logarithms of the smallest and the largest normal number of a dtype."""
    limits = torch.finfo(dtype)
    return math.log(limits.tiny), math.log(limits.max)


def check_range(row_logs: Tensor) -> None:
    """Refuse rows whose largest feature, given by its logarithm, does not fit the dtype."""
    if not row_logs.is_cpu or is_traced() or not row_logs.numel():
        return
    low, high = row_logs.detach().aminmax()
    least, most = log_limits(row_logs.dtype)
    if low < least or high > most:
        raise OverflowError(
            f"the largest features of the rows run from exp({float(low):.0f}) to exp({float(high):.0f}), which "
            f"{row_logs.dtype} cannot hold; the inputs are too long for plain features: use scaled_queries and "
            "scaled_keys, or estimate"
        )

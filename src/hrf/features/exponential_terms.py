"""From exponents to features: a term exp(a + ib) has the features exp(a) cos b and exp(a) sin b, or exp(a) alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from hrf.numerics import Features

__all__ = ["extended", "product", "quarter_turn", "relative"]

# Since sin t = cos(t − π/2), one function serves all columns.
quarter_turn = partial(torch.sub, other=math.pi / 2)


def extended(values: Tensor, function: Callable[..., Tensor], place: Tensor | None = None) -> Tensor:
    """Append columns ``function(values)`` to ``values``: in ``place``, which starts with them, or in a new tensor."""
    if place is None:
        return torch.cat([values, function(values)], -1)
    function(values, out=place[..., values.shape[-1] :])
    return place


def product(sizes: Tensor, turns: Tensor, out: Tensor | None) -> Tensor:
    """Multiply the size of each term with its cosine and its sine: ``(..., n), (..., 2n) -> (..., 2n)``."""
    shape = 2, sizes.shape[-1]
    place = None if out is None else out.unflatten(-1, shape)
    return torch.mul(sizes.unsqueeze(-2), turns.unflatten(-1, shape), out=place).flatten(-2)


def relative(
    log_weight: Tensor, logs: Tensor | None, phases: Tensor | None, out: Tensor | None = None
) -> Features:
    """Return features relative to the largest exponential of each row.

    Args:
        log_weight: logarithm of the factor that all features of a row share, ``(..., L, 1)``.
        logs: a of each term, ``(..., L, n)``, overwritten; ``None`` is 0.
        phases: b of each feature, ``(..., L, n or 2n)``, overwritten; ``None`` is 0.
        out: where to write products of both.
    """
    if logs is None:
        assert phases is not None
        return Features(phases.cos_(), log_weight)
    largest = logs.detach().amax(-1, keepdim=True)
    values = logs.sub_(largest).exp_()
    if phases is not None:
        values = product(values, phases.cos_(), out)
    return Features(values, log_weight + largest)

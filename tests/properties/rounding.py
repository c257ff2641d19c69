"""How far two ways to compute attention may lie apart: rounding times condition, row by row.

A row is N/D with D = Σ K̂(x, y), and every K̂ is a sum of products of features. These sums round relative to the sum A of
the magnitudes of all products, so that N/D is right to about eps · A/|D|; features are exponentials, whose relative
error is eps times their exponents.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor

import hrf
from hrf._attention.denominator import FLOOR
from properties.strategies import HALF, Call, in_float64

_UNITS = 16  # roundings on the way of a product
_WORST = 1e4  # conditions beyond this leave nothing to compare in float32


class Rounding(NamedTuple):
    """Attributes: per row, ``(..., H, L, 1)``.

    relative: error of an output over the largest value.
    settled: whether rounding cannot change the rule of denominators for this row.
    """

    relative: Tensor
    settled: Tensor


def magnitudes(phi: hrf.FeatureMap, x: Tensor, y: Tensor) -> Tensor:
    """Sum magnitudes of products of features, ``(..., L, S)``; exact pairs count as estimated ones, too."""
    estimates = phi.scaled_estimate(x, y).unscaled().abs()
    if not phi.factorised:
        phi = copy.deepcopy(phi)
        phi.exact = None
    q, k = phi.scaled(x, "query"), phi.scaled(y, "key")
    return torch.maximum(
        estimates, (q.values.abs() @ k.values.abs().mT) * (q.log_scale + k.log_scale.mT).exp()
    )


def _longest(vectors: Tensor) -> Tensor | float:
    """Return the largest norm of vectors ``(..., H, L, d)`` per head, ``(..., H, 1, 1)``."""
    return vectors.norm(dim=-1).amax(-1)[..., None, None] if vectors.shape[-2] else 0.0


@torch.no_grad()
def rounding(call: Call, phi: hrf.FeatureMap, q: Tensor, k: Tensor) -> Rounding:
    """Bound the rounding of a call in the precision of its dtype."""
    eps = torch.finfo(torch.float32 if call.dtype in HALF else call.dtype).eps
    phi, x, y = in_float64(phi), q.double(), k.double().repeat_interleave(call.groups, -3)
    seen = call.visible()
    estimate, size = phi.scaled_estimate(x, y).unscaled() * seen, magnitudes(phi, x, y) * seen
    exponents = (1 + _longest(x) + _longest(y * seen.any(-2).unsqueeze(-1))) ** 2
    number = seen.sum(-1, keepdim=True)
    unit = _UNITS * eps * exponents
    error = unit * size.sum(-1, keepdim=True)
    total = estimate.sum(-1, keepdim=True)
    floor = torch.zeros_like(total)
    if not phi.nonnegative:
        mean = (phi.log_kernel(x, y) * seen).sum(-1, keepdim=True) / number.clamp(min=1)
        floor = FLOOR * number * mean.exp()
    relative = torch.where(number > 0, error / total.abs().clamp(min=1e-300), 0)
    settled = (number == 0) | (((total - floor).abs() > 2 * error) & (relative < _WORST * unit))
    return Rounding(relative.masked_fill(~settled, 0), settled)

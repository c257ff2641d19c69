"""The exact kernels (paper, Eq. 1): SM(x, y) = exp(xᵀy) and K(x, y) = exp(−‖x − y‖²/2).

All functions are pairwise: ``x`` is ``(..., L, d)``, ``y`` is ``(..., S, d)`` and the
result is ``(..., L, S)``, in float32 at least: half precision cannot carry an exponential.
They cost the quadratic time that the rest of the library avoids.

>>> import torch
>>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
>>> log_softmax_kernel(x, x)
tensor([[1., 0.],
        [0., 4.]])
>>> gaussian(x, x).diagonal()
tensor([1., 1.])
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["gaussian", "log_gaussian_kernel", "log_softmax_kernel", "softmax", "squared_distance"]


def log_softmax_kernel(x: Tensor, y: Tensor) -> Tensor:
    """Return xᵀy, the logarithm of the softmax kernel: ``(..., L, d), (..., S, d) -> (..., L, S)``."""
    x, y = _widened(x, y)
    return x @ y.mT


def softmax(x: Tensor, y: Tensor) -> Tensor:
    """Return the softmax kernel exp(xᵀy), not normalised: ``(..., L, d), (..., S, d) -> (..., L, S)``."""
    return log_softmax_kernel(x, y).exp()


def squared_distance(x: Tensor, y: Tensor) -> Tensor:
    """Return ‖x − y‖², exactly 0 where x = y: ``(..., L, d), (..., S, d) -> (..., L, S)``."""
    x, y = _widened(x, y)
    # From differences: the expanded square cancels where x ≈ y, just where the kernel is large.
    distance = torch.cdist(x.detach(), y.detach(), compute_mode="donot_use_mm_for_euclid_dist")
    # cdist has no second derivative. The expanded square has all derivatives, so its gradient is used, with value 0.
    expanded = x.square().sum(-1).unsqueeze(-1) + y.square().sum(-1).unsqueeze(-2) - 2 * x @ y.mT
    return distance.square() + (expanded - expanded.detach())


def log_gaussian_kernel(x: Tensor, y: Tensor) -> Tensor:
    """Return −‖x − y‖²/2, the logarithm of the Gaussian kernel: ``(..., L, d), (..., S, d) -> (..., L, S)``."""
    return -squared_distance(x, y) / 2


def gaussian(x: Tensor, y: Tensor) -> Tensor:
    """Return the Gaussian kernel exp(−‖x − y‖²/2): ``(..., L, d), (..., S, d) -> (..., L, S)``."""
    return log_gaussian_kernel(x, y).exp()


def _widened(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
    return x.to(dtype), y.to(dtype)

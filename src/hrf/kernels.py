"""The exact kernels (paper, Eq. 1): SM(x, y) = exp(xᵀy) and K(x, y) = exp(−‖x − y‖²/2).

All functions are pairwise: ``x`` is ``(..., L, d)``, ``y`` is ``(..., S, d)`` and the
result is ``(..., L, S)``. They cost the quadratic time that the rest of the library avoids.

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

__all__ = ["gaussian", "log_gaussian_kernel", "log_softmax_kernel", "softmax"]


def log_softmax_kernel(x: Tensor, y: Tensor) -> Tensor:
    """The logarithm of the softmax kernel, xᵀy: ``(..., L, d), (..., S, d) -> (..., L, S)``."""
    return x @ y.mT


def softmax(x: Tensor, y: Tensor) -> Tensor:
    """The softmax kernel exp(xᵀy), not normalised: ``(..., L, d), (..., S, d) -> (..., L, S)``."""
    return log_softmax_kernel(x, y).exp()


def log_gaussian_kernel(x: Tensor, y: Tensor) -> Tensor:
    """The logarithm of the Gaussian kernel, −‖x − y‖²/2: ``(..., L, d), (..., S, d) -> (..., L, S)``."""
    # Differences, not ‖x‖² + ‖y‖² − 2xᵀy: that cancels where x ≈ y, just where the kernel is large.
    return -0.5 * torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()


def gaussian(x: Tensor, y: Tensor) -> Tensor:
    """The Gaussian kernel exp(−‖x − y‖²/2): ``(..., L, d), (..., S, d) -> (..., L, S)``."""
    return log_gaussian_kernel(x, y).exp()

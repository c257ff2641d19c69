"""Values that stand in for operations on attention weights, which are never formed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["drop_keys", "unit_values"]


def drop_keys(value: Tensor, probability: float) -> Tensor:
    """Drop rows of values ``(..., S, d_v)`` at random and scale up the rest, so that means stay.

    As in dropout of weights, denominators stay and each weight is dropped with the given probability; here all
    queries of a head lose the same keys.
    """
    return value * F.dropout(torch.ones_like(value[..., :1]), probability)


def unit_values(key: Tensor) -> Tensor:
    """Return unit vectors for keys ``(..., S, d)``, for which attention returns its weights: ``(..., S, S)``."""
    keys = key.shape[-2]
    return torch.eye(keys, dtype=key.dtype, device=key.device).expand(*key.shape[:-2], keys, keys)

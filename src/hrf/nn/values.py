"""Values by which attention does what is usually done to its weights, which are never formed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["drop_keys", "unit_values"]


def drop_keys(value: Tensor, probability: float) -> Tensor:
    """Values ``(..., S, d_v)`` with rows dropped at random, the others scaled up so that means stay.

    As in dropout of the weights, denominators are left alone and a weight is dropped with the given probability;
    here all queries of a head lose the same keys.
    """
    return value * F.dropout(torch.ones_like(value[..., :1]), probability)


def unit_values(key: Tensor) -> Tensor:
    """Unit vectors for keys ``(..., S, d)``, so that attention returns its weights: ``(..., S, S)``."""
    keys = key.shape[-2]
    return torch.eye(keys, dtype=key.dtype, device=key.device).expand(*key.shape[:-2], keys, keys)

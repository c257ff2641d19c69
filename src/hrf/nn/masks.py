"""Masks of `torch.nn.MultiheadAttention`, in the form that `hrf.attention` takes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hrf.checks import check_tensors

__all__ = ["for_weights"]


def for_weights(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Bring a mask ``(L, S)`` or ``(N·H, L, S)``, True to ignore, to the weights ``(N, H, L, S)``, True to attend.

    A mask to be added to logits has one meaning everywhere.
    """
    check_tensors(attn_mask=mask)
    *leading, length, keys = shape
    each = (math.prod(leading), length, keys)
    if tuple(mask.shape) not in (each, each[1:]):
        raise ValueError(
            f"attn_mask has shape {tuple(mask.shape)}; expected {each[1:]}, or {each} with one mask per head"
        )
    mask = ~mask if mask.dtype == torch.bool else mask
    return mask if mask.ndim == 2 else mask.reshape(shape)
